"""The command that runs cases of a conformance suite: all of them, those of a rule, or the one at a line."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cantrip_acp.core.errors import DefinitionError
from cantrip_acp.lsp.commands.arguments import Given
from cantrip_acp.lsp.commands.command_run import Work
from cantrip_acp.lsp.server.documents import Held
from cantrip_acp.lsp.server.positions import Text

if TYPE_CHECKING:
    from cantrip_acp.conformance.case import Case
    from cantrip_acp.lsp.server.server import Server


async def run(server: Server, given: Given, work: Work) -> dict[str, Any]:
    """Run the cases against this package's own loop, with the text that the editor has. Failures become diagnostics."""
    from cantrip_acp.conformance.runner import chosen

    path = given.file()
    held = server.documents.at(path)
    if held is None:
        held = Held(path.as_uri(), Text(await asyncio.to_thread(_text, path)), None)
    line = int(given.number("line")) if given.has("line") else None
    rule = given.text("rule", "")
    ran = 0

    def wanted(case: Case) -> bool:
        nonlocal ran
        fits = (line is None or case.line == line) and (not rule or bool(chosen([case], [rule])))
        ran += fits
        return fits

    told = await server.suites.run(held, wanted, work.say, work.on_cancel)
    if not ran:
        where = f"{path}:{line}" if line is not None else str(path)
        raise DefinitionError(f"no case{' begins there' if line is not None else f' has the rule {rule}'}", where=where)
    return told


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DefinitionError(f"cannot read the suite: {error.strerror or error}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise DefinitionError(f"a suite is UTF-8 text; byte {error.start} is not", where=str(path)) from error
