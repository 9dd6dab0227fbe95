"""Where a child comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cantrip_acp.loop import CastRun


@dataclass(slots=True)
class Birth:
    """A child's place in its tree.

    ``run`` is the parent's cast that it works for, ``turn_id`` the turn that spawned it, ``call_id`` the gate call among
    events, ``index`` its place in a batch. ``number`` counts its parent's children from 0, in the order of their birth. A
    child that is asked again later (one that was summoned) works for the cast that asks: run, turn and call are then set anew.
    """

    run: CastRun
    turn_id: str
    call_id: str
    number: int = 0
    index: int | None = None
