"""What an editor shows of a file gate's call before it runs: where it leads, links resolved."""

from __future__ import annotations

from cantrip_acp.core.errors import GateError
from cantrip_acp.core.events import Location
from cantrip_acp.gates.contract import GateContext
from cantrip_acp.gates.place import one_line, valid
from cantrip_acp.gates.roots import Root


def located(path: str, context: GateContext, line: int | None = None) -> tuple[str, tuple[Location, ...]]:
    """The path as it is shown in a title, and its location (none where it leads out of the root).

    A person decides by this whether a write may happen, so a link is shown with what it leads to.
    """
    root = Root.of(context)
    try:
        with root.find(path) as place:
            shown, absolute = place.shown, place.absolute
        lexical = root.lexical(path)
        if lexical is not None and valid(lexical) != absolute:
            shown = f"{one_line(path)} → {shown}"
        return shown, (Location(absolute, line),)
    except GateError:
        lexical = root.lexical(path)
        return one_line(path), (Location(valid(lexical), line),) if lexical is not None else ()
