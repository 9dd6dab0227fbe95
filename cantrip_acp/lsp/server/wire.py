"""Messages on standard input and output, framed as the protocol has it: headers, an empty line, a body.

A thread reads, so that the end of the input is noticed whatever else is under way; it hands whole messages to the loop in
their order. File descriptor 1 leads to stderr from the start on: what a library prints never reaches the client.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from cantrip_acp.lsp.server import large_messages

LIMIT = 64 * 1024 * 1024
"""Bytes that are kept of one message."""
LONGEST = 1 << 40
"""What a message may say that it is long: of a large one most is left out (`skimming`)."""


def take_streams() -> tuple[int, int]:
    """Descriptors of the protocol's input and output; 0 and 1 lead elsewhere from here on."""
    source, sink = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return source, sink


def bodies(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """The bodies of the messages that ``read`` gives, until its end. Header names may be written in any case.

    Raises `ValueError` for what is no header or too long: where the next message begins can no longer be known.
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
                continue  # empty lines between messages are passed over
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
    """What the server writes to: whole messages, however the descriptor takes them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        """Write all of it. Raises `BrokenPipeError` where the client is gone."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def close(self) -> None:
        """Nothing is held back, so there is nothing to do."""


# --- Answers that are ready to be sent: a large one is written as JSON in a thread, so that no other answer waits for it.


class Prepared(bytes):
    """A result as JSON."""


def prepared(data: Any) -> Prepared:
    """Plain data as an answer."""
    try:
        return Prepared(msgspec.json.encode(data, enc_hook=str))
    except UnicodeEncodeError:  # half a character, which JSON has a way to write
        return Prepared(json.dumps(msgspec.to_builtins(data, enc_hook=str)).encode())
