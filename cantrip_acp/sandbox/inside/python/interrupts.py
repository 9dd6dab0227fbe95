"""Interrupts that never tear a frame in two, and stops that a cell cannot swallow.

SIGINT raises KeyboardInterrupt wherever the main thread is, save while it reads or writes a frame: then it waits until the
frame is whole. A stop that must hold (``done`` succeeded, a second interrupt) is raised again by every handler of the
cell that catches it: `cells` puts a call of `check` at the head of each.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType

globals()["__builtins__"] = dict(vars(builtins))
"""A copy: what an entity does to its builtins does nothing to ours."""


class Done(BaseException):
    """``done`` has succeeded. No ``except Exception`` catches it."""


class DoneInThread(Done, SystemExit):
    """The same in a thread of the entity's: a thread that ends by SystemExit ends without a word."""


class Interrupts:
    """The one object that knows whether the cell has to stop. Use it in ``with`` around what must not be torn."""

    def __init__(self) -> None:
        self._main = _thread.get_ident()
        self._held = 0
        self._pending = False
        self._seen = 0
        self.running = False
        self.stop: type[BaseException] | None = None

    def begin(self) -> None:
        """A cell begins. The handler is set again: an entity may have set its own."""
        self._seen = 0
        self._pending = False
        self.stop = None
        _signal.signal(_signal.SIGINT, self._on_signal)

    def end(self) -> None:
        self.running = False
        self.stop = None
        self._pending = False

    @property
    def in_main(self) -> bool:
        return _thread.get_ident() == self._main

    def finish(self) -> None:
        """``done`` has succeeded, in whichever thread: the main one stops too."""
        self.stop = Done
        if _thread.get_ident() != self._main:
            _signal.raise_signal(_signal.SIGINT)

    def check(self) -> None:
        """Raise the stop that is in force. Called first in each of a cell's exception handlers."""
        if self.stop is not None:
            if _thread.get_ident() == self._main:
                raise self.stop
            if self.stop is Done:
                raise DoneInThread

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.running:
            return
        if self._held:
            self._pending = True
            return
        self._raise()

    def _raise(self) -> None:
        self._seen += 1
        if self.stop is None and self._seen > 1:
            self.stop = KeyboardInterrupt
        raise self.stop or KeyboardInterrupt

    def __enter__(self) -> None:
        if _thread.get_ident() == self._main:
            self._held += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if _thread.get_ident() == self._main:
            self._held -= 1
            if self._pending and not self._held:
                self._pending = False
                if self.running:
                    self._raise()
