"""Text programs: finds a program in the text of a message, for crystals that write their calls as text.

Usually text is only text. The exception is a crystal in text-call mode (``text_calls``): it writes its tool calls as
text because its model accepts no tool definitions. It may write a program as a code block, if the medium has a
``tag`` for that. A message holds a program if it has exactly one fenced block with the tag at its top level.
A CommonMark parser finds the blocks. So a block in a quotation, a list, an HTML comment or another block is never a
program, and neither is one between the tags of an HTML element.

Models that are too weak for the format often come near it. What is nearly a program or a call is never guessed: the crystal is
told why nothing was run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from cantrip_acp.crystals.contract import CUTS, CrystalBase
from cantrip_acp.gates.ports import MediumBase
from cantrip_acp.text.defaults import complete
from cantrip_acp.types.messages import ToolCall

if TYPE_CHECKING:
    from cantrip_acp.crystals.contract import Crystal, Response
    from cantrip_acp.crystals.text_tools import Block
    from cantrip_acp.mediums.contract import Medium
    from cantrip_acp.types.messages import ToolDefinition

MOST_PROBLEMS = 2
"""How many messages in a row may hold an unclear program before they count as prose (LOOP-6)."""


def writes_calls(crystal: Crystal) -> bool:
    """Whether a crystal is in text-call mode."""
    return complete(crystal, CrystalBase).text_calls is True


def mode_line(medium: Medium, *, text_calls: bool) -> str | None:
    """What the capability block says about code blocks; None in a medium that runs no programs."""
    tag = complete(medium, MediumBase).tag
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


_NEAR = {"python": ("py", "python3"), "bash": ("sh", "shell")}
"""Other tags that models write on a code block in the language of a medium."""


class TextPrograms(Struct, frozen=True):
    """Reads the responses of a crystal in text-call mode. ``call_id`` is the id for a call that it finds.

    ``tag`` is None in a medium without programs. ``tools`` are the tools of the query.
    """

    medium: Medium
    tag: str | None
    call_id: str
    tools: Sequence[ToolDefinition]

    @classmethod
    def of(
        cls, medium: Medium, crystal: Crystal, tool_choice: str | None, call_id: str, tools: Sequence[ToolDefinition]
    ) -> TextPrograms | None:
        """Make a reader; None if the crystal's text cannot hold a program or a call."""
        if tool_choice == "none" or not writes_calls(crystal):
            return None
        return cls(medium, complete(medium, MediumBase).tag, call_id, tools)

    def read(self, response: Response) -> Response:
        """The response with the program in its text as a call, or with a ``problem`` if the program, or a call, is not clear.

        A response that calls something or that was refused is returned unchanged. So is one that was cut off at its token
        limit, unless the program was complete before that.
        """
        content = response.content
        if response.tool_calls or response.refused or not content:
            return response
        cut = response.stop_reason in CUTS
        found = self._program(content)
        if found is None and not cut:
            from cantrip_acp.crystals.text_tools import misplaced_call

            found = misplaced_call(content, self.tools)
        if isinstance(found, ToolCall):
            return msgspec.structs.replace(response, tool_calls=(found,), text_calls=True)
        return response if found is None or cut else msgspec.structs.replace(response, problem=found)

    def _program(self, content: str) -> ToolCall | str | None:
        """The call of the medium's tool with the program in a text, or why it is not clear; None if there is none."""
        if self.tag is None or ("```" not in content and "~~~" not in content):
            return None
        from cantrip_acp.crystals.text_tools import LONGEST, normalized, top_level_blocks, without_invented_turns

        text = without_invented_turns(normalized(content))
        if len(text) > LONGEST:
            return f"The message is longer than {LONGEST:,} characters and was not read for a program."
        every = top_level_blocks(text)
        blocks = [b for b in every if b.kind == "fence" and b.info.lower() == self.tag]
        if not blocks:
            near = [b.info for b in every if b.kind == "fence" and b.info.lower() in _NEAR.get(self.tag, ())]
            return None if not near else f"Nothing was run: the block begins with ```{near[0]}. {self._again}"
        problem = self._problem(text, every, blocks)
        if problem is not None or not blocks[0].body.strip():
            return problem
        assert self.medium.tool is not None
        medium: Any = self.medium
        return ToolCall(self.call_id, self.medium.tool, medium.arguments(blocks[0].body.removesuffix("\n")))

    @property
    def _again(self) -> str:
        return (
            f"To run a program, send a message with exactly one closed ```{self.tag} block; to show code, use ```text."
        )

    def _problem(self, text: str, every: list[Block], blocks: list[Block]) -> str | None:
        """Explain why it is unclear which program to run, and what the crystal can do."""
        from cantrip_acp.crystals.text_tools import enclosing_element, in_comment

        if len(blocks) > 1:
            return f"Nothing was run: the message has {len(blocks)} ```{self.tag} blocks. {self._again}"
        if not blocks[0].closed:
            return f"Nothing was run: the ```{self.tag} block is not closed, so the program may be incomplete. {self._again}"
        if in_comment(text, blocks[0].start):
            return f"Nothing was run: the ```{self.tag} block stands behind `<!--`, in a comment. {self._again}"
        element = enclosing_element(text, every, blocks[0])
        if element is not None:
            return f"Nothing was run: the ```{self.tag} block stands inside <{element}>. {self._again}"
        return None
