"""Errors of commands with ``--json``: whatever happens, the last thing that such a command prints is a JSON object.

`cli.errors.run` calls `failure_of` before the command, and `Failure.show` after it has failed. A command that has printed its
last object itself, and then fails or is interrupted, calls `ended`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

CAST: Mapping[str, Any] = {
    "event": "result",
    "result": None,
    "terminated": False,
    "truncated": True,
    "reason": "error",
    "usage": None,
    "entity_id": None,
    "trace_id": None,
    "loom": None,
}
"""The last line of a cast that did not begin. It has the shape of the last line of a cast that ended (`events.as_json`)."""


class JsonFlag(click.Option):
    """The option ``--json`` of a command whose error object has more ``fields``, or goes to stderr like its object."""

    def __init__(
        self, *args: Any, fields: Mapping[str, Any] | None = None, to_stderr: bool = False, **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self.fields, self.to_stderr = fields or {}, to_stderr


@dataclass
class Failure:
    """The output of a command with ``--json`` that fails: ``fields``, the error's text, and the exit status."""

    fields: Mapping[str, Any]
    to_stderr: bool = False
    ended: bool = False

    def show(self, error: str, status: int) -> None:
        """Print the object, unless the command has printed its last one."""
        if self.ended:
            return
        found = {**self.fields, "error": error, "exit_status": status}
        if "reason" in found and status == 130:
            found["reason"] = "cancelled"
        stream = sys.stderr if self.to_stderr else sys.stdout
        # ASCII only: the wrong text may have characters that cannot be encoded.
        stream.write(json.dumps(found, default=str) + "\n")
        stream.flush()


_running: Failure | None = None


def ended() -> None:
    """Note that the running command has printed its last object."""
    if _running is not None:
        _running.ended = True


def failure_of(argv: Sequence[str]) -> Failure | None:
    """The failure output of a command line. None without ``--json``, and for a command that has no such option."""
    global _running
    option = _json_option(argv)
    _running = None
    if isinstance(option, JsonFlag):
        _running = Failure(option.fields, option.to_stderr)
    elif option is not None:
        _running = Failure({})
    return _running


def _json_option(argv: Sequence[str]) -> click.Parameter | None:
    from cantrip_acp.cli.command_table import cantrip, is_intent

    if "--json" not in argv:
        return None
    command: click.Command = cantrip
    for word in argv:
        if word == "--":
            return None
        if word == "--json":
            if isinstance(command, click.Group):
                # The command that runs where none is named, if the group has one.
                command = command.get_command(click.Context(command), "") or command
            return next((each for each in command.params if "--json" in each.opts), None)
        if isinstance(command, click.Group) and not word.startswith("-"):
            name = "cast" if command is cantrip and is_intent(word) else word
            found = command.get_command(click.Context(command, info_name=command.name), name)
            if found is None:
                return None
            command = found
    return None
