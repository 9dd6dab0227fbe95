"""Message framing on standard input and output: headers, an empty line, a body (Language Server Protocol).
A thread reads, so that the end of input is noticed at any time; it passes whole messages to the event loop in order.
File descriptor 1 is redirected to stderr from the start: what a library prints never reaches the client.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from cantrip_acp.lsp.server import large_messages

LIMIT = 64 * 1024 * 1024
"""The most bytes that are kept of one message."""
LONGEST = 1 << 40
"""The largest length that a message may announce; most of a large message is left out (`large_messages`)."""


def take_streams() -> tuple[int, int]:
    """The descriptors of the protocol's input and output. After this, 0 is /dev/null and 1 is stderr."""
    source, sink = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return source, sink


def bodies(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the bodies of the messages that ``read`` returns, until its end. Header names may be in any case.
    Raises `ValueError` for an invalid header or a message that is too long: the start of the next one is then unknown.
    """
    buffer = b""

    def more() -> bool:
        nonlocal buffer
        found = read(65536)
        buffer += found
        return bool(found)

    while True:
        length = -1
        while True:  # headers
            line, end, rest = buffer.partition(b"\n")
            if not end:
                if len(buffer) > 8192:
                    raise ValueError("a header line has no end")
                if not more():
                    return
                continue
            buffer = rest
            line = line.strip()
            if not line:
                if length >= 0:
                    break
                continue  # skip empty lines between messages
            name, colon, value = line.partition(b":")
            if not colon:
                raise ValueError(f"not a header: {line[:60]!r}")
            if name.strip().lower() == b"content-length":
                if not value.strip().isdigit() or int(value) > LONGEST:
                    raise ValueError(f"not a length: {value[:60]!r}")
                length = int(value)
        if length > large_messages.LONG:
            skimmer = large_messages.Skimmer()
            missing = length
            while True:
                skimmer.feed(buffer[:missing])
                buffer, missing = buffer[missing:], missing - len(buffer[:missing])
                if not missing:
                    break
                if skimmer.kept > LIMIT:
                    raise ValueError(f"a message of more than {LIMIT:,} bytes")
                if not more():
                    return
            yield skimmer.body()
            continue
        parts = [buffer]
        have = len(buffer)
        while have < length:
            found = read(65536)
            if not found:
                return
            parts.append(found)
            have += len(found)
        whole = b"".join(parts)
        yield whole[:length]
        buffer = whole[length:]


class Sink:
    """The server's output. It writes whole messages, even if the descriptor takes only a part at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        """Write all of it. Raises `BrokenPipeError` if the client is gone."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def close(self) -> None:
        """Does nothing: no data is buffered."""


# --- Prepared answers: a large answer is encoded as JSON in a thread, so that other answers do not wait for it.


class Prepared(bytes):
    """A result encoded as JSON."""


def prepared(data: Any) -> Prepared:
    """Encode plain data as an answer."""
    try:
        return Prepared(msgspec.json.encode(data, enc_hook=str))
    except UnicodeEncodeError:  # a lone surrogate, which JSON can escape
        return Prepared(json.dumps(msgspec.to_builtins(data, enc_hook=str)).encode())
