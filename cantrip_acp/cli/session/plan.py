"""Plan mode in `cantrip repl`: the entity changes nothing until the user approves its plan at the terminal."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from cantrip_acp.acp.sessions import modes
from cantrip_acp.acp.sessions.plan_mode import INSTRUCTION, approved_intent, plan_in, returned_intent

if TYPE_CHECKING:
    from collections.abc import Callable

    from cantrip_acp.cli.session.loop_thread import EntityThread
    from cantrip_acp.cli.session.mode import TerminalMode
    from cantrip_acp.core.context_block import ContextBlock

CHOICES = (
    "carry out this plan?  1 yes, and ask before each change   2 yes, and do not ask   e edit it   n COMMENTS return it"
)


class TerminalPlan:
    """Plan mode of one entity. ``show`` prints a note, ``read`` asks for a line, ``in_terminal`` runs an editor."""

    def __init__(
        self,
        mode: TerminalMode,
        show: Callable[[str], None],
        read: Callable[[str], str],
        in_terminal: Callable[[Callable[[], str]], str] = lambda work: work(),
    ) -> None:
        self._mode = mode
        self._show = show
        self._read = read
        self._in_terminal = in_terminal
        mode.set(modes.PLAN)

    @property
    def context(self) -> tuple[ContextBlock, ...]:
        """What the entity reads before the next intent."""
        return (INSTRUCTION,) if self._mode.name == modes.PLAN and not self._mode.told_next else ()

    def command(self, words: str, run: EntityThread) -> bool:
        """Run ``/plan``, which goes back to plan mode. Returns False for any other line."""
        if words != "/plan":
            return False
        run.call(self._mode.set, modes.PLAN)
        self._show("plan mode: nothing is changed until you approve a plan")
        return True

    def decide(self, answer: Any, run: EntityThread) -> str | None:
        """Ask about the plan in the answer of a cast. Returns the next intent; None if nothing follows."""
        plan = plan_in(answer) if self._mode.name == modes.PLAN else None
        edited = False
        while plan is not None:
            self._show(CHOICES)
            try:
                words = self._read("plan? ").strip()
            except (EOFError, KeyboardInterrupt):
                return None
            if words in ("1", "2"):
                mode = modes.ASK if words == "1" else modes.TRUSTED
                run.call(self._mode.set, mode)
                return approved_intent(plan, mode, edited=edited)
            if words == "e":
                changed = self._in_terminal(partial(_edit, plan))
                edited, plan = edited or changed != plan, changed
                self._show(plan)
            elif re.match(r"no?\b", words, re.IGNORECASE):
                comments = words.partition(" ")[2].strip()
                return returned_intent(comments) if comments else None
            else:
                self._show("type 1, 2, e, or n and your comments")
        return None


def _edit(plan: str) -> str:
    """Open the plan in the user's editor ($VISUAL, $EDITOR). Returns what is left there; the plan itself if it is empty."""
    import click

    changed = click.edit(plan, extension=".md")
    return changed.strip() if changed is not None and changed.strip() else plan
