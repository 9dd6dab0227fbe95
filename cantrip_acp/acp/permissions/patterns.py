"""Permission patterns: which later calls an "always" answer covers, and the text that describes a pattern to people.

=================  ==================================================================================================
``FOLDER/**``      files in a folder of the session and below it
``FOLDER/*``       files directly in a folder. Used for a session's folder, because one answer must not cover all below
``=PATH``          only this file. Used for protected and hidden files, which no wider pattern covers
``=TEXT``          this command, or this part of one with ``&&``, ``||``, ``;`` or ``|``
``WORDS *``        commands that begin with these words and run nothing else (`shell_parse`)
``*``              any call, for a gate whose calls name no files
=================  ==================================================================================================

A pattern never allows more than the wards allow. It only decides whether the user is asked again.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cantrip_acp.files.protected_paths import why_hidden, why_protected
from cantrip_acp.gates.confinement import one_line

if TYPE_CHECKING:
    from cantrip_acp.acp.sessions.session_store import Grant
    from cantrip_acp.gates.wards import Wards

ALL = "*"
_SHORT = 40
_MOST_WORDS = 130
_WORDS = {"edit_file": "edits", "write_file": "writes"}
_PATH_OR_HOST = re.compile(r"/.*/\*\*?\Z|/\*\Z|host ", re.DOTALL)


def pattern_of_paths(paths: Sequence[str], session_folders: Sequence[str]) -> tuple[str, str]:
    """The pattern for a write to these paths, and its description. ``session_folders`` are the session's folders."""
    if not paths:
        return ALL, ""
    if any(_is_protected(path) for path in paths):
        if len(set(paths)) > 1:
            # No pattern fits several protected files, so the answer covers exactly these files.
            return "=" + "\0".join(sorted(paths)), "of these files"
        return f"={paths[0]}", f"of {one_line(os.path.basename(paths[0]))}"
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    if folder in session_folders or not any(within(folder, top) for top in session_folders):
        # In a session's folder, or outside of all of them, one answer must not cover everything below.
        words = (
            "in this folder"
            if folder in session_folders
            else f"in the folder {one_line(os.path.basename(folder)) or os.sep}"
        )
        return os.path.join(folder, ALL), words
    top = max((t for t in session_folders if within(folder, t)), key=len)
    return os.path.join(folder, "**"), f"in {_shorten(one_line(os.path.relpath(folder, top)))}{os.sep}"


def _shorten(path: str) -> str:
    """Shorten a long folder path to its last part, for the name of an option."""
    return path if len(path) <= _SHORT else f"…{os.sep}{os.path.basename(path)[-_SHORT:]}"


def paths_match(paths: Sequence[str], pattern: str) -> bool:
    """Whether a pattern covers a call that changes these paths. Only ``*`` covers a call without paths."""
    if not paths:
        return pattern == ALL
    if pattern.startswith("="):
        return sorted(pattern[1:].split("\0")) == sorted(paths)
    return all(_path_matches(path, pattern) for path in paths)


def pattern_of_command(text: str) -> tuple[str, str]:
    """The permission pattern for a whole command, and a description: the exact text, or all of its prefix."""
    from cantrip_acp.text import shell_parse

    prefix = shell_parse.command_prefix(text)
    if prefix is None:
        return f"={text}", "this command"
    return f"{prefix} {ALL}", f"`{prefix}` commands"


def patterns_of_parts(text: str) -> list[str]:
    """The patterns of the parts of a command with ``&&``, ``||``, ``;`` or ``|``. Together they cover it. Empty if it has no
    parts that a pattern may cover alone."""
    from cantrip_acp.text import shell_parse

    return [f"{words} {ALL}" if is_prefix else f"={words}" for words, is_prefix in shell_parse.rules(text) or ()]


def describe_parts(parts: Sequence[str]) -> str:
    """Describe in full the patterns of a command's parts, because people decide by this text. If it would be too long, give
    the number."""
    shown = [f"`{each.removeprefix('=')}`" if each.startswith("=") else f"`{each[:-2]}` commands" for each in parts]
    words = " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    return words if len(words) <= _MOST_WORDS else f"these {len(parts)} commands, each alone or together"


def gate_word(gate: str) -> str:
    """The word for calls of a gate in the name of an option, such as "edits"."""
    return _WORDS.get(gate, gate)


def command_matches(text: str, pattern: str) -> bool:
    """Whether a pattern covers a command. A pattern of an older version that this version would not make covers nothing."""
    if pattern.startswith("="):
        return pattern[1:] == text
    from cantrip_acp.text import shell_parse

    prefix = shell_parse.command_prefix(text)
    return prefix is not None and pattern == f"{prefix} {ALL}"


def grants_for_other_folder(granted: Iterable[Grant]) -> list[Grant]:
    """The "always" answers that stay valid if a session moves to another folder: rejections, file patterns and hosts.

    Permissions for commands are dropped, because a command may do something else in another folder.
    """
    return [each for each in granted if not each.allowed or _PATH_OR_HOST.match(each.pattern)]


def writable_in_sandbox(paths: Sequence[str], wards: Wards) -> bool:
    """Whether the sandbox itself could write all of these paths."""
    folders = [os.path.realpath(folder) for folder in (*wards.bash_writable_paths, *wards.code_writable_paths)]
    return all(any(within(os.path.realpath(path), folder) for folder in folders) for path in paths)


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _path_matches(path: str, pattern: str) -> bool:
    folder, name = os.path.split(pattern)
    if name not in (ALL, "**") or _is_protected(os.path.relpath(path, folder)):
        return False
    return within(path, folder) if name == "**" else os.path.dirname(path) == folder


def _is_protected(path: str) -> bool:
    parts = [part for part in path.split("/") if part]
    return why_protected(parts) is not None or why_hidden(parts) is not None
