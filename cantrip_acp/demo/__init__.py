"""The material of `cantrip demo`: a small sample project with a real bug, a recipe, and a script for the scripted crystal.
The data ships in the wheel and is copied to a temporary folder before use. Only `cli/commands/demo.py` imports this package.
Start with `stage.py` (prepares the folder) and `proof.py` (checks the result).
"""

__all__ = ["sample_project"]
