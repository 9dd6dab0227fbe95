"""The server's answers for a recipe, one function per request. Each imports its module at the first request."""

from __future__ import annotations

import asyncio
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
    """Answer only for recipes that the client has open."""

    @wraps(answer)
    def for_recipe(ls: Server, params: Any) -> T | None:
        document = ls.documents.recipe(params.text_document.uri)
        return answer(ls, document, params) if document is not None else None

    return for_recipe


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
    """Add what a session of this recipe would read now."""
    from cantrip_acp.lsp.knowledge import hover_text

    data, folder = ls.analysis(document).data, ls.documents.workspace(document.path)
    read = await asyncio.to_thread(hover_text, data.get("memory") if isinstance(data, dict) else None, folder)
    if read:
        content = types.MarkupContent(content.kind, f"{content.value}\n\n---\n\n{read}")
    found.contents = fitted(content, ls.hover_formats)
    return found


@_opened
def code_actions(ls: Server, document: OpenDocument, params: types.CodeActionParams) -> list[types.CodeAction]:
    from cantrip_acp.lsp.recipes.fixes.code_actions import actions

    workspace = ls.documents.workspace(document.path)
    return actions(document, ls.analysis(document), params, ls.diagnostic, workspace, creates=ls.creates_files)


@_opened
def lenses(ls: Server, document: OpenDocument, params: types.CodeLensParams) -> list[types.CodeLens]:
    from cantrip_acp.lsp.recipes.lenses import lenses

    return lenses(ls, document)


@_opened
def symbols(ls: Server, document: OpenDocument, params: types.DocumentSymbolParams) -> list[dict[str, Any]]:
    from cantrip_acp.lsp.recipes.outline import symbols

    return symbols(document)


@_opened
def folds(ls: Server, document: OpenDocument, params: types.FoldingRangeParams) -> list[types.FoldingRange]:
    from cantrip_acp.lsp.recipes.outline import folds

    return folds(document)


@_opened
def formatting(ls: Server, document: OpenDocument, params: types.DocumentFormattingParams) -> list[types.TextEdit]:
    from cantrip_acp.lsp.recipes.formatting import edits

    return edits(document)


@_opened
def definition(ls: Server, document: OpenDocument, params: types.DefinitionParams) -> list[types.Location]:
    from cantrip_acp.lsp.recipes.references import definition

    return definition(document, params.position)


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
    """Any recipe of the workspace may use the file."""
    from cantrip_acp.lsp.recipes.references import users

    async with ls.analyzing_library:
        return await asyncio.to_thread(lambda: users(ls.library.all(ls.documents), file))


@_opened
def links(ls: Server, document: OpenDocument, params: types.DocumentLinkParams) -> list[types.DocumentLink]:
    from cantrip_acp.lsp.recipes.references import links

    return links(document)


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


@_opened
def highlights(
    ls: Server, document: OpenDocument, params: types.DocumentHighlightParams
) -> list[types.DocumentHighlight]:
    from cantrip_acp.lsp.recipes.outline import highlights

    return highlights(document, params.position)


@_opened
def selections(ls: Server, document: OpenDocument, params: types.SelectionRangeParams) -> list[types.SelectionRange]:
    from cantrip_acp.lsp.recipes.outline import selections

    return selections(document, list(params.positions))


@_opened
def linked(
    ls: Server, document: OpenDocument, params: types.LinkedEditingRangeParams
) -> types.LinkedEditingRanges | None:
    from cantrip_acp.lsp.recipes.outline import linked

    return linked(document, params.position)


@_opened
def tokens(ls: Server, document: OpenDocument, params: types.SemanticTokensParams) -> types.SemanticTokens:
    from cantrip_acp.lsp.recipes import semantic_tokens

    return semantic_tokens.full_tokens(document)


@_opened
def tokens_changed(
    ls: Server, document: OpenDocument, params: types.SemanticTokensDeltaParams
) -> types.SemanticTokens | types.SemanticTokensDelta:
    from cantrip_acp.lsp.recipes import semantic_tokens

    return semantic_tokens.changed(document, params.previous_result_id)


@_opened
def tokens_of_part(ls: Server, document: OpenDocument, params: types.SemanticTokensRangeParams) -> types.SemanticTokens:
    from cantrip_acp.lsp.recipes import semantic_tokens

    return semantic_tokens.part(document, params.range)


@_opened
def hints(ls: Server, document: OpenDocument, params: types.InlayHintParams) -> list[types.InlayHint]:
    from cantrip_acp.lsp.recipes.inlay_hints import hints

    return hints(document, ls.analysis(document).data, params.range)


@_opened
def prepare_call_hierarchy(
    ls: Server, document: OpenDocument, params: types.CallHierarchyPrepareParams
) -> list[types.CallHierarchyItem]:
    from cantrip_acp.lsp.recipes.call_hierarchy import EntityHierarchy

    return EntityHierarchy(document, ls.analysis(document).data).at(params.position)


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
    """The content in a format that the client shows; plain text if it names no format."""
    if content.kind == types.MarkupKind.PlainText or types.MarkupKind.Markdown in (formats or ()):
        return content
    return types.MarkupContent(types.MarkupKind.PlainText, plain(content.value))


def plain(text: str) -> str:
    """Our Markdown as plain text: without fences, rules and stars; links become their text."""
    text = _RULE.sub("", _LINK.sub(r"\1", _FENCE.sub("", text)))
    return re.sub(r"\n{3,}", "\n\n", text.replace("**", "").replace(" ↗", "")).strip()
