"""An evaluator of sandbox-exec profiles: reads a profile and decides whether an operation is allowed.

It knows the part of the language that this project writes, and refuses every other word, so that a profile with a mistake
fails. What it knows of the language: everything is denied or allowed by the rule `default`; of all rules that match, the
last one wins; an operation with a star matches the operations that begin so; the filters of one rule are alternatives;
paths are compared as the disk has them (links resolved, upper and lower case as stored).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

OPERATIONS = frozenset({
    "file-read-data", "file-read-metadata", "file-read-xattr", "file-write-data", "file-write-create", "file-write-unlink",
    "file-write-mode", "file-write-owner", "file-write-flags", "file-write-times", "file-write-xattr", "file-write-setugid",
    "file-link", "file-ioctl", "file-map-executable", "process-exec", "process-fork", "process-info-pidinfo", "signal",
    "sysctl-read", "mach-lookup", "ipc-posix-sem", "network-outbound", "network-inbound", "network-bind", "system-socket",
})  # fmt: skip

Expression = Any
"""A symbol (`Symbol`), a string, a regular expression (`Regex`) or a list of expressions."""


class Symbol(str):
    """A word of the language."""


class Regex(str):
    """A regular expression, written #"…"."""


class ProfileError(ValueError):
    """The profile has a word that this evaluator does not know, or is not complete."""


_TOKEN = re.compile(
    r'\s+|;[^\n]*|(?P<open>\()|(?P<close>\))|(?P<regex>#"(?:[^"\\]|\\.)*")|(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>[^\s()";]+)'
)


def parse(text: str) -> list[Expression]:
    """The expressions of a profile. Raises `ProfileError`."""
    stack: list[list[Expression]] = [[]]
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ProfileError(f"cannot read {text[at : at + 30]!r}")
        at = token.end()
        if token["open"]:
            stack.append([])
        elif token["close"]:
            if len(stack) == 1:
                raise ProfileError("a bracket too many")
            done = stack.pop()
            stack[-1].append(done)
        elif token["regex"]:
            stack[-1].append(Regex(token["regex"][2:-1]))
        elif token["text"]:
            stack[-1].append(re.sub(r"\\(.)", r"\1", token["text"][1:-1]))
        elif token["word"]:
            stack[-1].append(Symbol(token["word"]))
    if len(stack) != 1:
        raise ProfileError("a bracket is missing")
    return stack[0]


@dataclass(frozen=True)
class Request:
    """One operation, on a path, a name, or an address such as ``tcp localhost:80``."""

    operation: str
    path: str | None = None
    name: str | None = None
    remote: str | None = None
    same_sandbox: bool = False


Filter = Callable[[Request], bool]


@dataclass
class Rule:
    allow: bool
    operations: tuple[str, ...]
    filters: tuple[Filter, ...]

    def matches(self, request: Request) -> bool:
        named = any(
            pattern == "default"
            or pattern == request.operation
            or (pattern.endswith("*") and request.operation.startswith(pattern[:-1]))
            for pattern in self.operations
        )
        return named and (not self.filters or any(f(request) for f in self.filters))


