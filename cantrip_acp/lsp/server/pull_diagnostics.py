"""Diagnostics that the client asks for, of one recipe and of all of the workspace, where it would rather ask than be told."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from lsprotocol import types

if TYPE_CHECKING:
    from cantrip_acp.lsp.server.documents import Held
    from cantrip_acp.lsp.server.server import Server

Report = types.RelatedFullDocumentDiagnosticReport | types.RelatedUnchangedDocumentDiagnosticReport


async def of_one(server: Server, held: Held, before: str | None) -> Report:
    """Of an open recipe. A first reading is done in a thread: a long recipe takes a while."""
    if held.reading is None and held.chunks is None:
        await server.first(held)
    found, name = _found(server, held)
    if name == before:
        return types.RelatedUnchangedDocumentDiagnosticReport(name)
    return types.RelatedFullDocumentDiagnosticReport(found, result_id=name)


async def of_all(server: Server, known: dict[str, str]) -> types.WorkspaceDiagnosticReport:
    """Of every recipe of the workspace, open or not; ``known`` are the names of earlier answers, by address."""

    def read() -> list[Held]:
        from cantrip_acp.lsp.recipes import diagnostics

        recipes = server.library.all(server.documents)
        for held in recipes:
            if held.reading is None:
                held.reading = diagnostics.read(held.text, held.path, server.documents.workspace(held.path))
        return recipes

    items: list[types.WorkspaceFullDocumentDiagnosticReport | types.WorkspaceUnchangedDocumentDiagnosticReport] = []
    async with server.reading_library:
        recipes = await asyncio.to_thread(read)
        for held in recipes:
            found, name = _found(server, held)
            if known.get(held.uri) == name:
                items.append(types.WorkspaceUnchangedDocumentDiagnosticReport(held.uri, name, held.version))
            else:
                items.append(types.WorkspaceFullDocumentDiagnosticReport(held.uri, found, held.version, result_id=name))
    return types.WorkspaceDiagnosticReport(items)


def _found(server: Server, held: Held) -> tuple[list[types.Diagnostic], str]:
    reading = server.told(held)
    said = [(f.span, f.rule, f.message, f.severity, f.related) for f in reading.findings]
    name = hashlib.sha256(repr((said, held.text.encoding)).encode("utf-8", "replace")).hexdigest()[:16]
    # Where a finding stands depends on the lines before it: the text counts as well.
    name += hashlib.sha256(held.text.source.encode("utf-8", "replace")).hexdigest()[:8] if said else ""
    return [server.diagnostic(held, finding) for finding in reading.findings], name
