"""Compiles a cell so that it can be stopped, runs it in the entity's namespace, and returns its last value."""

from __future__ import annotations

import _ast
import builtins
import sys

from .interrupts import Done, Interrupts
from .lazy_imports import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

globals()["__builtins__"] = dict(vars(builtins))

_AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_TREE = 0x0400  # ast.PyCF_ONLY_AST
_COROUTINE = 0x0080  # inspect.CO_COROUTINE
CHECK = "__cantrip_check__"
_VALUE = "__cantrip_value__"
KEPT_SOURCES = 500


class Sources:
    """Stores the text of each cell, for tracebacks and ``inspect.getsource``."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._cache: dict[str, Any] | None = None
        when_imported("linecache", self._fill)

    def add(self, name: str, text: str) -> None:
        self._texts[name] = text
        if len(self._texts) > KEPT_SOURCES:
            self._texts.pop(next(iter(self._texts)))
        if self._cache is not None:
            self._cache[name] = _entry(name, text)

    def all(self) -> dict[str, str]:
        return dict(self._texts)

    def _fill(self, linecache: Any) -> None:
        self._cache = linecache.cache
        for name, text in self._texts.items():
            linecache.cache[name] = _entry(name, text)


def _entry(name: str, text: str) -> tuple[int, None, list[str], str]:
    # Split as the lines of a file: each line ends in a line feed, which the carets of a traceback need, and no other
    # character ends a line.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
    return len(text), None, [line + "\n" for line in lines], name


class Cells:
    """Compiles and runs cells. ``scope`` is the entity's namespace, the dictionary of ``__main__``."""

    def __init__(self, scope: dict[str, Any], interrupts: Interrupts) -> None:
        self._scope = scope
        self._interrupts = interrupts
        self.sources = Sources()
        self._loop: Any = None

    def run(self, code: str, name: str) -> Any:
        """Run a cell and return the value of its last expression, or None. Raises the errors of the cell."""
        self.sources.add(name, code)
        tree = compile(code, name, "exec", _TREE | _AWAIT, dont_inherit=True)
        if "except" in code:
            _stoppable(tree)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, _ast.Expr):
            # Assign the value to a name, so that the cell stays one program. With an await, it is one coroutine.
            place = {name: getattr(last, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
            tree.body[-1] = _ast.Assign([_ast.Name(_VALUE, _ast.Store(), **place)], last.value, **place)
        try:
            self._execute(compile(tree, name, "exec", _AWAIT, dont_inherit=True))
            return self._scope.get(_VALUE)
        finally:
            self._scope.pop(_VALUE, None)

    def _execute(self, code: CodeType) -> None:
        result = eval(code, self._scope)  # noqa: S307 - the worker exists to run the entity's code
        if code.co_flags & _COROUTINE:
            self._await(result)

    def _await(self, coroutine: Any) -> None:
        """Run a cell with a top-level await. Its event loop exists as long as the namespace."""
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                try:
                    self._loop.run_until_complete(asyncio.wait([task], timeout=1))
                except (KeyboardInterrupt, Done):
                    # The original exception is raised below.
                    pass
            raise


def _stoppable(tree: Any) -> None:
    """Insert a call of `Interrupts.check` at the start of each exception handler, so that no handler can catch a stop."""
    stack = list(tree.body)
    while stack:
        node = stack.pop()
        if type(node) is _ast.ExceptHandler:
            place = {
                "lineno": node.lineno,
                "col_offset": node.col_offset,
                "end_lineno": node.lineno,
                "end_col_offset": node.col_offset + 6,
            }
            name = _ast.Name(CHECK, _ast.Load(), **place)
            node.body.insert(0, _ast.Expr(_ast.Call(name, [], [], **place), **place))
        for field in node._fields:
            value = getattr(node, field, None)
            if type(value) is list:
                stack += [v for v in value if isinstance(v, _ast.AST)]
            elif isinstance(value, _ast.AST):
                stack.append(value)


def install(interrupts: Interrupts) -> None:
    """Add the check to the builtins, so that handlers find it in every namespace."""
    setattr(builtins, CHECK, interrupts.check)
    sys.modules.setdefault("builtins", builtins)
