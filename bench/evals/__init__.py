"""Does an entity do the work? Small repositories with something to do in each, graded by tests that it never saw.

`task` reads them, `attempt` casts, `grading` judges, `table` shows. ``python -m bench.evals --help``.
"""
