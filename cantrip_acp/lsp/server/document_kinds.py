"""The kinds of documents that are served, told by their names; each has a module that answers for it.

A module's functions have the names in `features.METHODS` and take the server and the parameters; what a kind has no function for is
answered with nothing. A function returns its answer, or a coroutine for what takes longer than a keystroke.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pygls.uris import to_fs_path

from cantrip_acp.recipes.parse.document import SUFFIXES


@dataclass(frozen=True, slots=True)
class Kind:
    """``suffixes`` are the ends of its files' names, ``module`` what answers."""

    name: str
    suffixes: tuple[str, ...]
    module: str

    def answer(self, name: str) -> Callable[..., Any] | None:
        """The function of that name; None where this kind has none. The module is imported here, with the first question."""
        found: Callable[..., Any] | None = getattr(importlib.import_module(self.module), name, None)
        return found


KINDS = (
    Kind("recipe", SUFFIXES, "cantrip_acp.lsp.recipes.answers"),
    Kind("suite", ("/tests.yaml", "/tests.yml", ".tests.yaml", ".tests.yml"), "cantrip_acp.lsp.suites.answers"),
    Kind("loom", (".loom.jsonl",), "cantrip_acp.lsp.looms.answers"),
)


def of(uri: str) -> Kind | None:
    """The kind of the document at an address; None where it is none of ours."""
    path = to_fs_path(uri) or uri
    return next((kind for kind in KINDS if path.endswith(kind.suffixes)), None)


def named(name: object) -> Kind | None:
    """The kind of a name, as ``data`` of a lens or an item has it; None where there is none."""
    return next((kind for kind in KINDS if kind.name == name), None)


def answers(name: str) -> Iterator[Callable[..., Any]]:
    """Every kind's function of a name, for what is asked of the workspace as a whole."""
    for kind in KINDS:
        found = kind.answer(name)
        if found is not None:
            yield found
