"""The gate ``run_tests``: a workspace's tests, run in the circle's sandbox."""
