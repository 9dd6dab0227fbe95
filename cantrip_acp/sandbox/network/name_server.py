"""Names inside a sandbox: every name that a command may reach leads to an address where the filtering proxy listens.

So programs that know no proxy (Java, Go, gRPC, Node's fetch) reach the same hosts as those that do: the proxy reads the host from
TLS or HTTP. Names that nobody could be asked about do not exist. No question for a name leaves the machine, since what is asked
for could be a secret.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

from cantrip_acp.sandbox.network.hosts import PORTS, AllowedHosts, host_name

ADDRESS = "127.77.0.1"
"""Where all names lead, in the network namespace of a sandbox. Commands that share one have an address each (`random_address`)."""
NAME_SERVER = "127.0.0.1"
"""Where questions for names are answered, at port 53. A datagram from another address of a loopback interface that was down when
its socket was opened says that it comes from this one."""
MOST_PORTS = 32
"""At most so many ports of a list work without a proxy. A program with a proxy reaches all of them."""
MOST_QUESTIONS = 20_000
"""After so many questions for names, no further ones are answered: a command that floods us uses our processor time."""
SILENT = (".invalid", ".local", ".localhost", ".onion", ".arpa", ".internal")
"""Ends of names that are no hosts of the internet. Programs look them up without being told to, so they are not reported."""

_HEADER = struct.Struct("!6H")
_ANSWER = struct.Struct("!HHHIH")
_A, _INTERNET = 1, 1
_NO_SUCH_NAME = 3
_SECONDS = 60


def random_address() -> str:
    """An address of a command in a network that it shares with others."""
    return f"127.77.{1 + secrets.randbelow(254)}.{1 + secrets.randbelow(254)}"


def sockets_beside(allowed: AllowedHosts, address: str = "") -> list[str]:
    """The sockets that the proxy needs for programs that know no proxy, as `NetnsListener` takes them.

    ``address``: where names lead and are answered, in a network whose loopback interface is up already.
    """
    ports = sorted({*PORTS, *allowed.ports()})[:MOST_PORTS]
    return [f"udp {address or NAME_SERVER} 53", *(f"tcp {address or ADDRESS} {port}" for port in ports)]


def answer(query: bytes, exists: Callable[[str], bool], address: str = ADDRESS) -> bytes | None:
    """Answer a question (RFC 1035): ``address`` for the name of a host that ``exists``. None if it is no question."""
    try:
        number, flags, questions, *_ = _HEADER.unpack_from(query)
        if flags & 0xF800 or questions != 1:
            return None
        labels, at = [], _HEADER.size
        while length := query[at]:
            if length > 63 or at > 255:
                return None
            labels.append(query[at + 1 : at + 1 + length].decode("ascii"))
            at += 1 + length
        kind, family = struct.unpack_from("!HH", query, at + 1)
        name = host_name(".".join(labels))
        found = not any("." in label for label in labels) and family == _INTERNET and exists(name)
    except (struct.error, IndexError):
        return None
    except ValueError:
        found = False
    addresses = b""
    if found and kind == _A:
        addresses = _ANSWER.pack(0xC00C, _A, _INTERNET, _SECONDS, 4) + socket.inet_aton(address)
    head = _HEADER.pack(
        number, 0x8080 | flags & 0x0100 | (0 if found else _NO_SUCH_NAME), 1, 1 if addresses else 0, 0, 0
    )
    return head + query[_HEADER.size : at + 5] + addresses


class NameServer(asyncio.DatagramProtocol):
    """Answers questions for names at a socket. ``exists`` says whether a name (as `host_name` returns it) leads to ``address``."""

    def __init__(self, exists: Callable[[str], bool], address: str) -> None:
        self._exists = exists
        self._address = address
        self._left = MOST_QUESTIONS
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # That of asyncio's own loop is no `DatagramTransport` in Python 3.11.
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        assert self._transport is not None
        self._left -= 1
        if self._left < 0:
            self._transport.close()
        elif (found := answer(data, self._exists, self._address)) is not None:
            self._transport.sendto(found, addr)
