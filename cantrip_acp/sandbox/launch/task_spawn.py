"""Starting tasks from event loop callbacks, outside of any task."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

from anyio.abc import TaskGroup

_library: ContextVar[str | None] | None = None
try:
    # Not our dependency: other packages install it.
    _library = importlib.import_module("sniffio").current_async_library_cvar
except (ImportError, AttributeError):
    pass


def start_soon(group: TaskGroup, work: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
    """Start a task in a group from a callback.

    Where sniffio is installed, anyio asks it which async library runs. In a callback sniffio knows this only if it
    was set: `anyio.run` sets it, `asyncio.run` does not.
    """
    if _library is None:
        group.start_soon(work, *args)
        return
    before = _library.set("asyncio")
    try:
        group.start_soon(work, *args)
    finally:
        _library.reset(before)
