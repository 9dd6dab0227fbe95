"""The server: open documents, and when their diagnostics are sent.
A changed recipe is read as a whole, in a thread, a few milliseconds after the last change.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from cantrip_acp.lsp.commands.casts import Casts
from cantrip_acp.lsp.commands.trust import Trusting
from cantrip_acp.lsp.server import document_kinds as kinds
from cantrip_acp.lsp.server.documents import Documents, Held
from cantrip_acp.lsp.server.large_messages import left_out
from cantrip_acp.lsp.server.protocol import Protocol
from cantrip_acp.recipes.parse.document import MAX_BYTES
from cantrip_acp.version import __version__

if TYPE_CHECKING:
    from cantrip_acp.lsp.looms.cache import Shelf
    from cantrip_acp.lsp.recipes.diagnostics import Finding, Reading
    from cantrip_acp.lsp.recipes.workspace_recipes import Library
    from cantrip_acp.lsp.server.file_watch import Watching
    from cantrip_acp.lsp.server.positions import Text
    from cantrip_acp.recipes.build.python_files import Files


_log = logging.getLogger(__name__)

SOON_S = 0.004

_SEVERITY = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "information": types.DiagnosticSeverity.Information,
    "hint": types.DiagnosticSeverity.Hint,
}


class Server(LanguageServer):
    """The server of one client."""

    protocol: Protocol

    def __init__(self) -> None:
        super().__init__("cantrip", __version__, protocol_cls=Protocol)
        self.documents = Documents()
        self.works: dict[str | int, Callable[[], None]] = {}
        """What the client can cancel, by progress token."""
        self.casts = Casts()
        self.trusting = Trusting()
        self.leave: Callable[[], None] = lambda: os._exit(0)
        """Called when the client's process is gone."""
        self._had_folders = False
        self._settled = False
        self._told: WeakKeyDictionary[Held, tuple[Text, Reading]] = WeakKeyDictionary()
        """The text and the reading whose findings the client has. In another text the same spans are other places."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, params: types.InitializeParams) -> None:
        """Store what the client said in ``initialize``."""
        encoding = getattr(self.protocol.workspace, "position_encoding", None) or self.workspace.position_codec.encoding
        name = str(getattr(encoding, "value", encoding) or "utf-16")
        self.documents.encoding = "utf-8" if name == "utf-8" else "utf-32" if name == "utf-32" else "utf-16"
        self.roots()
        if params.process_id is not None:
            from cantrip_acp.lsp.server import client_watch

            client_watch.watch(params.process_id, lambda: self.leave())

    def roots(self) -> None:
        """Update the workspace's folders, and check open recipes again."""
        uris = list(self.workspace.folders)
        if not uris and self.workspace.root_uri and not self._had_folders:
            uris = [self.workspace.root_uri]  # older clients send one root instead of folders
        self._had_folders = self._had_folders or bool(self.workspace.folders)
        self.documents.folders = [Path(path) for uri in uris if (path := to_fs_path(uri))]
        self.again()

    def opened(self, item: types.TextDocumentItem) -> None:
        """The client opened a document."""
        if self._of_kind(item.uri, "opened", item):
            return
        if self._too_large(item.uri, item.text):
            return
        held = self.documents.open(item)
        if held.recipe:
            self.keep(self.first(held))

    def edited(
        self, about: types.VersionedTextDocumentIdentifier, changes: list[types.TextDocumentContentChangeEvent]
    ) -> None:
        """The client changed a document; ignored if the document is not open."""
        if self._of_kind(about.uri, "edited", about, changes):
            return
        held = self.documents.held.get(about.uri)
        if held is None:
            return
        if any(self._too_large(about.uri, change.text) for change in changes):
            self.documents.close(about.uri)
            return
        held.change(changes, about.version)
        if held.recipe:
            held.drop()
            held.waiting = asyncio.get_running_loop().call_later(SOON_S, self._start_reading, held)

    def closed(self, uri: str) -> None:
        """The client closed a document: clear its diagnostics."""
        if self._of_kind(uri, "closed", uri):
            return
        held = self.documents.held.get(uri)
        self.documents.close(uri)
        if held is not None and held.recipe and not self.pulls:
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    @cached_property
    def looms(self) -> Shelf:
        """The looms in use."""
        from cantrip_acp.lsp.looms.cache import Shelf

        return Shelf(self)

    @cached_property
    def watching(self) -> Watching:
        """Notices files that change outside the editor."""
        from cantrip_acp.lsp.server.file_watch import Watching

        return Watching(self)

    def files_changed(self) -> None:
        """Files around the recipes changed: check recipes again and refresh lenses."""
        self.again()
        self.lenses_changed()

    def _too_large(self, uri: str, text: str) -> bool:
        """Whether a text was left out of its message because it is too long; if so, publish a diagnostic."""
        size = left_out(text)
        if size:
            why = f"this file is too large to be looked at ({size / 1e6:.1f} MB; a recipe has at most {MAX_BYTES / 1e6:.1f})"
            where = types.Range(types.Position(0, 0), types.Position(0, 1))
            said = types.Diagnostic(
                where, why, severity=types.DiagnosticSeverity.Warning, source="cantrip", code="schema"
            )
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, [said]))
        return size > 0

    def _of_kind(self, uri: str, name: str, *given: Any) -> bool:
        """Whether a document is not a recipe; if so, call its kind's function ``name``."""
        kind = kinds.of(uri)
        if kind is None or kind.name == "recipe":
            return False
        told = kind.answer(name)
        if told is not None:
            told(self, *given)
        return True

    @cached_property
    def library(self) -> Library:
        """The recipes of the workspace that are not open. Hold `reading_library` to use it: one thread at a time."""
        from cantrip_acp.lsp.recipes.workspace_recipes import Library

        return Library()

    @cached_property
    def reading_library(self) -> asyncio.Lock:
        return asyncio.Lock()

    @property
    def pulls(self) -> bool:
        """Whether the client pulls diagnostics, so that none are published."""
        document = self.client_capabilities.text_document
        return bool(document is not None and document.diagnostic is not None)

    def again(self) -> None:
        """Check every open recipe again: files around it may have changed."""
        if "library" in self.__dict__:
            self.library.forget()
        if "looms" in self.__dict__:
            self.looms.hurry()
        for held in self.documents.held.values():
            if held.recipe and (held.reading is not None or held.waiting is None):
                # A text that was just changed is read soon anyway.
                held.drop()
                held.waiting = asyncio.get_running_loop().call_later(SOON_S, self._start_reading, held)

    def reading(self, held: Held) -> Reading:
        """The reading of a document's current text; reads it now if needed."""
        if held.reading is None:
            from cantrip_acp.lsp.recipes import diagnostics

            held.reading = diagnostics.read(held.text, held.path, self.documents.workspace(held.path))
        return held.reading

    def files(self) -> Files:
        """Files as the client sees them: open documents replace the files on disk."""
        from cantrip_acp.recipes.build.python_files import Files

        files = Files()
        for held in self.documents.held.values():
            files.hold(held.path, held.text.readable.encode())
        return files

    async def show(self, uri: str, *, external: bool = False) -> bool:
        """Ask the client to show a document, or a page in the browser; return whether it did."""
        window = self.client_capabilities.window
        if window is None or window.show_document is None or not window.show_document.support:
            return False
        params = types.ShowDocumentParams(uri, external=external, take_focus=True)
        try:
            shown = await asyncio.wait_for(self.window_show_document_async(params), 10)
        except (JsonRpcException, TimeoutError):
            return False
        return bool(shown is not None and shown.success)

    def lenses_changed(self) -> None:
        """Ask the client to request lenses again, if it can."""
        workspace = self.client_capabilities.workspace
        if workspace is not None and workspace.code_lens is not None and workspace.code_lens.refresh_support:
            self.workspace_code_lens_refresh(None)

    async def close(self, patience: float = 3.0) -> None:
        """Cancel running casts, and wait for them at most ``patience`` seconds."""
        await self.casts.close(patience)

    @property
    def creates_files(self) -> bool:
        """Whether the client can create files from an edit."""
        workspace = self.client_capabilities.workspace
        edits = workspace.workspace_edit if workspace is not None else None
        kinds = (edits.resource_operations or ()) if edits is not None and edits.document_changes else ()
        return types.ResourceOperationKind.Create in kinds

    @cached_property
    def hover_formats(self) -> Sequence[types.MarkupKind]:
        """The formats that the client shows in hovers; Markdown if it does not say."""
        document = self.client_capabilities.text_document
        hover = document.hover if document is not None else None
        return (hover.content_format if hover is not None else None) or (types.MarkupKind.Markdown,)

    @cached_property
    def completion_formats(self) -> Sequence[types.MarkupKind]:
        """The formats of completion documentation. If the client lists its abilities without this one, plain text."""
        document = self.client_capabilities.text_document
        item = document.completion.completion_item if document is not None and document.completion is not None else None
        return (types.MarkupKind.Markdown,) if item is None else item.documentation_format or ()

    @property
    def makes_progress(self) -> bool:
        """Whether the client shows progress that the server begins."""
        window = self.client_capabilities.window
        return bool(window is not None and window.work_done_progress)

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task in the background; errors are logged."""
        self.beside(work).add_done_callback(self._done)

    def beside(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """As `keep`, but the caller waits for the result."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _log.error("a reading failed", exc_info=task.exception())

    def _start_reading(self, held: Held) -> None:
        held.waiting = None
        self.keep(self.read(held))

    async def read(self, held: Held) -> None:
        """Read a recipe in a thread and publish its diagnostics, if the text is still the current one then."""
        from cantrip_acp.lsp.recipes import diagnostics

        text = held.text
        workspace = self.documents.workspace(held.path)
        reading = await asyncio.to_thread(diagnostics.read, text, held.path, workspace)
        if held.text is not text or self.documents.held.get(held.uri) is not held:
            return
        # A request may have read this text meanwhile, but the client has not received that reading.
        told, held.reading = self._told.get(held), reading
        if told is None or told[0] is not text or told[1].findings != reading.findings:
            self._publish(held)
        if not any(finding.severity == "error" for finding in reading.findings):
            asked = await asyncio.to_thread(self.trusting.asked, held.path, self.files(), workspace)
            before_asked, held.untrusted = held.untrusted, asked
            if before_asked != asked:
                self.lenses_changed()

    async def first(self, held: Held) -> None:
        """The first reading of a document; it runs once, also with several callers."""
        if held.first is None:
            held.first = self.beside(self._first(held))
        await asyncio.shield(held.first)

    async def _first(self, held: Held) -> None:
        await self.read(held)
        if not self._settled:
            # Objects imported for the first recipe stay. Without this, some keystrokes would wait until the garbage
            # collector has checked them all.
            self._settled = True
            gc.freeze()

    def _publish(self, held: Held) -> None:
        if held.reading is None:
            return
        self.watching.soon()
        self._told[held] = held.text, held.reading
        if self.pulls:
            workspace = self.client_capabilities.workspace
            asked = workspace.diagnostics if workspace is not None else None
            # This reading replaces what the client pulled since the last change.
            if asked is not None and asked.refresh_support:
                self.workspace_diagnostic_refresh(None)
            return
        found = [self.diagnostic(held, finding) for finding in held.reading.findings]
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(held.uri, found, held.version))

    def told(self, held: Held) -> Reading:
        """The current reading, which the client receives now: a later reading is compared with it."""
        reading = self.reading(held)
        self._told[held] = held.text, reading
        return reading

    def diagnostic(self, held: Held, finding: Finding) -> types.Diagnostic:
        """A finding as the protocol's diagnostic."""
        from cantrip_acp.lsp.recipes import rules

        return types.Diagnostic(
            held.text.range(*finding.span),
            finding.message,
            severity=_SEVERITY[finding.severity],
            code=finding.rule,
            code_description=types.CodeDescription(rules.link(finding.rule)),
            source="cantrip",
            tags=[types.DiagnosticTag.Deprecated] if finding.rule == "legacy-key" else None,
            related_information=[
                types.DiagnosticRelatedInformation(types.Location(held.uri, held.text.range(*span)), why)
                for span, why in finding.related
            ]
            or None,
        )
