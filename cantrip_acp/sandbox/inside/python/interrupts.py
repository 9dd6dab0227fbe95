"""Interrupts of a cell: they never stop the transfer of a frame, and a cell cannot catch a final stop.

SIGINT raises KeyboardInterrupt in the main thread. While that thread reads or writes a frame, the interrupt waits
until the frame is complete. A final stop (``done`` succeeded, or a second interrupt) is raised again in every exception
handler of the cell: `cells` inserts a call of `check` at the start of each handler.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import builtins
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any

_AGAIN_S = 0.002
"""Seconds after which an interrupt is raised again that the interpreter could not raise."""

globals()["__builtins__"] = dict(vars(builtins))
"""A copy, so that changes of the builtins by the entity do not affect this module."""


class Done(BaseException):
    """The gate ``done`` has succeeded. ``except Exception`` does not catch this."""


class DoneInThread(Done, SystemExit):
    """`Done` in a thread of the entity. A thread that ends with SystemExit prints no error."""


class Interrupts:
    """Decides whether the cell must stop. Use ``with interrupts:`` for code that must not be interrupted."""

    def __init__(self) -> None:
        self._main = _thread.get_ident()
        self._depth = 0
        self._pending = False
        self._interrupt_count = 0
        self._cell = 0
        self.running = False
        self.stop: type[BaseException] | None = None

    def begin(self) -> None:
        """Start a cell. Sets the signal handler again, because the entity may have replaced it."""
        self._interrupt_count = 0
        self._cell += 1
        self._pending = False
        self.stop = None
        _signal.signal(_signal.SIGINT, self._on_signal)
        if sys.unraisablehook is sys.__unraisablehook__:
            sys.unraisablehook = self._on_unraisable

    def end(self) -> None:
        self.running = False
        self.stop = None
        self._pending = False

    @property
    def in_main(self) -> bool:
        return _thread.get_ident() == self._main

    def finish(self) -> None:
        """Stop the main thread, because ``done`` has succeeded in any thread."""
        self.stop = Done
        if _thread.get_ident() != self._main:
            _signal.raise_signal(_signal.SIGINT)

    def check(self) -> None:
        """Raise the current stop, if there is one. Every exception handler of a cell calls this first."""
        if self.stop is not None:
            if _thread.get_ident() == self._main:
                raise self.stop
            if self.stop is Done:
                raise DoneInThread

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.running:
            return
        if self._depth:
            self._pending = True
            return
        self._raise()

    def _on_unraisable(self, unraisable: Any) -> None:
        """Raise an interrupt again that came in a callback or a ``__del__``, where Python prints and forgets it."""
        if not (self.running and self.in_main and issubclass(unraisable.exc_type, (KeyboardInterrupt, Done))):
            sys.__unraisablehook__(unraisable)
            return
        self._interrupt_count -= 1
        _thread.start_new_thread(self._interrupt_again, (self._cell,))

    def _interrupt_again(self, cell: int) -> None:
        time.sleep(_AGAIN_S)
        if self.running and self._cell == cell:
            _signal.pthread_kill(self._main, _signal.SIGINT)

    def _raise(self) -> None:
        self._interrupt_count += 1
        if self.stop is None and self._interrupt_count > 1:
            self.stop = KeyboardInterrupt
        raise self.stop or KeyboardInterrupt

    def __enter__(self) -> None:
        if _thread.get_ident() == self._main:
            self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if _thread.get_ident() == self._main:
            self._depth -= 1
            if self._pending and not self._depth:
                self._pending = False
                if self.running:
                    self._raise()