@dataclass
class Profile:
    """A parsed profile. ``parameters``: the values of -D."""

    text: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)

    def __post_init__(self) -> None:
        expressions = parse(self.text)
        if expressions[:1] != [[Symbol("version"), Symbol("1")]]:
            raise ProfileError("a profile begins with (version 1)")
        for expression in expressions[1:]:
            if not isinstance(expression, list) or not expression or expression[0] not in ("allow", "deny"):
                raise ProfileError(f"unknown expression {expression}")
            operations = tuple(word for word in expression[1:] if isinstance(word, Symbol))
            for operation in operations:
                known = operation == "default" or operation in OPERATIONS
                if not known and not (
                    operation.endswith("*") and any(o.startswith(operation[:-1]) for o in OPERATIONS)
                ):
                    raise ProfileError(f"unknown operation {operation}")
            if not operations:
                raise ProfileError(f"no operation in {expression}")
            filters = tuple(self._filter(e) for e in expression[1:] if not isinstance(e, Symbol))
            self.rules.append(Rule(expression[0] == "allow", operations, filters))

    def allows(self, request: Request) -> bool:
        """Whether the last rule that matches allows the request. Raises `ProfileError` for an unknown operation."""
        if request.operation not in OPERATIONS:
            raise ProfileError(f"unknown operation {request.operation}")
        decision = False
        for rule in self.rules:
            if rule.matches(request):
                decision = rule.allow
        return decision

    def _filter(self, expression: Expression) -> Filter:
        if not isinstance(expression, list) or not expression:
            raise ProfileError(f"unknown filter {expression}")
        kind, *rest = expression
        if kind in ("require-any", "require-all", "require-not"):
            inner = [self._filter(e) for e in rest]
            if kind == "require-not":
                return lambda r: not inner[0](r)
            decide = any if kind == "require-any" else all
            return lambda r: decide(f(r) for f in inner)
        if kind == "target":
            if rest != ["same-sandbox"]:
                raise ProfileError(f"unknown target {rest}")
            return lambda r: r.same_sandbox
        if kind in ("remote", "local"):
            protocol, *address = rest
            if protocol not in ("ip", "tcp", "udp"):
                raise ProfileError(f"unknown protocol {protocol}")
            pattern = self._text(address[0]) if address else "*:*"
            host, _, port = pattern.rpartition(":")
            if host not in ("*", "localhost"):
                raise ProfileError(f"an address has the host * or localhost, not {host}")
            return lambda r: kind == "local" or (r.remote is not None and _reaches(r.remote, str(protocol), host, port))
        value = self._text(rest[0])
        if kind == "regex":
            pattern_ = re.compile(value)
            return lambda r: r.path is not None and pattern_.search(r.path) is not None
        if kind == "literal":
            return lambda r: r.path == value
        if kind == "subpath":
            return lambda r: r.path is not None and (r.path == value or r.path.startswith(value.rstrip("/") + "/"))
        if kind == "global-name":
            return lambda r: r.name == value
        raise ProfileError(f"unknown filter {kind}")

    def _text(self, expression: Expression) -> str:
        if isinstance(expression, list):
            kind, *rest = expression
            if kind == "param":
                if rest[0] not in self.parameters:
                    raise ProfileError(f"the parameter {rest[0]} is not given")
                return self.parameters[rest[0]]
            if kind == "string-append":
                return "".join(self._text(e) for e in rest)
            if kind == "regex-quote":
                return re.escape(self._text(rest[0]))
        elif isinstance(expression, str) and not isinstance(expression, Symbol):
            return str(expression)
        raise ProfileError(f"unknown text {expression}")


def _reaches(address: str, protocol: str, host: str, port: str) -> bool:
    used, _, at = address.partition(" ")
    name, _, number = at.rpartition(":")
    return protocol in ("ip", used) and host in ("*", name) and port in ("*", number)


class Disk:
    """Which path the system compares: links resolved, and names of existing files as they are stored.

    ``entries``: all paths that exist. ``links``: symbolic links, with absolute targets. Upper and lower case are the same
    unless ``case_sensitive``.
    """

    def __init__(self, entries: Iterable[str], links: Mapping[str, str], *, case_sensitive: bool = False) -> None:
        self._fold: Callable[[str], str] = (lambda p: p) if case_sensitive else str.casefold
        self._stored = {self._fold(p): p for p in entries}
        self._links = {self._fold(p): target for p, target in links.items()}

    def real(self, path: str) -> str:
        current = ""
        names = path.strip("/").split("/")
        for at, name in enumerate(names):
            step = f"{current}/{name}"
            target = self._links.get(self._fold(step))
            if target is not None:
                return self.real("/".join([target, *names[at + 1 :]]))
            current = self._stored.get(self._fold(step), step)
        return current

    def exists(self, path: str) -> bool:
        return self._fold(self.real(path)) in self._stored
