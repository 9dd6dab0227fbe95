"""The gate ``run_tests``: runs a workspace's tests in the circle's sandbox.

It may import the gate contract, the sandbox and `files/`. Start with `run_tests.py`;
`test_command.py` finds the command and `test_report.py` reads its output.
"""
