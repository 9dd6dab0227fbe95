"""A line's own checksum: what finds a flipped bit that leaves valid JSON behind.

The last key of a record's line is ``sum``: XXH3 (64 bits, hexadecimal) of the bytes before that key's comma. It is for
accidents, not against attackers. A line without one (of another program, or of an earlier version) is as good as it reads.
"""

from __future__ import annotations

from xxhash import xxh3_64_hexdigest

from cantrip_acp.loom import heads
from cantrip_acp.loom.heads import Head

CHANGED = "changed since it was written: its checksum is another"

_KEY = b',"sum":"'
_DIGITS = 16
_LENGTH = len(_KEY) + _DIGITS + len(b'"}')
_FROM = -_DIGITS - 2
_NEAR = 400
"""Bytes at both ends of a line in which what a turn's head needs usually lies."""


def close(buffer: bytearray) -> None:
    """Add the checksum to an encoded record, and the newline."""
    buffer.pop()
    buffer += f',"sum":"{xxh3_64_hexdigest(buffer)}"}}\n'.encode()


def holds(line: bytes | memoryview) -> bool | None:
    """Whether a line, without its newline, is what was written; None where it has no checksum."""
    end = bytes(line[-_LENGTH:])
    if not end.startswith(_KEY) or len(end) < _LENGTH:
        return None
    return xxh3_64_hexdigest(line[:-_LENGTH]) == end[_FROM:-2].decode("latin-1")


def head(line: memoryview) -> tuple[Head, bool]:
    """A record's head, and whether its line was changed since it was written. Raises `msgspec.DecodeError`.

    Of a turn whose checksum holds, what was said is not looked at: this is where the opening of a loom spends its time.
    """
    end = bytes(line[-_NEAR:])
    if end[-_LENGTH:_FROM] != _KEY:
        return heads.decode(line), False
    if xxh3_64_hexdigest(line[:-_LENGTH]) != end[_FROM:-2].decode("latin-1"):
        return heads.decode(line), True
    start = bytes(line[:_NEAR])
    said, rest = start.find(b',"utterance":{'), end.rfind(b',"reward":')
    # No text can hold these keys, for its quotes are escaped. The first stands before all that was said, the last behind it.
    if 0 < said < len(line) + rest - len(end) and rest >= 0 and start.startswith(b'{"type":"turn",'):
        return heads.decoder.decode(start[:said] + end[rest:]), False
    return heads.decode(line), False
