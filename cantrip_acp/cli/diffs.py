"""A change of a file as a unified diff, line by line with a style each."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

# Above this, working out the smallest difference takes longer than anybody waits for a display.
_MOST_LINES = 20_000


def unified(name: str, old: str | None, new: str, *, limit: int | None = 120) -> Iterator[tuple[str, str]]:
    """`(line, style)` pairs; `old` is None for a new file. At most `limit` lines, the rest is counted."""
    before = [] if old is None else old.splitlines()
    after = new.splitlines()
    a, b = (name, name) if name.startswith("/") else (f"a/{name}", f"b/{name}")
    yield ("--- /dev/null" if old is None else f"--- {a}"), "bold"
    yield f"+++ {b}", "bold"
    if len(before) + len(after) > _MOST_LINES:
        yield f"{len(before):,} lines become {len(after):,}: too much to show here", "dim italic"
        return
    shown = 0
    left_out = 0
    for number, line in enumerate(difflib.unified_diff(before, after, lineterm="", n=3)):
        if number < 2:
            continue  # difflib's own file names
        if limit is not None and shown >= limit:
            left_out += 1
            continue
        shown += 1
        yield line, {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
    if left_out:
        yield f"… {left_out:,} more lines of this change …", "dim italic"
    elif not shown:
        yield "(no line differs)", "dim italic"
    elif old is not None and old.endswith("\n") != new.endswith("\n"):
        yield "\\ no newline at the end of the " + ("new file" if old.endswith("\n") else "old file"), "dim"
