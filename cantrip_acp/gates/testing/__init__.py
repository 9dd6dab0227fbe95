"""The gate ``run_tests``: a workspace's tests, run in the circle's sandbox.

It may import the gate contract, the sandbox and the bash medium's home folder. Start with `run_tests.py`;
`test_command.py` finds the command and `test_report.py` reads its output.
"""
