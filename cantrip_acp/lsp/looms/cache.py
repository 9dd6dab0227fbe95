"""Loom cache: the looms that the client has open or that a tree view asked for. All are followed while they grow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lsprotocol import types
from pygls.uris import from_fs_path, to_fs_path

from cantrip_acp.lsp.looms.document import LoomDocument
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import LoomError

if TYPE_CHECKING:
    from cantrip_acp.loom.view import View

_log = logger(__name__)

LOOK_S = 0.25
"""Seconds between two looks for changes; four times as long if nothing has changed for `LIVELY_S` seconds."""
LIVELY_S = 10.0
UNUSED_S = 600.0
"""Seconds after which an unused loom is closed."""
CHANGED = "cantrip/loom/changed"
LIST_CHANGED = "cantrip/loom/listChanged"


class LoomClient(Protocol):
    """The part of the server that the cache uses: background tasks, and messages to the client."""

    @property
    def protocol(self) -> Any: ...
    def keep(self, work: Coroutine[Any, Any, None]) -> None: ...
    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]: ...
    def lenses_changed(self) -> None: ...
    def text_document_publish_diagnostics(self, params: types.PublishDiagnosticsParams) -> None: ...


class LoomCache:
    """One server's looms, by path."""

    def __init__(self, server: LoomClient) -> None:
        self._server = server
        self._books: dict[Path, LoomDocument] = {}
        self._loading: dict[Path, asyncio.Task[None]] = {}
        self._uris: dict[Path, str] = {}
        """The looms that the client has open, with the URI that it uses."""
        self._used: dict[Path, float] = {}
        self._seen: dict[Path, int] = {}
        """The version that the client knows."""
        self._sent: dict[Path, list[types.Diagnostic]] = {}
        self._folders: dict[Path, int] = {}
        self._following: asyncio.Task[None] | None = None
        self._moved = 0.0
        self._views: dict[Path, tuple[View, tuple[str, ...]]] = {}
        self._serving = threading.Lock()
        self._hurry = asyncio.Event()

    def opened(self, uri: str) -> None:
        path = path_of(uri)
        if path is not None:
            self._uris[path] = uri
            self._server.keep(self._first(path))

    def closed(self, uri: str) -> None:
        """Clear the diagnostics of a loom that the client closed."""
        path = path_of(uri)
        if path is not None and self._uris.pop(path, None) is not None:
            self._sent.pop(path, None)
            self._publish(uri, [])

    def hurry(self) -> None:
        """Look for changes now."""
        self._hurry.set()

    def folders(self, folders: list[Path]) -> None:
        """Tell the client from now on when looms appear in these folders or disappear."""
        for folder in folders:
            self._folders.setdefault(folder, _state(folder))
        self._follow()

    async def book(self, path: Path) -> LoomDocument:
        """A loom, read up to its current end. If it cannot be read, ``broken`` says why."""
        self._used[path] = time.monotonic()
        book = self._books.get(path)
        if book is None:
            book = self._books[path] = LoomDocument(path)
            self._loading[path] = self._server.start_task(asyncio.to_thread(book.load))
        loading = self._loading.get(path)
        if loading is not None:
            # The request may be cancelled; the loom is still read to its end.
            await asyncio.shield(loading)
            if self._loading.pop(path, None) is not None:
                self._seen[path] = book.version
        else:
            # Include what was written just now.
            await asyncio.to_thread(book.look)
        self._follow()
        return book

    def view(self, path: Path, hosts: tuple[str, ...], frames: tuple[str, ...]) -> View:
        """Serve a loom's page until the server ends. Raises `LoomError` if it cannot be shown.
        Takes a moment; call it in a thread. ``hosts`` are names under which a proxy shows it.
        """
        from cantrip_acp.loom.view import serve

        with self._serving:
            known = self._views.get(path)
            if known is not None:
                if known[1] == hosts and known[0].trouble(0.0) is None:
                    return known[0]
                known[0].close()
                del self._views[path]
            # The new host names still belong to the old port.
            port = known[0].port if known is not None and hosts else 0
            view = serve(path, port=port, hosts=hosts, frames=frames)
            trouble = view.trouble()
            if trouble is not None:
                view.close()
                raise LoomError(trouble)
            self._views[path] = view, hosts
            return view

    async def _first(self, path: Path) -> None:
        await self._diagnose(path, await self.book(path))

    def _follow(self) -> None:
        self._moved = time.monotonic()
        if self._following is None or self._following.done():
            self._following = self._server.start_task(self._followed())

    async def _followed(self) -> None:
        while self._books or self._folders:
            lively = time.monotonic() - self._moved < LIVELY_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), LOOK_S if lively else 4 * LOOK_S)
            self._hurry.clear()
            self._close_unused()
            try:
                await self._refresh()
            except Exception:  # noqa: BLE001 - a loom that cannot be followed must not stop the others
                _log.exception("a loom could not be followed")

    async def _refresh(self) -> None:
        books = {path: book for path, book in self._books.items() if path not in self._loading}
        folders = dict(self._folders)
        states = await asyncio.to_thread(_refresh_books, list(books.values()), list(folders))
        for path, book in books.items():
            if book.version != self._seen.get(path) and self._books.get(path) is book:
                self._seen[path] = book.version
                self._moved = time.monotonic()
                self._changed(path, book)
                await self._diagnose(path, book)
        for folder, state in states.items():
            if state != folders[folder]:
                self._folders[folder] = state
                self._moved = time.monotonic()
                self._server.protocol.notify(LIST_CHANGED, {"folder": from_fs_path(str(folder))})

    def _changed(self, path: Path, book: LoomDocument) -> None:
        uri = self._uris.get(path) or from_fs_path(str(path))
        about = {"uri": uri, "version": book.version, "turns": len(book.index), "casts": len(book.index.casts)}
        self._server.protocol.notify(CHANGED, {**about, "problem": book.broken})
        if path in self._uris:
            self._server.lenses_changed()

    async def _diagnose(self, path: Path, book: LoomDocument) -> None:
        uri = self._uris.get(path)
        if uri is None:
            return
        from cantrip_acp.lsp.looms import document

        found = await asyncio.to_thread(document.findings, book)
        if self._uris.get(path) == uri and self._sent.get(path) != found:
            self._sent[path] = found
            self._publish(uri, found)

    def _publish(self, uri: str, found: list[types.Diagnostic]) -> None:
        self._server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, found))

    def _close_unused(self) -> None:
        now = time.monotonic()
        for path in [p for p in self._books if p not in self._uris and p not in self._loading]:
            if now - self._used.get(path, 0.0) > UNUSED_S:
                self._books.pop(path).close()
                self._used.pop(path, None)
                self._seen.pop(path, None)


def path_of(uri: str) -> Path | None:
    """The file at a URI; None if it is not a file URI."""
    path = to_fs_path(uri) if uri.startswith("file:") else None
    return Path(os.path.abspath(path)) if path and "\0" not in path else None


def _refresh_books(books: list[LoomDocument], folders: list[Path]) -> dict[Path, int]:
    for book in books:
        book.look()
    return {folder: _state(folder) for folder in folders}


def _state(folder: Path) -> int:
    """A number that changes when files come to the folder or go."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0
