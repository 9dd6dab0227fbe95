"""Runs one cell: compiles it so that it can be stopped, runs it in the lasting namespace, returns its last value."""

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
    """The text of each cell, for tracebacks and ``inspect.getsource``."""

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
    # Like lines of a file: each ends in a line feed (the carets of a traceback need it), and no other character ends
    # one.
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
        """The value of the last expression, None where there is none. Raises what the cell raises."""
        self.sources.add(name, code)
        tree = compile(code, name, "exec", _TREE | _AWAIT, dont_inherit=True)
        if "except" in code:
            _stoppable(tree)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, _ast.Expr):
            # Compile one program, so that an await anywhere makes all of it one coroutine.
            place = {name: getattr(last, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
            tree.body[-1] = _ast.Assign([_ast.Name(_VALUE, _ast.Store(), **place)], last.value, **place)
        try:
            self._execute(compile(tree, name, "exec", _AWAIT, dont_inherit=True))
            return self._scope.get(_VALUE)
        finally:
            self._scope.pop(_VALUE, None)

    def _execute(self, code: CodeType) -> None:
        result = eval(code, self._scope)  # noqa: S307 - this is what the worker is for
        if code.co_flags & _COROUTINE:
            self._await(result)

    def _await(self, coroutine: Any) -> None:
        """Run a top-level await on an event loop that lasts as long as the namespace."""
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
                    # The original exception is already being raised.
                    pass
            raise


def _stoppable(tree: Any) -> None:
    """Put a check at the start of each exception handler, so that no handler outlives a stop."""
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
    """Put the check into the builtins, so that handlers find it wherever their code runs."""
    setattr(builtins, CHECK, interrupts.check)
    sys.modules.setdefault("builtins", builtins)
