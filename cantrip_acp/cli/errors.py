"""Errors of the command line: runs a command, prints one message for each error, and chooses the exit status.

Exit statuses: 0 success, 1 a cast was truncated or failed, 2 wrong usage or an invalid file, 3 no sandbox on this
machine, 130 interrupted. ``CANTRIP_DEBUG=1`` shows tracebacks.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import click

from cantrip_acp.types.errors import (
    CantripError,
    DefinitionError,
    IntentRequired,
    LoomError,
    LoomWriteError,
    OutputError,
    SandboxMissing,
)

DONE, FAILED, USAGE, NO_SANDBOX, INTERRUPTED = 0, 1, 2, 3, 130


def run(argv: list[str]) -> int:
    """Run the command line and return the exit status. With ``--json`` a failure is also printed as an object."""
    from cantrip_acp.cli.json_errors import failure_of

    try:
        failure = failure_of(argv)
        status, problem = _run(argv)
        if failure is not None and (problem or status == INTERRUPTED):
            from cantrip_acp.cli.render.terminal import shown_error

            try:
                failure.show(shown_error(problem or "interrupted"), status)
            except OSError:
                # Nobody reads it, or the disk is full. The status and the text on stderr say what happened.
                discard_output(sys.stderr if failure.to_stderr else sys.stdout)
        return status
    except BrokenPipeError:
        discard_output()
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(argv: list[str]) -> tuple[int, str]:
    """Run the command line. Returns the exit status, and the text of the error if there was one."""
    from cantrip_acp.cli.command_table import cantrip

    try:
        status = cantrip.main(args=argv, prog_name="cantrip", standalone_mode=False)
        return (status if isinstance(status, int) else DONE), ""
    except click.exceptions.Exit as leave:
        return leave.exit_code, ""
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED, ""
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        _write("".join(f"{line}\n" for line in with_excerpts(shown.getvalue())))
        return USAGE, error.format_message()
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - users get a message and an exit status, not a traceback
        return report_error(error), error_text(error)


def error_text(error: BaseException) -> str:
    """The text of an error in one piece, with its notes."""
    found = own_error(error) or error
    text = _with_notes(found)
    return text if isinstance(found, CantripError | OSError) else f"a bug: {type(found).__name__}: {text}"


def _with_notes(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def report_error(error: BaseException) -> int:
    """Print an error on stderr and return its exit status."""

    if os.environ.get("CANTRIP_DEBUG") == "1":
        import traceback

        _write("".join(traceback.format_exception(error)))
    found = own_error(error)
    if isinstance(error, OSError):
        # The cause is not a bug, but for example a full disk or a folder without write permission.
        where = f"{error.filename}: " if error.filename is not None else ""
        _write(f"cantrip: {where}{error.strerror or error}\n")
        return FAILED
    if found is None:
        text = f"{type(error).__name__}: {error}"
        _write(f"cantrip: a bug: {text}\nPlease report it. With CANTRIP_DEBUG=1 the traceback is shown.\n")
        return FAILED
    text = _with_notes(found)
    text = "\n".join(with_excerpts(text)) if isinstance(found, DefinitionError) else text
    # If the text begins with a file and a line, print nothing before them: editors and terminals can then jump there.
    has_place = isinstance(found, DefinitionError) and found.where is None and ":" in text.split(" ", 1)[0]
    _write(f"{text}\n" if has_place else f"cantrip: {text}\n")
    return status_of(found)


_PLACE = re.compile(r"(?P<file>[^\0\n]+?):(?P<line>[1-9]\d{0,6}):(?P<column>[1-9]\d{0,6}): ")
_MOST_BYTES = 1_000_000
_WIDTH = 100


def with_excerpts(text: str) -> Iterator[str]:
    """The lines of an error, and below each that begins with ``file:line:column:`` the line of the file, with a caret."""
    for line in text.splitlines():
        yield line
        found = _PLACE.match(line.removeprefix("Error: "))
        if found is not None:
            # After the place comes the key, if the problem is at one.
            key = line.removeprefix("Error: ")[found.end() :].partition(": ")[0]
            yield from _excerpt("" if " " in key else key, found["file"], int(found["line"]), int(found["column"]))


def _excerpt(key_path: str, file: str, line: int, column: int) -> Iterator[str]:
    from cantrip_acp.cli.render.terminal import cell_len
    from cantrip_acp.text.redaction import holds_shape
    from cantrip_acp.text.sanitize import clean

    try:
        path = Path(file).expanduser()
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, ValueError):
        return
    here = lines[line - 1].rstrip() if line <= len(lines) else ""
    if not here.strip():
        return
    if _SECRET.search(here) or _SECRET.search(key_path) or holds_shape(here):
        # Only the first key is shown, because a value may be a secret.
        key, colon, rest = here.partition(":")
        here = f"{key}{colon}{_TEXT.sub('·', rest)}" if colon else _TEXT.sub("·", here)
    here = clean(here.replace("\t", " "))
    start = max(0, column - 1 - _WIDTH * 2 // 3)
    shown = here[start : start + _WIDTH]
    number = f"{line:>5} | "
    yield f"{number}{shown}"
    yield f"{' ' * (len(number) - 2)}| {' ' * cell_len(shown[: column - 1 - start])}^"


_SECRET = re.compile(r"(key|token(?!s|_prompts)|secret|passw|authorization|header|\benv\b|://[^/\s]*@)", re.IGNORECASE)
_TEXT = re.compile(r"[^\s,:{}\[\]#-]")


def status_of(error: CantripError) -> int:
    """The exit status for an error of this package."""
    if isinstance(error, SandboxMissing):
        return NO_SANDBOX
    if isinstance(error, DefinitionError | IntentRequired | OutputError):
        return USAGE
    if isinstance(error, LoomError) and not isinstance(error, LoomWriteError):
        return USAGE
    return FAILED


def own_error(error: BaseException) -> CantripError | None:
    """Return the `CantripError` that this error is, or that its exception group contains (task groups wrap errors).

    Returns None if there is an error of another class.
    """
    if isinstance(error, CantripError):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = [own_error(inner) for inner in error.exceptions]
        if found and all(inner is not None for inner in found):
            return found[0]
    return None


def _write(text: str) -> None:
    from cantrip_acp.cli.render.terminal import shown_error
    from cantrip_acp.text.sanitize import clean

    sys.stderr.write(clean(shown_error(text)))
    sys.stderr.flush()


def discard_output(stream: TextIO | None = None) -> None:
    """Send all later output to /dev/null. Call this when the reader of stdout (or of another stream) is gone.

    Otherwise Python prints an error at exit, because it cannot flush its buffers.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, (sys.stdout if stream is None else stream).fileno())
    os.close(nowhere)
