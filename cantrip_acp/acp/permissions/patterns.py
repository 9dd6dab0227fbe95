"""What a user's word for good holds for: a pattern, how it is said to people, and which calls it fits.

=================  ==================================================================================================
``FOLDER/**``      files in a folder of the session and below it
``FOLDER/*``       files directly in a folder: the top of the session, where a word for one file is none for all of it
``=PATH``          this one file: what is protected or hidden is never part of a wider pattern
``=TEXT``          this command
``WORDS *``        commands that begin so and run nothing else (`commandline`)
``*``              any call: of a gate whose calls name no files
=================  ==================================================================================================

A pattern never widens what wards allow: it only says who is not asked again.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cantrip_acp.gates.path_handle import one_line
from cantrip_acp.gates.protected_paths import why_hidden, why_protected

if TYPE_CHECKING:
    from cantrip_acp.acp.sessions.session_store import Granted
    from cantrip_acp.core.wards import Wards

ALL = "*"
_SHORT = 40
_WORDS = {"edit_file": "edits", "write_file": "writes"}
_PLACE = re.compile(r"/.*/\*\*?\Z|/\*\Z|host ", re.DOTALL)


def of_paths(paths: Sequence[str], tops: Sequence[str]) -> tuple[str, str]:
    """The pattern of a write to these paths and its words; ``tops`` are the session's folders."""
    if not paths:
        return ALL, ""
    if any(_guarded(path) for path in paths):
        if len(set(paths)) > 1:
            # There is no one pattern for several of them, so the word holds for nothing else.
            return "=" + "\0".join(sorted(paths)), "of these files"
        return f"={paths[0]}", f"of {one_line(os.path.basename(paths[0]))}"
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    if folder in tops or not any(within(folder, top) for top in tops):
        # A whole project, or somewhere else: never everything below by one word.
        words = "in this folder" if folder in tops else f"in the folder {one_line(os.path.basename(folder)) or os.sep}"
        return os.path.join(folder, ALL), words
    top = max((t for t in tops if within(folder, t)), key=len)
    return os.path.join(folder, "**"), f"in {_short(one_line(os.path.relpath(folder, top)))}{os.sep}"


def _short(path: str) -> str:
    """A folder for the name of an option: its end, where it is long."""
    return path if len(path) <= _SHORT else f"…{os.sep}{os.path.basename(path)[-_SHORT:]}"


def fits_paths(paths: Sequence[str], pattern: str) -> bool:
    """Whether a pattern holds for a call that changes these paths; for one that names none, only ``*`` does."""
    if not paths:
        return pattern == ALL
    if pattern.startswith("="):
        return sorted(pattern[1:].split("\0")) == sorted(paths)
    return all(_fits(path, pattern) for path in paths)


def of_command(text: str) -> tuple[str, str]:
    """The pattern of a command and its words."""
    from cantrip_acp.acp.permissions import shell_parse

    prefix = shell_parse.prefix(text)
    if prefix is None:
        return f"={text}", "this command"
    return f"{prefix} {ALL}", f"`{prefix}` commands"


def called(gate: str) -> str:
    """What the name of an option calls the calls of a gate."""
    return _WORDS.get(gate, gate)


def fits_command(text: str, pattern: str) -> bool:
    """Whether a pattern holds for a command. One that an older version kept and that none would make today fits nothing."""
    if pattern.startswith("="):
        return pattern[1:] == text
    from cantrip_acp.acp.permissions import shell_parse

    prefix = shell_parse.prefix(text)
    return prefix is not None and pattern == f"{prefix} {ALL}"


def elsewhere(granted: Iterable[Granted]) -> list[Granted]:
    """What still holds where a session goes on in another folder: refusals, folders by their paths, and hosts. The same
    command is another one there."""
    return [each for each in granted if not each.allowed or _PLACE.match(each.pattern)]


def free(paths: Sequence[str], wards: Wards) -> bool:
    """Whether the sandbox could write all of these itself."""
    folders = [os.path.realpath(folder) for folder in (*wards.bash_writable_paths, *wards.code_writable_paths)]
    return all(any(within(os.path.realpath(path), folder) for folder in folders) for path in paths)


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _fits(path: str, pattern: str) -> bool:
    folder, name = os.path.split(pattern)
    if name not in (ALL, "**") or _guarded(os.path.relpath(path, folder)):
        return False
    return within(path, folder) if name == "**" else os.path.dirname(path) == folder


def _guarded(path: str) -> bool:
    parts = [part for part in path.split("/") if part]
    return why_protected(parts) is not None or why_hidden(parts) is not None
