"""What a recipe answers, a function a question; each imports its own file when it is asked for the first time."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

if TYPE_CHECKING:
    from cantrip_acp.lsp.documents import Held
    from cantrip_acp.lsp.server import Server

T = TypeVar("T")


def _opened(answer: Callable[[Server, Held, Any], T]) -> Callable[[Server, Any], T | None]:
    """Of a recipe that the client does not have open, nothing is said."""

    @wraps(answer)
    def asked(ls: Server, params: Any) -> T | None:
        held = ls.documents.recipe(params.text_document.uri)
        return answer(ls, held, params) if held is not None else None

    return asked


@_opened
def completion(ls: Server, held: Held, params: types.CompletionParams) -> types.CompletionList:
    from cantrip_acp.lsp.completion import completions

    found = completions(held, params.position, ls.documents.workspace(held.path))
    return types.CompletionList(is_incomplete=False, items=found)


def completion_resolved(ls: Server, item: types.CompletionItem) -> types.CompletionItem:
    from cantrip_acp.lsp.completion import resolve

    return resolve(item)


@_opened
def hover(ls: Server, held: Held, params: types.HoverParams) -> types.Hover | None:
    from cantrip_acp.lsp.hover import hover

    return hover(held, ls.reading(held), params.position)


@_opened
def code_actions(ls: Server, held: Held, params: types.CodeActionParams) -> list[types.CodeAction]:
    from cantrip_acp.lsp.actions import actions

    workspace = ls.documents.workspace(held.path)
    return actions(held, ls.reading(held), params, ls.diagnostic, workspace, creates=ls.creates_files)


@_opened
def lenses(ls: Server, held: Held, params: types.CodeLensParams) -> list[types.CodeLens]:
    from cantrip_acp.lsp.lenses import lenses

    return lenses(ls, held)


@_opened
def symbols(ls: Server, held: Held, params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
    from cantrip_acp.lsp.outline import symbols

    return symbols(held)


@_opened
def folds(ls: Server, held: Held, params: types.FoldingRangeParams) -> list[types.FoldingRange]:
    from cantrip_acp.lsp.outline import folds

    return folds(held)


@_opened
def formatting(ls: Server, held: Held, params: types.DocumentFormattingParams) -> list[types.TextEdit]:
    from cantrip_acp.lsp.layout import edits

    return edits(held)


@_opened
def definition(ls: Server, held: Held, params: types.DefinitionParams) -> list[types.Location]:
    from cantrip_acp.lsp.references import definition

    return definition(held, params.position)


@_opened
def references(ls: Server, held: Held, params: types.ReferenceParams) -> list[types.Location]:
    from cantrip_acp.lsp.references import references

    return references(held, params.position, params.context.include_declaration)


@_opened
def links(ls: Server, held: Held, params: types.DocumentLinkParams) -> list[types.DocumentLink]:
    from cantrip_acp.lsp.references import links

    return links(held)


@_opened
def renaming(ls: Server, held: Held, params: types.PrepareRenameParams) -> types.Range | None:
    from cantrip_acp.lsp.references import renaming

    span = renaming(held, params.position)
    return held.text.range(*span) if span is not None else None


@_opened
def renamed(ls: Server, held: Held, params: types.RenameParams) -> types.WorkspaceEdit | None:
    from cantrip_acp.lsp.references import rename

    try:
        return rename(held, params.position, params.new_name)
    except ValueError as error:
        raise JsonRpcInvalidParams(str(error)) from None
