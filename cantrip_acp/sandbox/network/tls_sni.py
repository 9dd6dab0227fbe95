"""Reads the requested server name (SNI) from the first message of a TLS connection.

The name must equal the host of the tunnel. Otherwise a client could ask a server with many sites for a host that is
not listed.
"""

from __future__ import annotations

from dataclasses import dataclass

HANDSHAKE = 0x16
_CLIENT_HELLO = 1
_SERVER_NAME = 0
LARGEST = 64 * 1024


def alert(denied: bool) -> bytes:
    """The fatal alert with which a server ends TLS (RFC 8446, 6.2): access_denied, or internal_error."""
    return bytes([21, 3, 3, 0, 2, 2, 49 if denied else 80])


class NotTls(ValueError):
    """These bytes do not begin a TLS connection."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's first message (ClientHello). ``server_name`` is None if the client names no host."""

    server_name: str | None


def read(data: bytes) -> Hello | None:
    """Parse the ClientHello at the beginning of these bytes; None if more bytes are needed. Raises `NotTls`."""
    message = bytearray()
    at = 0
    wanted: int | None = None
    while wanted is None or len(message) < wanted:
        header = data[at : at + 5]
        if header[:1] not in (b"", bytes([HANDSHAKE])) or header[1:2] not in (b"", b"\3"):
            raise NotTls("not a TLS handshake")
        if len(header) < 5:
            break
        size = int.from_bytes(header[3:5])
        if not 0 < size <= 16_640:
            raise NotTls("a TLS record of an impossible size")
        record = data[at + 5 : at + 5 + size]
        if len(record) < size:
            break
        message += record
        at += 5 + size
        if message[0] != _CLIENT_HELLO:
            raise NotTls("the handshake does not begin with a hello")
        if wanted is None and len(message) >= 4:
            wanted = 4 + int.from_bytes(message[1:4])
            if wanted > LARGEST:
                raise NotTls("the hello is too long")
    else:
        return _hello(bytes(message[4:wanted]))
    if len(data) > LARGEST + 8192:
        raise NotTls("the hello is too long")
    return None


def _hello(body: bytes) -> Hello:
    try:
        return Hello(_server_name(_Reader(body)))
    except IndexError as error:
        raise NotTls("the hello is malformed") from error


class _Reader:
    """Reads bytes from the beginning of ``data``. Raises IndexError if there are not enough."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def read(self, count: int) -> bytes:
        if self.left < count:
            raise IndexError("too short")
        self._at += count
        return self._data[self._at - count : self._at]

    def rest(self) -> bytes:
        return self.read(self.left)

    def number(self, count: int) -> int:
        return int.from_bytes(self.read(count))

    def block(self, count: int) -> _Reader:
        """Read a length of ``count`` bytes, and then a block of that length."""
        return _Reader(self.read(self.number(count)))


def _server_name(hello: _Reader) -> str | None:
    hello.read(2 + 32)
    hello.block(1)
    hello.block(2)
    hello.block(1)
    if not hello.left:
        return None
    extensions = hello.block(2)
    found: list[str] = []
    while extensions.left:
        kind = extensions.number(2)
        body = extensions.block(2)
        if kind != _SERVER_NAME:
            continue
        names = body.block(2)
        while names.left:
            if names.number(1) != 0:
                raise IndexError("a name of an unknown kind")
            found.append(names.block(2).rest().decode("latin-1"))
    if len(found) > 1:
        raise IndexError("more than one name")
    return found[0] if found else None
