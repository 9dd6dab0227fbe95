"""Which program inside a sandbox has a connection to the proxy, for the question whether it may reach a host."""

from __future__ import annotations

import os
import re
from contextlib import suppress

_INTERPRETER = re.compile(r"(python|node|ruby|perl|php|bash|dash|sh)[0-9.]*")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}")
_LARGEST = 4096


def name_of_client(pid: int, port: int) -> str:
    """The program with the connection from ``port``, such as ``npm install``; empty if it cannot be found. Blocks.

    ``pid``: a process of the sandbox. The name is what the program says of itself, so it may be a lie, but it is only words: no
    option, no address and no control character.
    """
    inode = _inode(pid, port)
    if inode is None:
        return ""
    with suppress(OSError):
        inside = os.readlink(f"/proc/{pid}/ns/net")
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/net") == inside and _holds(entry, inode):
                    return _name(entry)
    return ""


def _inode(pid: int, port: int) -> str | None:
    """The inode of the socket at 127.0.0.1 with this port, in the network namespace of a process."""
    with suppress(OSError), open(f"/proc/{pid}/net/tcp", encoding="ascii") as file:
        for line in file:
            fields = line.split()
            if len(fields) > 9 and fields[1].endswith(f":{port:04X}"):
                return fields[9]
    return None


def _holds(pid: str, inode: str) -> bool:
    folder = f"/proc/{pid}/fd"
    for descriptor in os.listdir(folder):
        with suppress(OSError):
            if os.readlink(f"{folder}/{descriptor}") == f"socket:[{inode}]":
                return True
    return False


def _name(pid: str) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        text = file.read(_LARGEST).decode("utf-8", "replace").rstrip("\0")
    # A program that sets its title, as npm does, leaves one text with spaces.
    words = text.split("\0") if "\0" in text else text.split()
    if len(words) > 1 and _INTERPRETER.fullmatch(os.path.basename(words[0])):
        if words[1] == "-m":
            words = words[2:]
        elif not words[1].startswith("-"):
            words = words[1:]
    shown = [os.path.basename(word) if place == 0 else word for place, word in enumerate(words[:2])]
    return " ".join(word for word in shown if _WORD.fullmatch(word))
