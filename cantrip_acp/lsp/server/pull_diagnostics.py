"""Pull diagnostics: for clients that request diagnostics, of one recipe or of the whole workspace."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from lsprotocol import types

if TYPE_CHECKING:
    from cantrip_acp.lsp.server.documents import OpenDocument
    from cantrip_acp.lsp.server.server import Server

Report = types.RelatedFullDocumentDiagnosticReport | types.RelatedUnchangedDocumentDiagnosticReport


async def of_one(server: Server, held: OpenDocument, before: str | None) -> Report:
    """Diagnostics of an open recipe. The first reading runs in a thread, because a long recipe takes time."""
    if held.reading is None and held.first is None:
        await server.first(held)
    found, name = _found(server, held)
    if name == before:
        return types.RelatedUnchangedDocumentDiagnosticReport(name)
    return types.RelatedFullDocumentDiagnosticReport(found, result_id=name)


async def of_all(server: Server, known: dict[str, str]) -> types.WorkspaceDiagnosticReport:
    """Diagnostics of every recipe of the workspace, open or not. ``known`` are the ids of earlier results, by URI."""

    def read() -> list[OpenDocument]:
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


def _found(server: Server, held: OpenDocument) -> tuple[list[types.Diagnostic], str]:
    reading = server.told(held)
    said = [(f.span, f.rule, f.message, f.severity, f.related) for f in reading.findings]
    name = hashlib.sha256(repr((said, held.text.encoding)).encode("utf-8", "replace")).hexdigest()[:16]
    # The position of a finding depends on the lines before it, so the id includes the text.
    name += hashlib.sha256(held.text.source.encode("utf-8", "replace")).hexdigest()[:8] if said else ""
    return [server.diagnostic(held, finding) for finding in reading.findings], name
