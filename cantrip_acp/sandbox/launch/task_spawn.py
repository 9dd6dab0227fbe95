"""Tasks that are started by what the event loop calls, and not by a task."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

from anyio.abc import TaskGroup

_library: ContextVar[str | None] | None = None
try:
    # Not a dependency of ours: other packages bring it.
    _library = importlib.import_module("sniffio").current_async_library_cvar
except (ImportError, AttributeError):
    pass


def start_soon(group: TaskGroup, work: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
    """Start a task in a group from a callback.

    Where sniffio is installed, anyio asks it which library runs; in a callback it knows only if it was told, which
    `anyio.run` does and `asyncio.run` does not.
    """
    if _library is None:
        group.start_soon(work, *args)
        return
    before = _library.set("asyncio")
    try:
        group.start_soon(work, *args)
    finally:
        _library.reset(before)
