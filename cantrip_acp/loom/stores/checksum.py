"""Checksums of stored records: each record ends with its own checksum and that of the record before it.

A stored record ends with ``"prev":"…","sum":"…"``. ``sum`` is XXH3 (64 bits, hexadecimal) of the bytes before its own
comma. ``prev`` is the ``sum`` of the record before it in its chain, or XXH3 of that whole record if it has no
``sum``. The first record of a chain has `START`. A file of lines is one chain. A database has a chain for each entity,
because several processes write it, and its records also have their position, ``"n":5``, before ``prev``.

This finds records that were changed, removed, doubled or reordered. It protects against accidents, not attackers:
anybody who can write the loom can compute checksums. A record without a checksum (by another program, or by an earlier
version) is accepted if it can be read. After the first chained record, each one must be chained.
"""

from __future__ import annotations

import re

import msgspec
from xxhash import xxh3_64_hexdigest

from cantrip_acp.loom.records import record_heads
from cantrip_acp.loom.records.record_heads import Head, LaterHead

CHANGED = "changed since it was written: its checksum is another"
REWRITTEN = "was written again by another program: its checksums do not stand where they were written"
UNCHAINED = (
    "has no checksum of the record before it, as all above it have: another program or an earlier version wrote it"
)

START = "0" * 16
"""The ``prev`` of the first record of a chain."""

_KEY = b',"sum":"'
_PREV = b',"prev":"'
_DIGITS = 16
_LENGTH = len(_KEY) + _DIGITS + len(b'"}')
_FROM = -_DIGITS - 2
_LINK = _LENGTH + len(_PREV) + _DIGITS + 1
_PLACE = re.compile(rb',"n":([0-9]{1,18})\Z')
_NEAR = 400
"""The number of bytes at each end of a line that usually hold the fields of a turn's head."""


def close(buffer: bytearray, prev: str, place: int | None = None) -> str:
    """Add the position (in a database), both checksums and a newline to an encoded record; returns the record's own
    checksum."""
    # An append waits for this, so it must be fast.
    buffer.pop()
    buffer += (f',"prev":"{prev}"' if place is None else f',"n":{place},"prev":"{prev}"').encode()
    own = xxh3_64_hexdigest(buffer)
    buffer += f',"sum":"{own}"}}\n'.encode()
    return own


def of(data: bytes | bytearray) -> str:
    """The 64-bit XXH3 checksum of ``data``, as 16 hexadecimal digits."""
    return xxh3_64_hexdigest(data)


def strip(line: bytes | memoryview) -> bytes:
    """A stored record as it was before `close`."""
    data = bytes(line)
    if data[-_LENGTH:_FROM] == _KEY:
        data = data[:-_LENGTH]
        if data[-_DIGITS - 1 - len(_PREV) : -_DIGITS - 1] == _PREV:
            data = _PLACE.sub(b"", data[: -_DIGITS - 1 - len(_PREV)])
        data += b"}"
    return data


def is_valid(line: bytes | memoryview) -> bool | None:
    """Whether the checksum of a line (without its newline) is right; None if it has none."""
    end = bytes(line[-_LENGTH:])
    if not end.startswith(_KEY) or len(end) < _LENGTH:
        return None
    return xxh3_64_hexdigest(line[:-_LENGTH]) == end[_FROM:-2].decode("latin-1")


def sums(line: bytes | memoryview) -> tuple[str | None, str]:
    """The checksum of the record before (None if the line has none), and the checksum that the next line must
    name."""
    end = bytes(line[-_LINK:])
    if end[-_LENGTH:_FROM] != _KEY:
        return None, xxh3_64_hexdigest(line)
    own = end[_FROM:-2].decode("latin-1")
    if not (len(end) == _LINK and end.startswith(_PREV)):
        return None, own
    return end[len(_PREV) : len(_PREV) + _DIGITS].decode("latin-1"), own


def place_of(line: bytes | memoryview) -> int | None:
    """The position that a database's record contains; None if it has none."""
    found = _PLACE.search(bytes(line[-_LINK - 30 : -_LINK]))
    return int(found[1]) if found and sums(line)[0] is not None else None


def _displaced(line: bytes | memoryview) -> bool:
    """Whether a record has checksums that are not at its end: line ends were converted, or its JSON was formatted
    again."""
    try:
        data = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return isinstance(data, dict) and all(isinstance(data.get(key), str) for key in ("prev", "sum"))


def head(line: memoryview) -> tuple[Head | LaterHead, bool]:
    """A record's head, and whether its line was changed since it was written. Raises `msgspec.DecodeError`.

    If a turn's checksum is right, its body is not decoded: opening a loom spends most of its time here.
    """
    end = bytes(line[-_NEAR:])
    if end[-_LENGTH:_FROM] != _KEY:
        return record_heads.decode(line), False
    if xxh3_64_hexdigest(line[:-_LENGTH]) != end[_FROM:-2].decode("latin-1"):
        # Check that the rest can be decoded too.
        record_heads.record_decoder().decode(line)
        return record_heads.head_decoder().decode(line), True
    start = bytes(line[:_NEAR])
    said, rest = start.find(b',"utterance":{'), end.rfind(b',"reward":')
    # No text can contain these keys, because its quotes are escaped. The first key is before the utterance, the last
    # after it.
    if 0 < said < len(line) + rest - len(end) and rest >= 0 and start.startswith(b'{"type":"turn",'):
        try:
            return record_heads.head_decoder().decode(start[:said] + end[rest:]), False
        except msgspec.ValidationError:
            pass
    return record_heads.decode(line, sealed=True), False


class Chains:
    """Follows the stored records of a loom, first to last, and reports each that does not follow the one before it."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, ...]] = {}
        self._chained: set[str] = set()
        self._seen: dict[str, str] = {}
        self.counts: dict[str, int] = {}

    def follow(self, chain: str, place: str, line: bytes | memoryview, *, ours: bool = True) -> str | None:
        """Add the next record of a chain. Returns the problem between it and the one before; None if it follows.

        ``place`` names it in messages. ``ours``: this version writes records of its kind, so it must be chained.
        """
        before, own = sums(line)
        known = self._last.get(chain, (START,))
        wrong = None
        if before is None:
            if _displaced(line):
                wrong = REWRITTEN
            elif ours and chain in self._chained:
                wrong = UNCHAINED
        else:
            if before not in known:
                if own in self._seen:
                    wrong = f"is a copy of {self._seen[own]}"
                elif before in self._seen:
                    wrong = f"follows {self._seen[before]}: records between them were added, or records change places"
                elif before == START:
                    wrong = "is a first record: what stands before it was added or has changed places"
                else:
                    wrong = "does not follow the record before it: records between them were removed or damaged"
            self._chained.add(chain)
        whole = xxh3_64_hexdigest(line[:-_LENGTH]) if is_valid(line) is False else own
        # A damaged record keeps its place in the chain. So does a record without a checksum from another program.
        self._last[chain] = (own, whole) if ours or before is not None else (own, *known)
        self._seen.setdefault(own, place)
        self.counts[chain] = self.counts.get(chain, 0) + 1
        return wrong

    def last(self, chain: str) -> tuple[str, ...]:
        """The checksums that the next record of a chain may name."""
        return self._last.get(chain, (START,))
