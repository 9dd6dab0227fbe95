"""Pull diagnostics: for clients that request diagnostics, of one recipe or of the whole workspace."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from lsprotocol import types

if TYPE_CHECKING:
    from cantrip_acp.lsp.server.documents import OpenDocument
    from cantrip_acp.lsp.server.language_server import Server

Report = types.RelatedFullDocumentDiagnosticReport | types.RelatedUnchangedDocumentDiagnosticReport


async def of_one(server: Server, document: OpenDocument, before: str | None) -> Report:
    """Diagnostics of an open recipe. The first analysis runs in a thread, because a long recipe takes time."""
    if document.analysis is None and document.first is None:
        await server.first(document)
    found, name = _found(server, document)
    if name == before:
        return types.RelatedUnchangedDocumentDiagnosticReport(name)
    return types.RelatedFullDocumentDiagnosticReport(found, result_id=name)


async def of_all(server: Server, known: dict[str, str]) -> types.WorkspaceDiagnosticReport:
    """Diagnostics of every recipe of the workspace, open or not. ``known`` are the ids of earlier results, by URI."""

    def read() -> list[OpenDocument]:
        from cantrip_acp.lsp.recipes import diagnostics

        recipes = server.library.all(server.documents)
        for document in recipes:
            if document.analysis is None:
                document.analysis = diagnostics.read(
                    document.text, document.path, server.documents.workspace(document.path)
                )
        return recipes

    items: list[types.WorkspaceFullDocumentDiagnosticReport | types.WorkspaceUnchangedDocumentDiagnosticReport] = []
    async with server.analyzing_library:
        recipes = await asyncio.to_thread(read)
        for document in recipes:
            found, name = _found(server, document)
            if known.get(document.uri) == name:
                items.append(types.WorkspaceUnchangedDocumentDiagnosticReport(document.uri, name, document.version))
            else:
                items.append(
                    types.WorkspaceFullDocumentDiagnosticReport(document.uri, found, document.version, result_id=name)
                )
    return types.WorkspaceDiagnosticReport(items)


def _found(server: Server, document: OpenDocument) -> tuple[list[types.Diagnostic], str]:
    analysis = server.analysis_to_send(document)
    said = [(f.span, f.rule, f.message, f.severity, f.related) for f in analysis.findings]
    name = hashlib.sha256(repr((said, document.text.encoding)).encode("utf-8", "replace")).hexdigest()[:16]
    # The position of a finding depends on the lines before it, so the id includes the text.
    name += hashlib.sha256(document.text.source.encode("utf-8", "replace")).hexdigest()[:8] if said else ""
    return [server.diagnostic(document, finding) for finding in analysis.findings], name
