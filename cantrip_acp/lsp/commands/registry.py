"""Every command by its name: what it takes, what it does, and where that is written.

A command's function is ``async def function(server, given, work)``: `given.Given` are its arguments, `work.Work` is how it tells of
its progress and hears that it is cancelled. What it returns is the answer, as plain data. A `CantripError` that it
raises becomes the request's error.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """``takes`` names the arguments, in their order; ``module`` and ``function`` are imported when it is asked for.

    With ``quiet`` no progress is shown: it is done at once.
    """

    name: str
    title: str
    takes: tuple[str, ...]
    about: str
    module: str
    function: str
    quiet: bool = False


_LISTED: tuple[Command, ...] = ()

COMMANDS: dict[str, Command] = {command.name: command for command in _LISTED}
