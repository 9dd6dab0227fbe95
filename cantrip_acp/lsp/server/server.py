"""The server: open documents, and when what is wrong with them is said.

A change is read a few milliseconds after the last one that came with it, from the pieces that changed; once the typing
pauses the loader reads the whole text in a thread, and its word stands.
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
    from cantrip_acp.lsp.suites.results import Suites
    from cantrip_acp.recipes.build.python_files import Files


_log = logging.getLogger(__name__)

SOON_S = 0.004
PAUSE_S = 0.4

_SEVERITY = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "information": types.DiagnosticSeverity.Information,
    "hint": types.DiagnosticSeverity.Hint,
}


class Server(LanguageServer):
    """One client's server."""

    protocol: Protocol

    def __init__(self) -> None:
        super().__init__("cantrip", __version__, protocol_cls=Protocol)
        self.documents = Documents()
        self.works: dict[str | int, Callable[[], None]] = {}
        """What a client can cancel by the token of its progress."""
        self.casts = Casts()
        self.trusting = Trusting()
        self.leave: Callable[[], None] = lambda: os._exit(0)
        """What is done when the client is gone."""
        self._had_folders = False
        self._settled = False
        self._told: WeakKeyDictionary[Held, tuple[Text, Reading]] = WeakKeyDictionary()
        """The reading whose findings the client has, and of which text: in another the same places are others."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, params: types.InitializeParams) -> None:
        """Take what the client said of itself."""
        encoding = getattr(self.protocol.workspace, "position_encoding", None) or self.workspace.position_codec.encoding
        name = str(getattr(encoding, "value", encoding) or "utf-16")
        self.documents.encoding = "utf-8" if name == "utf-8" else "utf-32" if name == "utf-32" else "utf-16"
        self.roots()
        if params.process_id is not None:
            from cantrip_acp.lsp.server import client_watch

            client_watch.watch(params.process_id, lambda: self.leave())

    def roots(self) -> None:
        """The workspace's folders, which a client may change; open recipes are looked at again."""
        uris = list(self.workspace.folders)
        if not uris and self.workspace.root_uri and not self._had_folders:
            uris = [self.workspace.root_uri]  # an older client has one root, and no folders
        self._had_folders = self._had_folders or bool(self.workspace.folders)
        self.documents.folders = [Path(path) for uri in uris if (path := to_fs_path(uri))]
        self.again()

    def opened(self, item: types.TextDocumentItem) -> None:
        """A document that the client opened."""
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
        """A document that the client changed; of one that is not open there is nothing to change."""
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
            held.waiting = asyncio.get_running_loop().call_later(SOON_S, self._quickly, held)

    def closed(self, uri: str) -> None:
        """A document that the client let go of: nothing is said of it any more."""
        if self._of_kind(uri, "closed", uri):
            return
        held = self.documents.held.get(uri)
        self.documents.close(uri)
        if held is not None and held.recipe and not self.pulls:
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    @cached_property
    def looms(self) -> Shelf:
        """The looms that are in use."""
        from cantrip_acp.lsp.looms.cache import Shelf

        return Shelf(self)

    @cached_property
    def watching(self) -> Watching:
        """Who tells of files that change outside the editor."""
        from cantrip_acp.lsp.server.file_watch import Watching

        return Watching(self)

    def files_changed(self) -> None:
        """Files around the recipes changed: what was said of them, and what stands above them, is renewed."""
        self.again()
        self.lenses_changed()

    @cached_property
    def suites(self) -> Suites:
        """The suites that are open, and what came of their cases."""
        from cantrip_acp.lsp.suites.results import Suites

        return Suites(self)

    def _too_large(self, uri: str, text: str) -> bool:
        """Whether a text was left out of its message because of its length; then that is said of it."""
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
        """Whether a document is not a recipe; then its kind has been told of it."""
        kind = kinds.of(uri)
        if kind is None or kind.name == "recipe":
            return False
        told = kind.answer(name)
        if told is not None:
            told(self, *given)
        return True

    @cached_property
    def library(self) -> Library:
        """The recipes of the workspace that are not open; `reading_library` is for one thread at a time."""
        from cantrip_acp.lsp.recipes.workspace_recipes import Library

        return Library()

    @cached_property
    def reading_library(self) -> asyncio.Lock:
        return asyncio.Lock()

    @property
    def pulls(self) -> bool:
        """Whether the client asks for diagnostics by itself, and is not told of them."""
        document = self.client_capabilities.text_document
        return bool(document is not None and document.diagnostic is not None)

    def again(self) -> None:
        """Look at every open recipe once more: files around it may have changed."""
        if "library" in self.__dict__:
            self.library.forget()
        if "looms" in self.__dict__:
            self.looms.hurry()
        for held in self.documents.held.values():
            if held.recipe and (held.reading is not None or held.waiting is None):
                # What was just typed is read in a moment anyway.
                held.drop()
                held.waiting = asyncio.get_running_loop().call_later(SOON_S, self._thoroughly, held)

    def reading(self, held: Held) -> Reading:
        """What is known of a document's present text, read now if it was not yet."""
        if held.reading is None:
            self._read(held)
        assert held.reading is not None
        return held.reading

    def files(self) -> Files:
        """Files as the client has them: what is open counts, saved or not."""
        from cantrip_acp.recipes.build.python_files import Files

        files = Files()
        for held in self.documents.held.values():
            files.hold(held.path, held.text.readable.encode())
        return files

    async def show(self, uri: str, *, external: bool = False) -> bool:
        """Ask the client to show a document, or a page in the browser; whether it did."""
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
        """Have the client ask for lenses again, where it can."""
        workspace = self.client_capabilities.workspace
        if workspace is not None and workspace.code_lens is not None and workspace.code_lens.refresh_support:
            self.workspace_code_lens_refresh(None)

    async def close(self, patience: float = 3.0) -> None:
        """End what still runs, in so many seconds."""
        await self.casts.close(patience)

    @property
    def creates_files(self) -> bool:
        """Whether the client makes files where an edit says so."""
        workspace = self.client_capabilities.workspace
        edits = workspace.workspace_edit if workspace is not None else None
        kinds = (edits.resource_operations or ()) if edits is not None and edits.document_changes else ()
        return types.ResourceOperationKind.Create in kinds

    @cached_property
    def hover_formats(self) -> Sequence[types.MarkupKind]:
        """The formats that the client shows when the pointer rests; one that says nothing of it shows Markdown."""
        document = self.client_capabilities.text_document
        hover = document.hover if document is not None else None
        return (hover.content_format if hover is not None else None) or (types.MarkupKind.Markdown,)

    @cached_property
    def completion_formats(self) -> Sequence[types.MarkupKind]:
        """The formats of what is completed; one that says what it can and not this takes plain text."""
        document = self.client_capabilities.text_document
        item = document.completion.completion_item if document is not None and document.completion is not None else None
        return (types.MarkupKind.Markdown,) if item is None else item.documentation_format or ()

    @property
    def makes_progress(self) -> bool:
        """Whether the client shows progress that the server begins."""
        window = self.client_capabilities.window
        return bool(window is not None and window.work_done_progress)

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the messages, for as long as it takes."""
        self.beside(work).add_done_callback(self._done)

    def beside(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """As `keep`, where somebody waits for what comes of it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _log.error("a reading failed", exc_info=task.exception())

    def _read(self, held: Held) -> None:
        from cantrip_acp.lsp.recipes import diagnostics
        from cantrip_acp.lsp.recipes.syntax.chunks import Chunks

        if held.chunks is None:
            held.chunks = Chunks()
        held.reading = diagnostics.read(held.text, held.path, self.documents.workspace(held.path), held.chunks)

    def _quickly(self, held: Held) -> None:
        held.waiting = None
        if held.reading is None:
            self._read(held)
        self._publish(held)
        assert held.reading is not None
        if not held.reading.exact:
            held.waiting = asyncio.get_running_loop().call_later(PAUSE_S, self._thoroughly, held)

    def _thoroughly(self, held: Held) -> None:
        held.waiting = None
        self.keep(self._whole(held))

    async def _whole(self, held: Held) -> None:
        from cantrip_acp.lsp.recipes import diagnostics

        text = held.text
        workspace = self.documents.workspace(held.path)
        reading = await asyncio.to_thread(diagnostics.read, text, held.path, workspace)
        if held.text is text and self.documents.held.get(held.uri) is held:
            # What somebody had read meanwhile, to answer a request, was told to nobody.
            told, held.reading = self._told.get(held), reading
            if told is None or told[0] is not text or told[1].findings != reading.findings:
                self._publish(held)
            if not any(finding.severity == "error" for finding in reading.findings):
                asked = await asyncio.to_thread(self.trusting.asked, held.path, self.files(), workspace)
                before_asked, held.untrusted = held.untrusted, asked
                if before_asked != asked:
                    self.lenses_changed()

    async def first(self, held: Held) -> None:
        """The first reading of a document, done once whoever asks for it."""
        if held.first is None:
            held.first = self.beside(self._first(held))
        await asyncio.shield(held.first)

    async def _first(self, held: Held) -> None:
        from cantrip_acp.lsp.recipes.syntax.chunks import Chunks

        await self._whole(held)
        if held.chunks is None and not held.toml and len(held.text.starts) > 200:
            # The first keystroke finds the pieces ready.
            chunks = Chunks()
            try:
                await asyncio.to_thread(chunks.read, held.text.readable, held.path.name)
            except ValueError:  # said already
                pass
            held.chunks = held.chunks or chunks
        if not self._settled:
            # What was imported for the first recipe stays: without this, every so many keystrokes wait until all of it was
            # looked through for garbage.
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
            # What the client asked for since the last change is what this reading corrects.
            if held.reading.exact and asked is not None and asked.refresh_support:
                self.workspace_diagnostic_refresh(None)
            return
        found = [self.diagnostic(held, finding) for finding in held.reading.findings]
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(held.uri, found, held.version))

    def told(self, held: Held) -> Reading:
        """The present reading, which the client gets now: what is found out later is compared with it."""
        reading = self.reading(held)
        self._told[held] = held.text, reading
        return reading

    def diagnostic(self, held: Held, finding: Finding) -> types.Diagnostic:
        """A finding as the client is told of it."""
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
