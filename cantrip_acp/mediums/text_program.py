"""Text programs: finds a program in the text of a message, for crystals that write their calls as text.

Usually text is only text. The exception is a crystal in text-call mode (``text_calls``): it writes its tool calls as
text because its model accepts no tool definitions. It may write a program as a code block, if the medium has a
``tag`` for that. A message holds a program if it has exactly one fenced block with the tag at its top level.
A CommonMark parser finds the blocks. So a block in a quotation, a list, an HTML comment or another block is never a
program, and neither is one between the tags of an HTML element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.crystals.contract import ToolCall

if TYPE_CHECKING:
    from cantrip_acp.crystals.contract import Crystal, Response
    from cantrip_acp.crystals.text_tools import Block
    from cantrip_acp.mediums.contract import Medium

MOST_PROBLEMS = 2
"""How many messages in a row may hold an unclear program before they count as prose (LOOP-6)."""


def writes_calls(crystal: Crystal) -> bool:
    """Whether a crystal is in text-call mode."""
    return getattr(crystal, "text_calls", False) is True


def mode_line(medium: Medium, *, text_calls: bool) -> str | None:
    """What the capability block says about code blocks; None in a medium that runs no programs."""
    tag = getattr(medium, "tag", None)
    if medium.tool is None:
        return None
    if not text_calls or tag is None:
        return f"Only calls of the `{medium.tool}` tool are run. Code in a message is text: it is shown and never run."
    return (
        f"Your tool calls are text. A program can also be a fenced code block: a message with exactly one ```{tag} block is a "
        f"call of the `{medium.tool}` tool with what the block holds. The block must be closed, and must not be inside a list, a "
        f"quotation or another block. A message with several ```{tag} blocks is not run. To show code that is not to be run, "
        "use ```text."
    )


@dataclass(frozen=True, slots=True)
class TextPrograms:
    """Reads the responses of a crystal in text-call mode. ``call_id`` is the id for a call that it finds."""

    medium: Medium
    tag: str
    call_id: str

    @classmethod
    def of(cls, medium: Medium, crystal: Crystal, tool_choice: str | None, call_id: str) -> TextPrograms | None:
        """Make a reader; None if the crystal's text cannot hold a program."""
        tag = getattr(medium, "tag", None)
        if tag is None or tool_choice == "none" or not writes_calls(crystal):
            return None
        return cls(medium, tag, call_id)

    def read(self, response: Response) -> Response:
        """The response with the program in its text as a call, or with a ``problem`` if the program is not clear.

        A response that calls something, that was refused, or that was cut off at its token limit is returned
        unchanged.
        """
        content = response.content
        if response.tool_calls or response.refused or response.stop_reason == "length" or not content:
            return response
        if "```" not in content and "~~~" not in content:
            return response
        from cantrip_acp.crystals.text_tools import LONGEST, normalized, top_level_blocks

        text = normalized(content)
        if len(text) > LONGEST:
            long = f"The message is longer than {LONGEST:,} characters and was not read for a program."
            return msgspec.structs.replace(response, problem=long)
        every = top_level_blocks(text)
        blocks = [b for b in every if b.kind == "fence" and b.info.lower() == self.tag]
        if not blocks:
            return response
        problem = self._problem(text, every, blocks)
        if problem is not None:
            return msgspec.structs.replace(response, problem=problem)
        if not blocks[0].body.strip():
            return response
        assert self.medium.tool is not None
        medium: Any = self.medium
        program = medium.arguments(blocks[0].body.removesuffix("\n"))
        call = ToolCall(self.call_id, self.medium.tool, program)
        return msgspec.structs.replace(response, tool_calls=(call,), text_calls=True)

    def _problem(self, text: str, every: list[Block], blocks: list[Block]) -> str | None:
        """Why it is not clear what to run, and what the crystal can do about it."""
        from cantrip_acp.crystals.text_tools import enclosing_element, in_comment

        again = (
            f"To run a program, send a message with exactly one closed ```{self.tag} block; to show code, use ```text."
        )
        if len(blocks) > 1:
            return f"Nothing was run: the message has {len(blocks)} ```{self.tag} blocks. {again}"
        if not blocks[0].closed:
            return f"Nothing was run: the ```{self.tag} block is not closed, so the program may be incomplete. {again}"
        if in_comment(text, blocks[0].start):
            return f"Nothing was run: the ```{self.tag} block stands behind `<!--`, in a comment. {again}"
        element = enclosing_element(text, every, blocks[0])
        if element is not None:
            return f"Nothing was run: the ```{self.tag} block stands inside <{element}>. {again}"
        return None
