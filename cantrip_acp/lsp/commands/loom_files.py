"""Commands on a whole loom: open its page in the viewer, and export threads for trainers and trace stores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from cantrip_acp.core.errors import DefinitionError, LoomError
from cantrip_acp.lsp.commands.arguments import Given
from cantrip_acp.lsp.commands.command_run import Work
from cantrip_acp.lsp.commands.loom_commands import chosen, loom_file, turn_of
from cantrip_acp.lsp.commands.runner import Failed

if TYPE_CHECKING:
    from cantrip_acp.lsp.server.server import Server
    from cantrip_acp.training.export.selection import Report

FRAMES = ("vscode-webview:",)
"""The origins that may show the page in a frame."""


async def view(server: Server, given: Given, work: Work) -> dict[str, Any]:
    """Serve a loom's page and let the client open it; with ``html``, write it to one self-contained file."""
    path = loom_file(given)
    if given.has("html"):
        return await _written(server, work, path, given.file("html"))
    hosts = tuple(host for host in given.text("hosts", "").split(",") if host)
    view = await asyncio.to_thread(server.looms.view, path, hosts, FRAMES)
    if given.has("turn"):
        turn, _ = await asyncio.to_thread(turn_of, path, given.text("turn"))
        url = view.link(turn)
    else:
        url = view.url
    shown = False
    if not given.flag("hidden"):
        shown = await server.show(url, external=True)
        if not shown:
            server.window_show_message(types.ShowMessageParams(types.MessageType.Info, f"The loom's page: {url}"))
    return {"url": url, "port": view.port, "shown": shown}


async def _written(server: Server, work: Work, path: Path, target: Path) -> dict[str, Any]:
    from cantrip_acp.loom.view import write_html

    work.say("writing the page")
    count = await asyncio.to_thread(write_html, path, target)
    work.say(f"{count:,} turns")
    return {"file": str(target), "uri": target.as_uri(), "turns": count}


class _Cancelled(Exception):
    """The user cancelled the export."""


async def export(server: Server, given: Given, work: Work) -> dict[str, Any]:
    """Export threads in a format for trainers and trace stores: all threads, or the one that ends in ``turn``."""
    from cantrip_acp.training.export import registry

    path = loom_file(given)
    if given.has("format"):
        name = given.text("format")
    else:
        names = tuple(await asyncio.to_thread(registry.names))
        name = await chosen(server, "Export in which format?", names, "format", f"one of {', '.join(names)}")
    format_ = registry.find(name)
    target = given.file("output") if given.has("output") else _free(path, name)
    turn = given.text("turn", "")
    loop = asyncio.get_running_loop()

    def tell(done: int, of: int) -> None:
        if work.cancelled:
            raise _Cancelled
        if done % 20 == 0 or done == of:
            loop.call_soon_threadsafe(work.say, f"{done:,} of {of:,} threads")

    def run() -> Report:
        from cantrip_acp.files.output_file import output_file
        from cantrip_acp.loom.find_loom import find_turn, open_readonly
        from cantrip_acp.training.export.rows import write
        from cantrip_acp.training.export.selection import Source, Wanted

        with open_readonly(path) as loom:
            # A thread that is named is exported however it ended.
            wanted = Wanted(threads=(find_turn(loom, turn),), truncated=True) if turn else Wanted()
            source = Source(loom, wanted, tell)
            with output_file(target) as file:
                report = write(format_, source, file)
                if not report.rows:
                    why = ", ".join(f"{count} × {reason}" for reason, count in report.left_out.items())
                    raise LoomError(f"no thread was left to write in {path}{f' ({why})' if why else ''}")
                return report

    work.on_cancel(lambda: None)  # `tell` checks for a cancel between two threads
    try:
        report = await asyncio.to_thread(run)
    except _Cancelled:
        raise Failed("the export was cancelled; nothing was written", data={"error": "Cancelled"}) from None
    work.say(f"{report.rows:,} rows of {report.threads:,} threads")
    shown = await server.show(target.as_uri()) if not given.flag("hidden") else False
    about = report.record()
    return {
        "file": str(target),
        "uri": target.as_uri(),
        "format": name,
        "shown": shown,
        "rows": about["rows"],
        "threads": about["threads"],
        "leftOut": about["left_out"],
        "notes": about["notes"],
    }


def _free(loom: Path, name: str) -> Path:
    """The path of a new file beside the loom."""
    stem = loom.name.removesuffix(".loom.jsonl")
    for number in range(1, 10_000):
        count = "" if number == 1 else f"-{number}"
        path = loom.with_name(f"{stem}.{name}{count}.jsonl")
        if not path.exists():
            return path
    raise DefinitionError("too many exports lie beside the loom; name a file as the argument `output`", where=str(loom))
