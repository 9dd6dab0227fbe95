"""TOML files that users write: their data, and errors that name the line and column of a key."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cantrip_acp.types.errors import DefinitionError

_TABLE = re.compile(r"\s*\[\[?(?P<name>[^\]]+)\]")
_KEY = re.compile(r"\s*(?P<name>[\w\"'.-]+)\s*=")


@dataclass(frozen=True, slots=True)
class TomlFile:
    """The content of a file: as ``data``, and unparsed as ``text``."""

    path: Path
    text: str
    data: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> TomlFile:
        """Read a file. Raises FileNotFoundError, and `DefinitionError` if it cannot be read or is not TOML."""
        try:
            text = path.read_text("utf-8")
            return cls(path, text, tomllib.loads(text))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DefinitionError(f"cannot be read: {error.strerror}", where=str(path)) from None
        except UnicodeDecodeError as error:
            raise DefinitionError(f"this is not TOML: {error}", where=str(path)) from None
        except tomllib.TOMLDecodeError as error:
            reason, _, place = str(error).removesuffix(")").partition(" (at ")
            lines = text.rstrip().splitlines() or [""]
            line, column = re.findall(r"\d+", place) or (len(lines), len(lines[-1]) + 1)
            raise DefinitionError(f"this is not TOML: {reason}", where=f"{path}:{line}:{column}") from None

    def error(self, message: str, *keys: str) -> DefinitionError:
        """Make an error about the value of a key, such as ``"repl", "full"`` for the key ``full`` of the table ``[repl]``."""
        wanted, table = ".".join(keys), ""
        for number, line in enumerate(self.text.splitlines(), 1):
            if found := _TABLE.match(line):
                name = table = _plain(found["name"])
            elif found := _KEY.match(line):
                name = ".".join(filter(None, (table, _plain(found["name"]))))
            else:
                continue
            if name == wanted or name.startswith(f"{wanted}."):
                start = len(line) - len(line.lstrip()) + 1
                return DefinitionError(f"{wanted}: {message}", where=f"{self.path}:{number}:{start}")
        return DefinitionError(f"{wanted}: {message}", where=str(self.path))


def _plain(name: str) -> str:
    """A dotted key without quotes and spaces."""
    return ".".join(part.strip(" \t\"'") for part in name.split("."))
