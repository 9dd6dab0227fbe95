"""UTF-8: decodes the files of people. A byte order mark is left out; another encoding is an error that says what to do."""

from __future__ import annotations


class NotUtf8(ValueError):
    """A file is not UTF-8. ``line`` and ``column`` of the first invalid byte count from 1."""

    def __init__(self, byte: int, line: int, column: int) -> None:
        super().__init__(f"not UTF-8 (byte 0x{byte:02x}); save the file in the encoding UTF-8")
        self.line = line
        self.column = column


def utf8_text(raw: bytes) -> str:
    """The text of a file, without a byte order mark. Raises `NotUtf8`."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Its position does not count the mark.
        at = error.start + len(raw) - len(error.object)
        before = raw[:at]
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8-sig", "replace")) + 1
        raise NotUtf8(raw[at], before.count(b"\n") + 1, column) from None
