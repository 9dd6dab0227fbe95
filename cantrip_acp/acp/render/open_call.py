"""Open call: what is known of a tool call until it ends. The translator of a session has the one table of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.render.formatting import (
    ASKED_IN_CHAT,
    CONTENT_LIMIT,
    STOPPED,
    call_meta,
    code_block,
    failure_text,
    image_content,
    pretty_json,
    result_content,
    text_content,
)
from cantrip_acp.acp.render.plan import Batch
from cantrip_acp.acp.render.subagent_view import CallChildren
from cantrip_acp.text.program_output import shorten_output, shorten_styled_output
from cantrip_acp.types import events
from cantrip_acp.types.styled import Styled, join

OUTPUT_LIMIT = 100_000
"""Characters of a command's output in its ``rawOutput``."""


class CommandText:
    """The output of a command so far."""

    def __init__(self) -> None:
        self.progress = ""
        """The text of the line that the command is rewriting, such as a progress bar."""
        self._pieces: list[Styled] = []
        self._size = 0

    def add(self, data: Styled) -> None:
        self._pieces.append(data)
        self._size += len(data.text)
        if self._size > 2 * OUTPUT_LIMIT:
            self.replace(self.whole())

    def replace(self, whole: Styled) -> None:
        """Set the output to the recorded one."""
        self._pieces, self._size = [whole], len(whole.text)

    def whole(self) -> Styled:
        """The output, shortened in the middle if it is longer than `OUTPUT_LIMIT` characters."""
        if len(self._pieces) > 1:
            self._pieces = [join(self._pieces)]
        return shorten_styled_output(self._pieces[0], OUTPUT_LIMIT).bounded() if self._pieces else Styled("")

    def content(self) -> list[acp.ToolContent]:
        """The output as content of the tool call. Empty if there is none."""
        text = self.whole().text + self.progress
        return [text_content(code_block(shorten_output(text, CONTENT_LIMIT)))] if text else []


class OpenCall:
    """A tool call that is not finished."""

    def __init__(self, kind: str, title: str, *, command: bool = False, terminal: bool = False) -> None:
        self.kind = kind
        self.title = title
        self.child_name: str | None = None
        """The display name of the child that made the call."""
        self.origin: dict[str, str] = {}
        """For ``_meta.cantrip``: the command or call that made this call (``via``), and the child's id (``child``)."""
        self.output = CommandText() if command else None
        self.terminal = terminal
        """Whether the output goes into a display terminal."""
        self.in_client_terminal = False
        """Whether it runs in a terminal of the client. Then the content of the tool call stays this terminal."""
        self.children: CallChildren | None = None
        self.batch: Batch | None = None
        """The entries of the plan for the children that it starts."""
        self.started = command
        self.done = False
        """Whether the call's command called `done`, which ends the command at once. The command has not failed then."""
        self.dirty = False
        """Whether it has output or actions of children that the client does not know yet."""

    def content(self) -> list[acp.ToolContent]:
        """The children and the output so far. A terminal shows the output itself."""
        shown = self.children.content() if self.children is not None else []
        return [*shown, *(self.output.content() if self.output is not None and not self.terminal else ())]

    def final_content(self, event: events.GateFinished) -> list[acp.ToolContent]:
        """The children, the changes, and the result unless the changes or the client's terminal show it."""
        record, annotations = event.record, event.record.annotations or {}
        content: list[acp.ToolContent] = [acp.Diff(diff.path, diff.old_text, diff.new_text) for diff in event.diffs]
        shown_already = self.in_client_terminal and not record.is_error
        if events.ASKED_IN_CHAT in annotations:
            content.append(text_content(ASKED_IN_CHAT))
        elif record.is_error or (not content and record.gate != "done" and not shown_already):
            text = record.result
            if record.is_error:
                text = failure_text(text if isinstance(text, str) else pretty_json(text), annotations)
            content += result_content(text, self.kind, failed=record.is_error)
        return [*self.content(), *content, *image_content(record.attachments or ())]

    def meta(self, annotations: Mapping[str, Any]) -> dict[str, Any] | None:
        """The ``_meta`` of an update, or None if there is nothing to send. It replaces the earlier ``_meta``.

        It lists the actions of the call's children since the last update.
        """
        actions = self.children.take_actions() if self.children is not None else None
        if actions is not None:
            found = call_meta(annotations, **self.origin) or {"cantrip": {}}
            return {"cantrip": {**found["cantrip"], "children": actions}}
        return call_meta(annotations, **self.origin) if call_meta(annotations) else None

    def stopped(self) -> list[acp.ToolContent]:
        """The content of a call that ended without an end event."""
        return self.content() or ([text_content(STOPPED)] if self.output is not None and not self.terminal else [])
