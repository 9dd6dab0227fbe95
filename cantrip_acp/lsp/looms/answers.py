"""The server's answers for a loom's file, one function per request (`document_kinds`). They read the disk in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from cantrip_acp.lsp.looms.cache import path_of
from cantrip_acp.lsp.looms.document import LoomDocument
from cantrip_acp.types.errors import LoomError

if TYPE_CHECKING:
    from cantrip_acp.lsp.server.language_server import Server


def opened(ls: Server, item: types.TextDocumentItem) -> None:
    """Ignore the client's text: the file is read instead."""
    ls.looms.opened(item.uri)


def edited(
    ls: Server, about: types.VersionedTextDocumentIdentifier, changes: list[types.TextDocumentContentChangeEvent]
) -> None:
    """Ignore edits: a loom changes only on disk."""


def saved(ls: Server, uri: str) -> None:
    ls.looms.hurry()


def closed(ls: Server, uri: str) -> None:
    ls.looms.closed(uri)


async def _read(ls: Server, uri: str, tell: Callable[[LoomDocument], Any]) -> Any:
    """Read the loom at a URI with ``tell``, and return the result. None if the loom cannot be read; its diagnostics then say
    why."""
    path = path_of(uri)
    if path is None:
        return None
    book = await ls.looms.book(path)

    def read() -> Any:
        try:
            with book.lock:
                return tell(book) if book.broken is None else None
        except LoomError:
            return None

    return await asyncio.to_thread(read)


async def symbols(ls: Server, params: types.DocumentSymbolParams) -> Any:
    from cantrip_acp.lsp.looms import outline

    return await _read(ls, params.text_document.uri, outline.symbols)


async def folds(ls: Server, params: types.FoldingRangeParams) -> Any:
    from cantrip_acp.lsp.looms import outline

    return await _read(ls, params.text_document.uri, outline.folds)


async def lenses(ls: Server, params: types.CodeLensParams) -> Any:
    from cantrip_acp.lsp.looms import outline

    uri = params.text_document.uri
    return await _read(ls, uri, lambda book: outline.lenses(book, uri))


async def links(ls: Server, params: types.DocumentLinkParams) -> Any:
    from cantrip_acp.lsp.looms import links

    uri, encoding = params.text_document.uri, ls.documents.encoding
    return await _read(ls, uri, lambda book: links.links(book, uri, encoding))


async def hover(ls: Server, params: types.HoverParams) -> Any:
    from cantrip_acp.lsp.looms import document, links
    from cantrip_acp.lsp.looms import hover as hovering

    line, character, encoding = params.position.line, params.position.character, ls.documents.encoding
    markdown = types.MarkupKind.Markdown in ls.hover_formats

    def tell(book: LoomDocument) -> dict[str, Any] | None:
        position = book.lines.position(line)
        if position is None:
            said = document.of_line(book, line)
            value = hovering.fence(said) if said else ""
        else:
            name = links.word(book, position, character, encoding)
            number = book.index.numbers.get(name)
            other = number is not None and book.line(number) != line
            value = hovering.turn(book, number) if number is not None and other else hovering.record(book, position)
        if not value:
            return None
        if not markdown:
            return {"contents": {"kind": "plaintext", "value": hovering.unmarked(value)}}
        return {"contents": {"kind": "markdown", "value": value}}

    return await _read(ls, params.text_document.uri, tell)


async def definition(ls: Server, params: types.DefinitionParams) -> Any:
    from cantrip_acp.lsp.looms import links

    uri, where, encoding = params.text_document.uri, params.position, ls.documents.encoding

    def tell(book: LoomDocument) -> list[dict[str, Any]]:
        position = book.lines.position(where.line)
        if position is None:
            return []
        found = links.target(book, links.word(book, position, where.character, encoding))
        if found is None or found == where.line:
            found = links.above(book, position)
        return links.locations(uri, [] if found is None else [found])

    return await _read(ls, uri, tell)


async def references(ls: Server, params: types.ReferenceParams) -> Any:
    from cantrip_acp.lsp.looms import links

    uri, where, encoding = params.text_document.uri, params.position, ls.documents.encoding
    declared = params.context.include_declaration

    def tell(book: LoomDocument) -> list[dict[str, Any]]:
        position = book.lines.position(where.line)
        if position is None:
            return []
        name = links.word(book, position, where.character, encoding)
        target = links.target(book, name)
        if target is None:
            name = getattr(book.one(position), "id", "")
            target = links.target(book, name)
        found = links.references(book, name) if target is not None else []
        return links.locations(uri, [line for line in found if declared or line != target])

    return await _read(ls, uri, tell)


def diagnostics(ls: Server, params: types.DocumentDiagnosticParams) -> Any:
    """An empty report: damage is published when it is found, also for clients that pull diagnostics."""
    return types.RelatedFullDocumentDiagnosticReport([])
