"""MCP tools as gates ``server.tool``, and their answers as observations. No input from a server is trusted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import mcp_types

from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.gates.files.file_content import image_attachment
from cantrip_acp.gates.mcp.declaration import gate_name_part
from cantrip_acp.sandbox import clean
from cantrip_acp.text.json_schema import Schema
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.messages import Attachment

if TYPE_CHECKING:
    from cantrip_acp.gates.mcp.connection import Connection

_DESCRIPTION = 4_000
_SCHEMA = 64_000
_DEEPEST = 32
LARGEST_RESULT = 200_000
"""The most characters of an answer that an entity gets. The medium may limit more strictly what a crystal sees."""


def gates(connection: Connection, prefix: str) -> tuple[list[Gate], list[str]]:
    """Make gates from the server's tools. Returns the gates, and messages about tools that cannot be used."""
    found: list[Gate] = []
    problems: list[str] = []
    taken: set[str] = set()
    for tool in connection.tools:
        name = gate_name_part(tool.name)
        if not name:
            problems.append(f"a tool has the name {clean(tool.name)[:60]!r}, which no gate can have")
            continue
        unique, number = name, 2
        while unique in taken:
            unique, number = f"{name}_{number}", number + 1
        taken.add(unique)
        parameters, problem = checked_schema(tool.input_schema)
        if problem is not None:
            problems.append(f"tool {clean(tool.name)[:60]!r} was left out: {problem}")
            continue
        found.append(_gate(connection, tool, f"{prefix}.{unique}", parameters))
    return found, problems


def _gate(connection: Connection, tool: mcp_types.Tool, name: str, parameters: Mapping[str, Any]) -> Gate:
    server = connection.server
    hints = tool.annotations
    # Believe only a trusted server when it says that a tool only reads.
    reads = bool(server.trusted and hints is not None and hints.read_only_hint)
    shown = clean(tool.title or (hints.title if hints is not None else None) or tool.name)[:120].strip()

    async def handler(args: Mapping[str, Any], context: GateContext) -> GateReply:
        traceparent = context.turn.traceparent if context.turn is not None else None
        before = connection.stderr_tail
        result = await connection.call(tool.name, args, traceparent=traceparent)
        try:
            return tool_reply(result)
        except GateError as failure:
            if words := await connection.stderr_since(before):
                # People read this, the model only the error of the tool.
                failure.what = f"{failure}\nthe server's standard error: {words}"
            raise

    def preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
        return GateReply(None, title=f"{shown} ({server.name})")

    described = clean(tool.description or shown)
    if len(described) > _DESCRIPTION:
        described = described[:_DESCRIPTION] + " …"
    return Gate(
        name=name,
        description=described,
        parameters=parameters,
        handler=handler,
        writes=not reads,
        kind="read" if reads else "other",
        preview=preview,
    )


def checked_schema(given: Any) -> tuple[dict[str, Any], str | None]:
    """Check a tool's schema: it must be self-contained, not too large, and of type object. Returns the schema for the gate
    and None, or the reason why it cannot be used."""
    if not isinstance(given, dict):
        return {}, "its schema is not an object"
    if len(json.dumps(given)) > _SCHEMA:
        return {}, f"its schema has more than {_SCHEMA} characters"
    for depth, reference in _references(given, 0):
        if depth > _DEEPEST:
            return {}, f"its schema is nested deeper than {_DEEPEST}"
        # The validator of arguments would download it.
        if reference is not None and not reference.startswith("#"):
            return {}, f"its schema refers to {reference[:80]!r}, outside itself"
    taken = {key: value for key, value in given.items() if key not in ("$id", "$schema", "id")}
    taken.setdefault("type", "object")
    if taken["type"] != "object":
        return {}, "its schema is not of type object"
    properties = taken.setdefault("properties", {})
    if not isinstance(properties, dict) or not isinstance(taken.get("required", []), list):
        return {}, "in its schema, properties is not an object, or required is not a list"
    try:
        Schema(taken)
    except (ValueError, RecursionError) as error:
        return {}, f"its schema is not valid: {str(error).splitlines()[0][:200]}"
    return taken, None


def _references(value: Any, depth: int) -> Iterator[tuple[int, str | None]]:
    """Find every ``$ref`` with its depth. A part that is too deep is reported once and not searched."""
    if depth > _DEEPEST:
        yield depth, None
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(item, str):
                yield depth, item
            elif key in ("$id", "id") and isinstance(item, str) and depth:
                # A new base would change what local references mean.
                yield depth, item if key == "$id" else "#"
            else:
                yield from _references(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item, depth + 1)


def tool_reply(result: mcp_types.CallToolResult) -> GateReply:
    """Convert an answer to an observation: its data, or else its text, and its images. Other content is only mentioned.

    If the tool failed, it raises `GateError` with the text.
    """
    images: list[Attachment] = []
    text = "\n".join(_block_text(block, images) for block in result.content)
    if result.is_error:
        raise GateError(_shorten(text) or "the tool failed without an error message")
    data = result.structured_content
    if data is not None:
        # The SDKs put values that are not objects under this key.
        value = data["result"] if set(data) == {"result"} else data
        # Some versions return the content blocks themselves as data.
        if not (value is not data and _are_blocks(value)) and len(json.dumps(value, default=str)) <= LARGEST_RESULT:
            return GateReply(value, attachments=tuple(images))
    text = text if text or data is None else json.dumps(data, default=str)
    return GateReply(_shorten(text), attachments=tuple(images))


def _are_blocks(value: Any) -> bool:
    kinds = ("text", "image", "audio", "resource", "resource_link")
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and item.get("type") in kinds for item in value)
    )


def _block_text(block: Any, images: list[Attachment]) -> str:
    """Render a content block as text. An image that models accept is also added to ``images``."""
    if isinstance(block, mcp_types.TextContent):
        return str(block.text)
    if (
        isinstance(block, mcp_types.ImageContent)
        and (image := image_attachment(block.mime_type, block.data)) is not None
    ):
        images.append(image)
        return f"[image: {block.mime_type}, {len(block.data) * 3 // 4} bytes]"
    if isinstance(block, mcp_types.ImageContent | mcp_types.AudioContent):
        kind = "image" if isinstance(block, mcp_types.ImageContent) else "sound"
        return f"[{kind}: {block.mime_type}, {len(block.data) * 3 // 4} bytes; not shown]"
    if isinstance(block, mcp_types.ResourceLink):
        return f"[resource {block.name}: {block.uri}]"
    if isinstance(block, mcp_types.EmbeddedResource):
        inside = block.resource
        if isinstance(inside, mcp_types.TextResourceContents):
            return f"[resource {inside.uri}]\n{inside.text}"
        return f"[resource {inside.uri}: {inside.mime_type or 'data'}; not shown]"
    return f"[{type(block).__name__}; not shown]"


def _shorten(text: str) -> str:
    text = clean(text)
    if len(text) <= LARGEST_RESULT:
        return text
    half = LARGEST_RESULT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
