"""The gate ``search``: searches the lines of files for a regular expression, with ripgrep if installed, else with Python.

The search runs in a thread, which waits for a process. A cancel kills that process at once.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Generator, Mapping
from typing import Any

import anyio.to_thread

from cantrip_acp.files.ignore_files import Globs
from cantrip_acp.gates.confinement import Root, display_path, valid_text
from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.gates.registry import FILE_OPTIONS, TIMEOUT
from cantrip_acp.gates.search import ripgrep
from cantrip_acp.gates.search.search_types import (
    EngineRefused,
    Hit,
    Search,
    SearchProcess,
    SearchTimeout,
    writable_folders,
)
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.records import Location

MAX_RESULTS = 200
MOST_RESULTS = 5_000
_BYTES = 262_144
"""The most bytes of a result. With long lines, this limit is reached before the limit of lines."""
SECONDS = 20.0
"""The most seconds of a search. The dependency ``timeout_s`` changes it."""
_SHOWN_LOCATIONS = 20


async def _search(args: Mapping[str, Any], context: GateContext) -> GateReply:
    pattern, path, glob = args["pattern"], args.get("path", "."), args.get("glob")
    if not pattern:
        raise GateError("the pattern is empty", "give a regular expression, such as 'def \\w+'")
    for given in (pattern, glob or ""):
        if "\0" in given or any("\ud800" <= c <= "\udfff" for c in given):
            raise GateError(f"{given[:200]!r} has a character that no line of text can contain")
    if glob:
        Globs(glob)
    seconds = float(context.dependencies.get("timeout_s", SECONDS))
    root = Root.of(context)
    with root.find(path) as place:
        if place.status is None:
            raise place.no_such("file or folder")
        is_file = not stat.S_ISDIR(place.status.st_mode)
        if is_file and not stat.S_ISREG(place.status.st_mode):
            place.open_file()
        parts, shown, location, root = place.parts, place.shown, place.location(), place.root
    search = Search(
        root=root,
        parts=parts,
        file=is_file,
        pattern=pattern,
        ignore_case=bool(args.get("ignore_case", False)),
        glob=glob or None,
        limit=int(args.get("max_results", MAX_RESULTS)),
        deadline=time.monotonic() + seconds,
        own=writable_folders(context, root.path),
        child=SearchProcess(),
    )
    program = ripgrep.find_ripgrep(search.own)
    try:
        hits, note = await anyio.to_thread.run_sync(_collect, search, program, seconds, abandon_on_cancel=True)
    finally:
        search.child.stop()
    if not hits and not note:
        where = f" in {shown}" + (f" (files {glob})" if glob else "")
        return GateReply(f"no matches{where}", locations=(location,), title=_title(args))
    lines = [*map(str, hits), note] if note else map(str, hits)
    places = tuple(Location(valid_text(os.path.join(root.path, *h.parts)), h.line) for h in hits[:_SHOWN_LOCATIONS])
    return GateReply("\n".join(lines), locations=places or (location,), title=_title(args))


def _collect(search: Search, program: str | None, seconds: float) -> tuple[list[Hit], str]:
    """Collect the hits, and a note if they are incomplete. Runs in a thread."""
    found: list[Hit] = []
    size = 0
    hits = _hits(search, program)
    try:
        for hit in hits:
            size += len(str(hit))
            if len(found) == search.limit or size > _BYTES:
                more = ", or raise max_results" if size <= _BYTES and search.limit < MOST_RESULTS else ""
                return found, (
                    f"[cut: these are the first {len(found):,} matching lines; narrow pattern, path or glob{more}]"
                )
            found.append(hit)
    except SearchTimeout:
        return found, (
            f"[stopped after {seconds:g} seconds, so this is not all; narrow path or glob, or use a pattern that matches "
            "in fewer ways]"
        )
    finally:
        hits.close()
    return found, ""


def _hits(search: Search, program: str | None) -> Generator[Hit, None, None]:
    if program is not None:
        try:
            yield from ripgrep.hits(program, search)
            return
        except EngineRefused:
            # Python's engine also supports look-around and back references. If it refuses too, it explains why.
            pass
    from cantrip_acp.gates.search import search_python

    yield from search_python.hits(search)


def _title(args: Mapping[str, Any], shown: str | None = None) -> str:
    where = shown or args.get("path", ".")
    inside = f" in {where}" if where != "." else ""
    return f"Search {args['pattern'][:80]!r}{inside}" + (f" ({args['glob']})" if args.get("glob") else "")


def _preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
    shown, locations = display_path(args.get("path", "."), context)
    return GateReply(None, title=_title(args, shown), locations=locations)


SEARCH = Gate(
    name="search",
    options={**FILE_OPTIONS, "timeout_s": TIMEOUT},
    description=(
        "Search files for a regular expression, line by line. Returns 'path:line:text' lines, sorted by path. "
        "Files that ignore files name are left out, and so are binary files and .git."
    ),
    parameters={
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "A regular expression, such as 'def \\w+\\(' or TODO."},
            "path": {
                "type": "string",
                "default": ".",
                "description": "The folder or file to search, relative to the gate's folder. Default: all of it.",
            },
            "glob": {
                "type": "string",
                "description": (
                    "Only files like this, such as '*.py' or 'src/**/*.{ts,tsx}' (from the gate's folder); '!*.md' leaves out."
                ),
            },
            "ignore_case": {"type": "boolean", "default": False, "description": "Large and small letters alike."},
            "max_results": {
                "type": "integer",
                "minimum": 1,
                "maximum": MOST_RESULTS,
                "default": MAX_RESULTS,
                "description": f"Matching lines at most. Default: {MAX_RESULTS}.",
            },
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
    handler=_search,
    kind="search",
    preview=_preview,
)
