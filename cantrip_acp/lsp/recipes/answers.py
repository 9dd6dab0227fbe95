"""The server's answers for a recipe, one function per request. Each imports its module at the first request."""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

if TYPE_CHECKING:
    from pathlib import Path

    from cantrip_acp.lsp.recipes.call_hierarchy import EntityHierarchy
    from cantrip_acp.lsp.server.documents import OpenDocument
    from cantrip_acp.lsp.server.language_server import Server

T = TypeVar("T")


def _opened(answer: Callable[[Server, OpenDocument, Any], T]) -> Callable[[Server, Any], T | None]:
    """Answer only for recipes that are open in the client."""

    @wraps(answer)
    def for_recipe(ls: Server, params: Any) -> T | None:
        document = ls.documents.recipe(params.text_document.uri)
        return answer(ls, document, params) if document is not None else None

    return for_recipe


def _of(module: str, ask: Callable[[Any, Server, OpenDocument, Any], T]) -> Callable[[Server, Any], T | None]:
    """Make a handler from a module of this folder, for requests about an open recipe. The module is imported at the first
    request."""

    def answer(ls: Server, document: OpenDocument, params: Any) -> T:
        return ask(importlib.import_module(f"cantrip_acp.lsp.recipes.{module}"), ls, document, params)

    return _opened(answer)


code_actions = _of(
    "fixes.code_actions",
    lambda fixes, ls, document, params: fixes.actions(
        document,
        ls.analysis(document),
        params,
        ls.diagnostic,
        ls.documents.workspace(document.path),
        creates=ls.creates_files,
    ),
)
lenses = _of("lenses", lambda lenses, ls, document, _: lenses.lenses(ls, document))
symbols = _of("outline", lambda outline, _, document, __: outline.symbols(document))
folds = _of("outline", lambda outline, _, document, __: outline.folds(document))
highlights = _of("outline", lambda outline, _, document, params: outline.highlights(document, params.position))
selections = _of("outline", lambda outline, _, document, params: outline.selections(document, list(params.positions)))
linked = _of("outline", lambda outline, _, document, params: outline.linked(document, params.position))
formatting = _of("formatting", lambda formatting, _, document, __: formatting.edits(document))
definition = _of("references", lambda found, _, document, params: found.definition(document, params.position))
links = _of("references", lambda found, _, document, __: found.links(document))
tokens = _of("semantic_tokens", lambda tokens, _, document, __: tokens.full_tokens(document))
tokens_changed = _of(
    "semantic_tokens", lambda tokens, _, document, params: tokens.changed(document, params.previous_result_id)
)
tokens_of_part = _of("semantic_tokens", lambda tokens, _, document, params: tokens.part(document, params.range))
hints = _of(
    "inlay_hints", lambda hints, ls, document, params: hints.hints(document, ls.analysis(document).data, params.range)
)
prepare_call_hierarchy = _of(
    "call_hierarchy",
    lambda calls, ls, document, params: calls.EntityHierarchy(document, ls.analysis(document).data).at(params.position),
)


@_opened
def completion(ls: Server, document: OpenDocument, params: types.CompletionParams) -> types.CompletionList:
    from cantrip_acp.lsp.recipes.completion import completions

    found = completions(document, params.position, ls.documents.workspace(document.path))
    return types.CompletionList(is_incomplete=False, items=[_readable(ls, item) for item in found])


def completion_resolved(ls: Server, item: types.CompletionItem) -> types.CompletionItem:
    from cantrip_acp.lsp.recipes.completion import resolve

    return _readable(ls, resolve(item))


def _readable(ls: Server, item: types.CompletionItem) -> types.CompletionItem:
    if isinstance(item.documentation, types.MarkupContent):
        said = fitted(item.documentation, ls.completion_formats)
        item.documentation = said if ls.completion_formats else said.value
    return item


@_opened
def hover(
    ls: Server, document: OpenDocument, params: types.HoverParams
) -> types.Hover | Coroutine[Any, Any, types.Hover] | None:
    from cantrip_acp.lsp.recipes.hover import hover

    found = hover(document, ls.analysis(document), params.position)
    if found is None or not isinstance(found.contents, types.MarkupContent):
        return found
    path = document.tree.at(document.text.offset(params.position)).path
    if path[:1] == ("memory",):
        return _with_knowledge(ls, document, found, found.contents)
    found.contents = fitted(found.contents, ls.hover_formats)
    return found


