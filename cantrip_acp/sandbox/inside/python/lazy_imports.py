"""Lazy imports: calls functions when a module is first imported, and finds editable installs only when needed."""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

globals()["__builtins__"] = dict(vars(builtins))


class _NotifyingLoader:
    """Wraps the loader of a module and calls the callbacks after the module was loaded."""

    def __init__(self, loader: Any, actions: list[Callable[[Any], None]]) -> None:
        self._loader = loader
        self._actions = actions

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for action in self._actions:
            action(module)


class _ImportWatcher:
    """First finder on ``sys.meta_path``: notices the first import of modules that have callbacks."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[Any], None]]] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        actions = self.waiting.pop(name, None)
        if actions is None:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            found: ModuleSpec | None = finder.find_spec(name, path, target)
            if found is not None:
                found.loader = _NotifyingLoader(found.loader, actions)  # type: ignore[assignment]
                return found
        return None


_import_watcher = _ImportWatcher()
sys.meta_path.insert(0, _import_watcher)


def when_imported(name: str, action: Callable[[Any], None]) -> None:
    """Call ``action`` with the module when it is imported, or now if it is already imported."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        _import_watcher.waiting.setdefault(name, []).append(action)


class PathFileFinder:
    """Last finder on ``sys.meta_path``: reads the path files (.pth, of editable installs) in the package folders.

    They are read only if a module was not found elsewhere, because that takes as long as the start of the worker.
    """

    def __init__(self, folders: list[str]) -> None:
        self._folders = folders

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if path is not None or not self._folders:
            return None
        folders, self._folders = self._folders, []
        import site

        before = list(sys.path)
        for folder in folders:
            site.addsitedir(folder)
        if sys.path == before:
            return None
        for finder in sys.meta_path:
            if finder is not self and (found := finder.find_spec(name, path, target)) is not None:
                return found
        return None
