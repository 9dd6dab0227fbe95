"""Edits of one utterance, which are approved together: one question with the changes of all files.

The answer covers exactly what was shown. A call whose change is another one when it runs is asked about again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from cantrip_acp.types.records import Diff

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import GateInvocation

Answer = Literal[
    "allow_once", "allow_always", "allow_project", "allow_registries", "allow_step", "each", "reject_once", "reject_always",
    "unasked",
]  # fmt: skip
"""The answer to a question. ``allow_step`` allows all edits of the running program, ``each`` asks about the edits one by one.
``allow_project`` allows a host of the network in every session of the project, ``allow_registries`` all hosts of its registries.
``unasked`` means that the client could not show the question."""


class Decision(msgspec.Struct, frozen=True):
    """The user's answer to a question. ``reason`` says why something is rejected; the entity reads it."""

    answer: Answer
    reason: str = ""


class Edit(Struct, frozen=True):
    """A call, and the changes of files that a question shows for it."""

    gate: str
    args: Mapping[str, Any]
    diffs: tuple[Diff, ...]

    def is_call(self, invocation: GateInvocation) -> bool:
        return self.gate == invocation.gate.name and self.args == invocation.args


class Edits(Struct):
    """The edits of one utterance. ``asked``: whether the user was asked about them together, which happens once."""

    calls: Sequence[GateInvocation]
    asked: bool = False
    shown: list[Edit] = []
    decision: Decision | None = None

    def later(self, invocation: GateInvocation) -> Sequence[GateInvocation]:
        """The calls after this one."""
        for number, each in enumerate(self.calls):
            if each.gate.name == invocation.gate.name and each.args == invocation.args:
                return self.calls[number + 1 :]
        return ()

    def take(self, invocation: GateInvocation, diffs: tuple[Diff, ...]) -> Decision | None:
        """The answer to the common question about several edits, for a call that was among them and still makes the same
        change."""
        shown = next((each for each in self.shown if each.is_call(invocation)), None)
        if shown is None or self.decision is None:
            return None
        self.shown.remove(shown)
        # A rejection holds whatever the change would be now.
        return self.decision if shown.diffs == diffs or not self.decision.answer.startswith("allow") else None


def follow(invocation: GateInvocation, texts: Mapping[str, str]) -> tuple[Diff, ...] | None:
    """The change of a call to a file that earlier calls change to one of these texts (by path). None if it cannot be known.

    Raises `GateError` if the call would fail.
    """
    from cantrip_acp.gates.files import edit_file, write_file

    gate, args = invocation.gate, invocation.args
    if len(texts) != 1:
        return None
    (path,) = texts
    if gate.handler == write_file.WRITE_FILE.handler:
        return (Diff(path, texts[path], args["content"]),)
    if gate.handler == edit_file.EDIT_FILE.handler:
        every = bool(args.get("replace_all", False))
        new = edit_file.replace_exactly(texts[path], args["old_text"], args["new_text"], every=every, shown=path).text
        return (Diff(path, texts[path], new),)
    return None
