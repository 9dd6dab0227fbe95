"""Interrupts of a cell: they never cut a frame in two, and a cell cannot catch a final stop.

SIGINT raises KeyboardInterrupt in the main thread. While that thread reads or writes a frame, the interrupt waits
until the frame is complete. A final stop (``done`` succeeded, a second interrupt) is raised again in every handler of
the cell that catches it: `cells` puts a call of `check` at the start of each.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType

globals()["__builtins__"] = dict(vars(builtins))
"""A copy, so that an entity's changes to its builtins do not affect ours."""


class Done(BaseException):
    """``done`` has succeeded. No ``except Exception`` catches it."""


class DoneInThread(Done, SystemExit):
    """The same in a thread of the entity's: a thread that ends by SystemExit prints nothing."""


class Interrupts:
    """Decides whether the cell must stop. Use it in ``with`` around code that must not be interrupted."""

    def __init__(self) -> None:
        self._main = _thread.get_ident()
        self._held = 0
        self._pending = False
        self._seen = 0
        self.running = False
        self.stop: type[BaseException] | None = None

    def begin(self) -> None:
        """Start a cell. Sets the handler again, because an entity may have set its own."""
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
        """``done`` has succeeded, in any thread: stop the main thread too."""
        self.stop = Done
        if _thread.get_ident() != self._main:
            _signal.raise_signal(_signal.SIGINT)

    def check(self) -> None:
        """Raise the current stop, if any. Called first in each of a cell's exception handlers."""
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
