"""A scoring function from a recipe's Python file: ``circle: {score: {python: score.py, at: turn}}``, relative to the recipe.

As a file of gates (`gatefiles`) it is the recipe owner's code and runs on the host, once trust has let the recipe pass. It
exports one function, ``score``: of a `Turn` where ``at`` is turn, of a `Thread` where it is cast (`cantrip_acp.core.scoring`):

    def score(turn):
        "Each turn costs a little, the end pays."
        return 1.0 if turn.terminated else -0.1
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Literal

from cantrip_acp.core.errors import DefinitionError
from cantrip_acp.core.scoring import Scorer
from cantrip_acp.recipes.files import Files
from cantrip_acp.recipes.gatefiles import run_file


def load(path: Path, files: Files, at: Literal["turn", "cast"]) -> Scorer:
    """The scorer of a file. Raises `DefinitionError` with the file and line of what is wrong."""
    function = vars(run_file(path, files.read(path))).get("score")
    if not inspect.isfunction(function):
        what = "exports no function of the name score" if function is None else "has a score that is no function"
        raise DefinitionError(f"{what}; write: def score({'turn' if at == 'turn' else 'thread'}): ...", where=str(path))
    return Scorer(function, name=f"{path.name}:score", at=at)
