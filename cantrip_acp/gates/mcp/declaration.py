"""Declaration of an MCP server: its command or URL, its limits, and whether it is trusted."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit

from cantrip_acp.text.redaction import Redactor, looks_secret
from cantrip_acp.types.errors import DefinitionError

Transport = Literal["stdio", "http", "sse"]

START_SECONDS = 15.0
CALL_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerQuestion:
    """A question of a server to the user (MCP, Elicitation): a page to open (``url``), or a form (``schema``)."""

    id: str
    server: str
    message: str
    url: str = field(default="", repr=False)
    schema: Mapping[str, Any] = field(default_factory=dict, hash=False)


class ServerQuestions(Protocol):
    """Shows the questions of servers to the user."""

    async def ask(self, question: ServerQuestion) -> tuple[str, Mapping[str, Any] | None]:
        """The user's action (accept, decline or cancel), and the content of a form."""

    def complete(self, question_id: str) -> None:
        """Note that the page of an accepted question is done."""


QUESTIONS: ContextVar[ServerQuestions | None] = ContextVar("QUESTIONS", default=None)
"""The object that shows questions during a call of a tool. None if nobody can be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """One MCP server.

    - ``transport`` stdio: ``command`` with ``args`` is started in the session's sandbox, with ``env`` added to the
      environment. If ``sandboxed`` is False, it runs as the user, without a sandbox.
    - ``transport`` http (streamable HTTP) or sse: the host connects to ``url`` with ``headers``.
    - ``trusted``: believe the server if it says that a tool only reads.
    - ``required``: the entity does not start without it.
    - ``asks_user``: the server may send questions to the user (elicitation), because somebody is there to show them.
    - ``start_s``, ``call_s``: the most seconds to wait for the start, and for the answer to a call.

    Raises `DefinitionError` for an empty name, an invalid URL, or parts that do not fit the transport.
    """

    name: str
    transport: Transport = "stdio"
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    sandboxed: bool = True
    trusted: bool = False
    required: bool = False
    asks_user: bool = False
    start_s: float = START_SECONDS
    call_s: float = CALL_SECONDS

    def __post_init__(self) -> None:
        if not gate_name_part(self.name):
            raise self._error(f"its name {self.name[:100]!r} has no letter or digit")
        if self.transport == "stdio":
            if not self.command.strip() or "\0" in self.command:
                raise self._error("command is required: the program to start")
            if any("\0" in text for text in (*self.args, *self.env.keys(), *self.env.values())):
                raise self._error("args and env cannot contain a NUL character")
            bad = next((name for name in self.env if not name or "=" in name), None)
            if bad is not None:
                raise self._error(f"{bad!r} is not the name of an environment variable")
        else:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise self._error("url must begin with http:// or https:// and name a host")
            bad = next((n for n, v in self.headers.items() if not n.isascii() or set(n + v) & set("\r\n\0")), None)
            if bad is not None:
                raise self._error(f"the header {bad!r} cannot be sent")

    def _error(self, why: str) -> DefinitionError:
        return DefinitionError(f"MCP server {self.name[:100]!r}: {why}")

    @property
    def prefix(self) -> str:
        """The prefix of the names of its gates."""
        return gate_name_part(self.name)

    def hide(self, redactor: Redactor) -> None:
        """Register its secrets with a redactor: header values, values with secret names, and keys in the URL."""
        secrets = [value for name, value in self.env.items() if looks_secret(name)]
        for value in self.headers.values():
            secrets += [value, value.rpartition(" ")[2]]
        for before, argument in zip(("", *self.args), self.args, strict=False):
            name, equals, value = argument.partition("=")
            if equals and _is_secret_name(name):
                secrets.append(value)
            elif before.startswith("-") and "=" not in before and _is_secret_name(before):
                secrets.append(argument)
        secrets += _secrets_in_url(self.url)
        redactor.add(*secrets)

    def record(self) -> dict[str, Any]:
        """The data for looms and lists, without the values of variables and headers."""
        shown: dict[str, Any] = {"name": self.name, "transport": self.transport}
        if self.transport == "stdio":
            shown |= {"command": self.command, "args": list(self.args), "env": sorted(self.env)}
            shown["sandboxed"] = self.sandboxed
        else:
            parts = urlsplit(self.url)
            port = f":{parts.port}" if parts.port else ""
            shown |= {"url": f"{parts.scheme}://{parts.hostname}{port}{parts.path}", "headers": sorted(self.headers)}
        return shown


def program_files(command: str, args: Sequence[str], workspace: Path) -> Iterator[Path]:
    """The files in a workspace that a command runs there: its program, also if it does not exist yet, arguments that are
    files, and the modules of ``-m``."""
    program = command if "/" in command else shutil.which(command) or ""
    if program and _is_below(workspace / program, workspace):
        yield workspace / program
    for before, word in zip((command, *args), args, strict=False):
        if before == "-m":
            module = workspace.joinpath(*word.split("."))
            yield from filter(
                os.path.isfile, (module.with_suffix(".py"), module / "__main__.py", module / "__init__.py")
            )
        for part in _words_of(word):
            if os.path.isfile(workspace / part) and _is_below(workspace / part, workspace):
                yield workspace / part


def _words_of(argument: str) -> list[str]:
    """The texts in an argument that may be files: the argument, the value of ``--option=value``, the words of a command."""
    try:
        words = shlex.split(argument)
    except ValueError:
        words = []
    return [each for each in dict.fromkeys((argument, argument.partition("=")[2], *words)) if each and "\0" not in each]


def _is_below(path: Path, workspace: Path) -> bool:
    return any(
        Path(each).is_relative_to(base)
        for each, base in ((os.path.abspath(path), workspace), (os.path.realpath(path), os.path.realpath(workspace)))
    )


def _secrets_in_url(url: str) -> list[str]:
    """Find the parts of a URL that look like secrets: user and password, values with secret names, and long words of
    letters and digits."""
    parts = urlsplit(url)
    found = [parts.password or parts.username or ""]
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if _is_secret_name(name) or _KEY.fullmatch(value):
            # Also add the encoded forms, in which it is sent.
            found += [value, quote(value, safe=""), quote_plus(value)]
    found += [piece for piece in parts.path.split("/") if _KEY.fullmatch(piece)]
    return found


def _is_secret_name(name: str) -> bool:
    """Whether the name of an option or field is for a secret, such as ``--api-key`` or ``accessToken``."""
    return looks_secret(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name))


_KEY = re.compile(r"(?=[^/]*[0-9])(?=[^/]*[A-Za-z])[^/\s]{20,}")


def gate_name_part(name: str) -> str:
    """Convert a name to a part of a gate's name: letters, digits and ``_``, without a digit first. Empty if nothing is
    left."""
    found = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")[:64]
    return f"_{found}" if found[:1].isdigit() else found


def unique_prefixes(servers: Sequence[McpServer]) -> list[str]:
    """The prefixes of several servers, in order. A number at the end makes them unique."""
    taken: list[str] = []
    for server in servers:
        prefix, number = server.prefix, 2
        while prefix in taken:
            prefix, number = f"{server.prefix}_{number}", number + 1
        taken.append(prefix)
    return taken
