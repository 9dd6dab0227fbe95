"""Conformance suites in the editor: files in the format of ``tests.yaml`` (`conformance`).

`reading` says what is wrong with their cases, `shapes` what may stand where, `kind` answers the editor's questions, `running` runs
cases and says on which lines they failed. `spec.md` has the meaning of each rule.
"""
