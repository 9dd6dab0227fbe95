"""File watch: notices files that change outside the editor. The client watches its folders if it can; others are watched here.
Files around a recipe affect its diagnostics: its children's recipes, prompts, gate files, roots, trust, model tables.
If one of them changes, every open recipe is checked again. Looms are followed by `looms/cache.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from cantrip_acp.recipes.parse.document import SUFFIXES
from cantrip_acp.text.logs import logger

if TYPE_CHECKING:
    from cantrip_acp.lsp.server.language_server import Server

_log = logger(__name__)

SOON_S = 0.3
"""Seconds from a change of the open documents until the watched folders are updated."""
STEP_MS, DEBOUNCE_MS = 50, 300
LOOK_MS = 1_000
"""Milliseconds after which the watch surely runs."""
AGAIN_S = 5.0
"""Seconds before a failed watch is tried again."""

GLOBS = (*(f"**/*{suffix}" for suffix in SUFFIXES), "**/*.loom.jsonl", "**/.cantrip/**")
"""The patterns of files that a client watches in its folders."""


class FileWatch:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._client = False
        """Whether the client watches its folders."""
        self._timer: asyncio.TimerHandle | None = None
        self._folders: frozenset[Path] = frozenset()
        self._names: frozenset[Path] = frozenset()
        self._task: asyncio.Task[Any] | None = None

    async def begin(self) -> None:
        """Ask the client to watch files, if it can."""
        workspace = self._server.client_capabilities.workspace
        watched = workspace.did_change_watched_files if workspace is not None else None
        if watched is not None and watched.dynamic_registration:
            watchers = [types.FileSystemWatcher(glob) for glob in GLOBS]
            options = types.DidChangeWatchedFilesRegistrationOptions(watchers)
            method = types.WORKSPACE_DID_CHANGE_WATCHED_FILES
            registration = types.Registration("cantrip-files", method, options)
            with contextlib.suppress(Exception):
                # If the client refuses, the server watches.
                await self._server.client_register_capability_async(types.RegistrationParams([registration]))
                self._client = True
        self.update_soon()

    def changed(self, uris: list[str]) -> None:
        """Handle files that the client reports as changed. Looms are ignored: they grow with every turn and do not affect
        recipes."""
        if all(uri.endswith(".loom.jsonl") for uri in uris):
            if "looms" in self._server.__dict__:
                self._server.looms.hurry()
        else:
            self._server.files_changed()

    def update_soon(self) -> None:
        """Update the watched folders soon: the open documents or the files that they name have changed."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON_S, self._renew)

    def _renew(self) -> None:
        self._timer = None
        self._server.keep(self._watch())

    async def _watch(self) -> None:
        opened = [document for document in self._server.documents.by_uri.values() if document.recipe]
        read = [
            (document.path, document.analysis.data if document.analysis is not None else None) for document in opened
        ]
        roots = list(self._server.documents.folders)
        workspaces = [self._server.documents.workspace(path) for path, _ in read]
        folders, names = await asyncio.to_thread(_wanted, read, workspaces, roots, self._client)
        self._names = names
        if folders == self._folders and self._task is not None and not self._task.done():
            return
        self._folders = folders
        before, self._task = self._task, None
        if before is not None:
            before.cancel()
        if folders:
            self._task = self._server.start_task(self._watched(folders))

    async def _watched(self, folders: frozenset[Path]) -> None:
        from watchfiles import DefaultFilter, awatch

        while True:
            try:
                there = [folder for folder in folders if folder.is_dir()]
                options: dict[str, Any] = {"step": STEP_MS, "debounce": DEBOUNCE_MS, "recursive": False}
                options |= {"rust_timeout": LOOK_MS, "yield_on_timeout": True}
                begun = False
                async for changes in awatch(*there, watch_filter=DefaultFilter(), **options):
                    if not begun:
                        # Changes between two watches are not reported, so check everything once.
                        begun = True
                        self._server.recheck()
                    self._on_changes({Path(name) for _, name in changes})
                    if any(not folder.is_dir() for folder in there):
                        break
            except (OSError, RuntimeError) as error:
                # This machine's limit of watches is reached, or a folder was removed at this moment.
                _log.info("files are not watched for a while: %s", error)
            await asyncio.sleep(AGAIN_S)
            self.update_soon()

    def _on_changes(self, paths: set[Path]) -> None:
        if any(
            path in self._names or path.name.endswith((*SUFFIXES, "models.toml")) or _is_recipe_state(path)
            for path in paths
        ):
            self._server.files_changed()
            # A folder that did not exist may exist now.
            self.update_soon()


def _is_recipe_state(path: Path) -> bool:
    return ".cantrip" in path.parts


def _wanted(
    read: list[tuple[Path, Any]], workspaces: list[Path], roots: list[Path], client: bool
) -> tuple[frozenset[Path], frozenset[Path]]:
    """The folders to watch here, and the files in them that matter besides recipes."""
    from cantrip_acp.files.paths import config_dir
    from cantrip_acp.lsp.recipes import file_references

    if not read:
        return frozenset(), frozenset()
    folders: set[Path] = {config_dir()}
    names: set[Path] = set()
    for (path, data), workspace in zip(read, workspaces, strict=True):
        if not client or not any(path.is_relative_to(root) for root in roots):
            folders |= {path.parent, workspace / ".cantrip"}
        with contextlib.suppress(ValueError, TypeError):
            files = [
                file_references.path_beside(path.parent, name)
                for _, name, _ in file_references.named(data)
                if _is_valid_name(name)
            ]
            files += [
                file_references.path_beside(workspace, name)
                for _, name in file_references.roots(data)
                if _is_valid_name(name)
            ]
            for file in files:
                names |= {file, file.parent}
                folders.add(file.parent)
    return frozenset(_there(folder) for folder in folders), frozenset(names)


def _is_valid_name(name: str) -> bool:
    return bool(name.strip()) and "\0" not in name


def _there(folder: Path) -> Path:
    """The folder, or its nearest existing parent, so that its creation is noticed."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder
