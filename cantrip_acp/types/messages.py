"""What goes to a crystal: messages, with their tool calls and attachments, tools, and the parameters of a request. What comes
back beside text and calls: the tokens as they were sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(msgspec.Struct, frozen=True):
    """One call in a response. ``args`` is the JSON text exactly as the crystal gave it (CRYSTAL-4), unless it could not be read
    and only one meaning was possible (`mended_answers`)."""

    id: str
    gate: str
    args: str = "{}"


class Attachment(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of a prompt that is not text. ``data`` is base64; ``uri`` and ``title`` say where it came from.

    If the model does not accept this ``kind``, it gets a text note instead (`catalog.types.attachment_note`).
    """

    untouched: ClassVar = ("data",)

    kind: Literal["image", "audio", "document"]
    mime: str
    data: str
    uri: str | None = None
    title: str = ""

    @classmethod
    def of(cls, mime: str, data: str, uri: str | None = None, title: str = "") -> Attachment:
        """Make an attachment. Its kind follows from the media type."""
        match mime.partition("/")[0]:
            case "image":
                return cls("image", mime, data, uri, title)
            case "audio":
                return cls("audio", mime, data, uri, title)
            case _:
                return cls("document", mime, data, uri, title)


class Message(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One message of a query.

    - Only an assistant's message has ``tool_calls`` and ``thinking``.
    - Only a tool's answer has ``tool_call_id``, ``name`` and ``is_error``.
    - ``kind`` is the origin: call, capabilities, context, knowledge, intent, turn, partial (an interrupted answer), nudge or
      fold.
    - ``provider`` is data that must go back to the provider unchanged (signatures of thinking, reasoning items). It is a
      mapping. Its ``family`` names the provider, so that other providers ignore it (CRYSTAL-6).
    - ``attachments`` come before the text of a user's message, and after the text of a tool's answer.
    - ``text_calls`` is true if the content of an assistant's message contains its tool calls as text.
    """

    role: Role
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    is_error: bool = False
    thinking: str | None = None
    kind: str = "turn"
    provider: Any = None
    attachments: tuple[Attachment, ...] = ()
    text_calls: bool = False


KIND_NAMES = {
    "call": "system prompt",
    "capabilities": "capabilities",
    "knowledge": "what the session knew",
    "context": "context given with prompts",
    "intent": "prompts",
    "steering": "messages that came while a prompt ran",
    "turn": "turns: answers, calls and results",
    "partial": "answers that were not finished",
    "nudge": "hints of cantrip",
    "fold": "summary of folded turns",
}
"""What a message is, in words for people, by its ``kind``."""


class ToolDefinition(msgspec.Struct, frozen=True):
    """A tool that the crystal may call: a gate, or a medium's own tool. ``parameters`` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


ToolMode = Literal["native", "text", "none"]
"""How a query offered tools: as tool definitions, as text in the messages (`text_tools`), or not at all."""


class RequestParameters(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parameters of a request as they were sent. None: not sent, because not requested or not supported by the model.

    - ``stop`` are the stop sequences, with those that the crystal adds.
    - ``tool_mode`` is a `ToolMode`. None if the crystal does not report it.
    - ``dialect`` names the form in which a Chat Completions server got the messages (`openai.chat_messages.DIALECTS`).
    - ``template`` is the `template_label` of the server's chat template, if the server reports the template.
    - ``weights`` is the label of the version of the weights that answered: the crystal's option ``weights``, else what
      the server reports, else ``$CANTRIP_WEIGHTS``.
    - ``call_ids`` is the form of the ids of calls that a Chat Completions server got (`openai.tool_names.IdStyle`).
    """

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop: tuple[str, ...] = ()
    tool_mode: ToolMode | None = None
    dialect: str | None = None
    template: str | None = None
    weights: str | None = None
    call_ids: str = ""


class SampledTokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """The known data about the tokens of one response, in the order of sampling.

    ``ids``, ``texts`` and ``logprobs`` (natural logarithms) have the same length; an unknown list is empty. ``raw`` maps
    the position of a token to its bytes, if its text is only part of a character. ``prompt_ids`` are the prompt's tokens
    from index ``prompt_from``. The tokens before that index are the same as in the prompt and response of the entity's
    previous turn.
    """

    ids: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    raw: Mapping[str, tuple[int, ...]] = {}
    prompt_ids: tuple[int, ...] = ()
    prompt_from: int = 0

    @property
    def text(self) -> str:
        """The text of the tokens; empty if it is not known."""
        whole = bytes(byte for place in range(len(self.texts)) for byte in self.bytes_of(place))
        return whole.decode("utf-8", "replace")

    def bytes_of(self, place: int) -> list[int]:
        """Return the bytes of a token: those in ``raw``, else the UTF-8 form of its text."""
        found = self.raw.get(str(place))
        return list(found) if found is not None else list(self.texts[place].encode("utf-8", "replace"))
