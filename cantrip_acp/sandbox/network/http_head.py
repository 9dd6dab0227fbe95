"""Parses the head of an HTTP/1 request from a sandbox strictly, and writes it again for the server.

A head that two programs could read differently is refused. So the proxy and the server agree on the host and on the
end of the request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cantrip_acp.sandbox.network.hosts import host_name, split_port

LARGEST = 64 * 1024
_MAX_FIELDS = 200
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"[!-~]+")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")
_NOT_FORWARDED = frozenset({"connection", "proxy-connection", "proxy-authorization", "proxy-authenticate", "keep-alive", "te",
                  "upgrade", "http2-settings", "host"})  # fmt: skip
_MAX_LENGTH_DIGITS = 18
"""The maximum number of digits in a Content-Length."""


class BadRequest(ValueError):
    """The request is invalid or ambiguous. The text says why."""


@dataclass(frozen=True, slots=True)
class Head:
    """One request. ``host`` is as `host_name` returns it. ``path`` is the rest of the URL, and empty for CONNECT.

    ``length``: the length of the body in bytes, or None if the body is chunked.
    """

    method: str
    host: str
    port: int
    path: str
    fields: tuple[tuple[str, str], ...]
    length: int | None

    def encoded(self, login: str | None = None) -> bytes:
        """The head as bytes for the server: the path without the host, one Host field, one request per connection.

        ``login``: the Proxy-Authorization (or empty) if it is for a further proxy, which wants the host before the path.
        """
        shown = f"[{self.host}]" if ":" in self.host else self.host
        host = shown if self.port == 80 else f"{shown}:{self.port}"
        before = "" if login is None else f"http://{host}"
        lines = [f"{self.method} {before}{self.path} HTTP/1.1", f"Host: {host}"]
        lines += [f"Proxy-Authorization: {login}"] if login else []
        lines += [f"{name}: {value}" for name, value in self.fields if name.lower() not in _NOT_FORWARDED]
        return ("\r\n".join([*lines, "Connection: close"]) + "\r\n\r\n").encode("latin-1")


def parse(data: bytes, within: tuple[str, int] | None = None, at: int | None = None) -> Head:
    """Parse a head, including its final empty line. Raises `BadRequest`.

    ``within``: the host and port of the tunnel that contains the request, or None. The first line of a request in a
    tunnel names no host. ``at``: the port to which a program connected that knows no proxy. Its Host field names the host.
    """
    text = data.decode("latin-1")
    if not text.endswith("\r\n\r\n"):
        raise BadRequest("the head has no final empty line")
    first, *rest = text[:-4].split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise BadRequest("the first line is not `METHOD URL HTTP/1.1`")
    method, target, version = parts
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest("only HTTP/1.0 and HTTP/1.1 are supported")
    if len(rest) > _MAX_FIELDS:
        raise BadRequest("too many header fields")
    fields = tuple(_field(line) for line in rest)
    named = [value for name, value in fields if name.lower() == "host"]
    if len(named) > 1:
        raise BadRequest("more than one Host field")
    if at is not None and named:
        within = _authority(named[0], at)
    if method == "CONNECT" and at is None:
        if within is not None:
            raise BadRequest("CONNECT is not allowed inside a tunnel")
        host, port = _authority(target, None)
        path = ""
    elif within is not None or at is not None:
        if not target.startswith("/") and not (target == "*" and method == "OPTIONS"):
            raise BadRequest("here a request names only a path, not a host")
        if not named or within is None:
            raise BadRequest("the Host field is missing")
        (host, port), path = within, target
        if at not in (None, port):
            raise BadRequest(f"the Host field names port {port}, and the connection is to port {at}")
    else:
        scheme, found, after = target.partition("://")
        if not found or scheme.lower() != "http":
            raise BadRequest("the proxy needs `http://HOST/PATH`, or CONNECT for https")
        end = min((i for i in map(after.find, "/?#") if i >= 0), default=len(after))
        host, port = _authority(after[:end], 80)
        path = after[end:].split("#")[0]
        path = path if path.startswith("/") else f"/{path}"
    if named:
        asked, asked_port = _authority(named[0], port)
        # Old clients omit the port in the Host field.
        if asked != host or asked_port != port:
            raise BadRequest(f"the Host field names {named[0]!r}, and the request is for {host}:{port}")
    return Head(method, host, port, path, fields, _length(fields, version))


def _field(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise BadRequest("a header field is malformed")
    return name, value.strip(" \t")


def _authority(text: str, port: int | None) -> tuple[str, int]:
    try:
        host, found = split_port(text)
        if found is None and port is None:
            raise ValueError("CONNECT needs a host and a port")
        at = found if found is not None else port
        assert at is not None
        return host_name(host), at
    except ValueError as error:
        raise BadRequest(f"{text[:300]!r} is not a host: {error}"[:600]) from error


def _length(fields: tuple[tuple[str, str], ...], version: str) -> int | None:
    lengths = [v for n, v in fields if n.lower() == "content-length"]
    codings = [v.lower() for n, v in fields if n.lower() == "transfer-encoding"]
    if codings:
        if codings != ["chunked"] or lengths or version == "HTTP/1.0":
            raise BadRequest("a body needs either Content-Length or `Transfer-Encoding: chunked`")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not (lengths[0].isascii() and lengths[0].isdigit()) or len(lengths[0]) > _MAX_LENGTH_DIGITS:
        raise BadRequest("Content-Length is not one number")
    return int(lengths[0])
