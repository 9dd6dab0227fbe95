"""A command's arguments: one object with names, or values in the order in which the command lists its names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pygls.exceptions import JsonRpcInvalidParams
from pygls.uris import to_fs_path

from cantrip_acp.lsp.commands.registry import Command
from cantrip_acp.recipes.models.field_types import nearest


class CommandArguments:
    """The arguments of one call. Each reader raises `JsonRpcInvalidParams`, which says what is wrong with which argument."""

    def __init__(self, command: Command, arguments: Sequence[Any] | None) -> None:
        self._command = command
        values = list(arguments or ())
        if len(values) == 1 and isinstance(values[0], Mapping):
            self._values: dict[str, Any] = dict(values[0])
        elif len(values) > len(command.takes):
            raise self._wrong(f"takes {len(command.takes)} arguments, and {len(values)} came")
        else:
            self._values = dict(zip(command.takes, values, strict=False))
        for name in self._values:
            if name not in command.takes:
                near = nearest(str(name), command.takes)
                raise self._wrong(f"has no argument {str(name)[:60]!r}{near}")

    def has(self, name: str) -> bool:
        """Whether the argument is present; null counts as absent."""
        return self._values.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """A text. Without a ``default`` the argument is required and must not be blank."""
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or (default is None and not value.strip()):
            raise self._wrong(f"needs {name!r}, a text")
        return value

    def flag(self, name: str) -> bool:
        """A boolean; false if it is absent."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(f"takes true or false for {name!r}")
        return bool(value)

    def number(self, name: str, default: float | None = None) -> float:
        """A number. Without a ``default`` it is required."""
        value = self._values.get(name, default)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(f"needs {name!r}, a number")
        return value

    def file(self, name: str = "uri") -> Path:
        """The path of a document's URI, or an absolute path."""
        value = self.text(name)
        if value.startswith("file:") or "://" not in value:
            path = to_fs_path(value) if value.startswith("file:") else value
            if path and Path(path).is_absolute() and "\0" not in path:
                return Path(path)
        raise self._wrong(f"needs {name!r}, the address of a file on this machine (file:///…), and got {value[:200]!r}")

    def _wrong(self, why: str) -> JsonRpcInvalidParams:
        takes = ", ".join(self._command.takes) or "nothing"
        return JsonRpcInvalidParams(f"{self._command.name} {why}; its arguments: {takes}")