async def _with_knowledge(
    ls: Server, document: OpenDocument, found: types.Hover, content: types.MarkupContent
) -> types.Hover:
    """Add the knowledge that a session of this recipe would read now."""
    from cantrip_acp.lsp.knowledge import hover_text

    data, folder = ls.analysis(document).data, ls.documents.workspace(document.path)
    read = await asyncio.to_thread(hover_text, data.get("memory") if isinstance(data, dict) else None, folder)
    if read:
        content = types.MarkupContent(content.kind, f"{content.value}\n\n---\n\n{read}")
    found.contents = fitted(content, ls.hover_formats)
    return found


@_opened
def references(
    ls: Server, document: OpenDocument, params: types.ReferenceParams
) -> list[types.Location] | Coroutine[Any, Any, list[types.Location]]:
    from cantrip_acp.lsp.recipes.references import file_at, references

    file = file_at(document, params.position)
    if file is not None:
        return _users(ls, file)
    return references(document, params.position, params.context.include_declaration)


async def _users(ls: Server, file: Path) -> list[types.Location]:
    """The recipes of the workspace, because any of them may use the file."""
    from cantrip_acp.lsp.recipes.references import users

    async with ls.analyzing_library:
        return await asyncio.to_thread(lambda: users(ls.library.all(ls.documents), file))


@_opened
def renaming(ls: Server, document: OpenDocument, params: types.PrepareRenameParams) -> types.Range | None:
    from cantrip_acp.lsp.recipes.references import renaming

    span = renaming(document, params.position)
    return document.text.range(*span) if span is not None else None


@_opened
def renamed(ls: Server, document: OpenDocument, params: types.RenameParams) -> types.WorkspaceEdit | None:
    from cantrip_acp.lsp.recipes.references import rename

    try:
        return rename(document, params.position, params.new_name)
    except ValueError as error:
        raise JsonRpcInvalidParams(str(error)) from None


def outgoing_calls(
    ls: Server, params: types.CallHierarchyOutgoingCallsParams
) -> list[types.CallHierarchyOutgoingCall] | None:
    found = _hierarchy(ls, params.item)
    return found[0].children_of(found[1]) if found is not None else None


def incoming_calls(
    ls: Server, params: types.CallHierarchyIncomingCallsParams
) -> list[types.CallHierarchyIncomingCall] | None:
    found = _hierarchy(ls, params.item)
    return found[0].parents_of(found[1]) if found is not None else None


def _hierarchy(ls: Server, item: types.CallHierarchyItem) -> tuple[EntityHierarchy, dict[str, Any]] | None:
    from cantrip_acp.lsp.recipes.call_hierarchy import EntityHierarchy

    document = ls.documents.recipe(item.uri)
    if document is None:
        return None
    return EntityHierarchy(document, ls.analysis(document).data), item.data if isinstance(item.data, dict) else {}


async def workspace_symbols(ls: Server, params: types.WorkspaceSymbolParams) -> list[types.WorkspaceSymbol]:
    from cantrip_acp.lsp.recipes.workspace_recipes import symbols

    async with ls.analyzing_library:
        return await asyncio.to_thread(lambda: symbols(ls.library.all(ls.documents), params.query))


def diagnostics(ls: Server, params: types.DocumentDiagnosticParams) -> Any:
    from cantrip_acp.lsp.server import pull_diagnostics

    document = ls.documents.recipe(params.text_document.uri)
    if document is None:
        return types.RelatedFullDocumentDiagnosticReport([])
    return pull_diagnostics.of_one(ls, document, params.previous_result_id)


async def workspace_diagnostics(ls: Server, params: types.WorkspaceDiagnosticParams) -> types.WorkspaceDiagnosticReport:
    from cantrip_acp.lsp.server import pull_diagnostics

    return await pull_diagnostics.of_all(ls, {each.uri: each.value for each in params.previous_result_ids})


_FENCE = re.compile(r"(?m)^```.*\n?")
_LINK = re.compile(r"\[([^\]\n]*)\]\([^)\n]*\)")
_RULE = re.compile(r"(?m)^---\n?")


def fitted(content: types.MarkupContent, formats: Sequence[types.MarkupKind] | None) -> types.MarkupContent:
    """Convert the content to a format that the client shows; plain text if it names no format."""
    if content.kind == types.MarkupKind.PlainText or types.MarkupKind.Markdown in (formats or ()):
        return content
    return types.MarkupContent(types.MarkupKind.PlainText, plain(content.value))


def plain(text: str) -> str:
    """Our Markdown as plain text: without fences, rules and stars; links become their text."""
    text = _RULE.sub("", _LINK.sub(r"\1", _FENCE.sub("", text)))
    return re.sub(r"\n{3,}", "\n\n", text.replace("**", "").replace(" ↗", "")).strip()
