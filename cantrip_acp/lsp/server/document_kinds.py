"""The kinds of documents: recipe and loom. The file name decides; each kind has a module that answers its requests.
A module's functions have the names in `features.METHODS` and take the server and the parameters. A request without a function
is answered with null. A function returns its answer, or a coroutine for slow work.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pygls.uris import to_fs_path

from cantrip_acp.recipes.parse.document import SUFFIXES


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """``suffixes`` are the endings of its files' names; ``module`` answers its requests."""

    name: str
    suffixes: tuple[str, ...]
    module: str

    def answer(self, name: str) -> Callable[..., Any] | None:
        """The function with that name; None if this kind has none. The first call imports the module."""
        found: Callable[..., Any] | None = getattr(importlib.import_module(self.module), name, None)
        return found


KINDS = (
    DocumentKind("recipe", SUFFIXES, "cantrip_acp.lsp.recipes.answers"),
    DocumentKind("loom", (".loom.jsonl",), "cantrip_acp.lsp.looms.answers"),
)


def of(uri: str) -> DocumentKind | None:
    """The kind of the document at a URI; None if it is not one of ours."""
    path = to_fs_path(uri) or uri
    return next((kind for kind in KINDS if path.endswith(kind.suffixes)), None)


def named(name: object) -> DocumentKind | None:
    """The kind with a name, from the ``data`` of a lens or an item; None if there is none."""
    return next((kind for kind in KINDS if kind.name == name), None)


def answers(name: str) -> Iterator[Callable[..., Any]]:
    """Every kind's function with a name, for requests about the whole workspace."""
    for kind in KINDS:
        found = kind.answer(name)
        if found is not None:
            yield found
