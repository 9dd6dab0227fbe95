"""Evaluation: casts a recipe on the tasks of a suite, judges what came of it, and compares crystals and results.

`suite` reads tasks, `run` casts samples, `grading` judges them, `statistics` makes rates, intervals and comparisons of them,
and `report` writes the page. `inspect_tasks` reads the tasks of Inspect. Start with `run.py`; only `cli/` imports this folder.
"""

__all__ = ["report", "run", "statistics", "suite"]
