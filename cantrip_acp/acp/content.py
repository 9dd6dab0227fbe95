"""What a user sends with a prompt, as an intent and context (ACP, Content).

Text is the intent. A link stands in it where the user put it, as ``[@name](uri)``, for the entity to follow with its
own gates. An embedded resource stands in it the same way, and its text goes before the intent as a context block:
content for the crystal, never authority.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from cantrip_acp.acp.envelope import invalid_params
from cantrip_acp.acp.protocol import Audio, ContentBlock, Image, Resource, ResourceLink, Text
from cantrip_acp.context import ContextBlock


def read_prompt(blocks: Sequence[ContentBlock]) -> tuple[str, tuple[ContextBlock, ...]]:
    """The intent and the context of a prompt.

    Raises `RpcError` -32602 where there is no text at all, and for pictures, sound and binary files, which no
    capability of this agent invites.
    """
    parts: list[str] = []
    context: list[ContextBlock] = []
    spoken = False
    before: ContentBlock | None = None
    for index, block in enumerate(blocks):
        if isinstance(block, Text):
            if isinstance(before, Text):
                parts.append("\n")
            parts.append(block.text)
            spoken = spoken or bool(block.text.strip())
        elif isinstance(block, ResourceLink):
            parts.append(_mention(block.name, block.uri))
            described = [value for value in (block.title, block.description) if isinstance(value, str) and value]
            if described:
                context.append(ContextBlock("\n".join(described), title=block.name, uri=block.uri))
        elif isinstance(block, Resource):
            text = _resource_text(block, index)
            name = block.resource.uri.rstrip("/").rpartition("/")[2] or block.resource.uri
            parts.append(_mention(name, block.resource.uri))
            context.append(ContextBlock(text, title=name, uri=block.resource.uri))
        elif isinstance(block, Image | Audio):
            kind = "images" if isinstance(block, Image) else "audio"
            raise invalid_params(
                f"{kind} cannot be read here; the agent does not advertise them", f"prompt[{index}].type"
            )
        before = block
    if not spoken:
        raise invalid_params("intent is required: the prompt holds no text", "prompt")
    return "".join(parts), tuple(context)


def _mention(name: str, uri: str) -> str:
    return f"[@{name}]({uri})"


def _resource_text(block: Resource, index: int) -> str:
    resource = block.resource
    if resource.text is not None:
        return resource.text
    if resource.blob is None:
        raise invalid_params("a resource has a text or a blob", f"prompt[{index}].resource")
    try:
        return base64.b64decode(resource.blob, validate=True).decode()
    except (binascii.Error, ValueError):
        kind = resource.mime_type if isinstance(resource.mime_type, str) else "binary data"
        raise invalid_params(
            f"{kind} cannot be read here; send text, or a link to the file", f"prompt[{index}].resource.blob"
        ) from None
