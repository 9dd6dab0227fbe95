"""What a key, a value or a finding means, where the pointer rests."""

from __future__ import annotations

from lsprotocol import types

from cantrip_acp.lsp import meaning, rules
from cantrip_acp.lsp.documents import Held
from cantrip_acp.lsp.findings import Reading


def hover(held: Held, reading: Reading, position: types.Position) -> types.Hover | None:
    """The meaning of what stands at a position, and of the rules that are broken there."""
    offset = held.text.offset(position)
    node = held.tree.at(offset)
    on_key = node.key_span is not None and node.key_span[0] <= offset <= node.key_span[1]
    span = node.key_span if on_key and node.key_span is not None else node.span
    said = meaning.key(node.path, held.tree) if on_key else meaning.value(node)
    parts = [said] if said else []
    for finding in reading.findings:
        if finding.span[0] <= offset <= finding.span[1]:
            text = rules.meanings().get(finding.rule)
            if text is not None:
                parts.append(f"**{finding.rule}** [↗]({rules.link(finding.rule)})\n\n{text}")
                span = span if said else finding.span
    if not parts:
        return None
    content = types.MarkupContent(types.MarkupKind.Markdown, "\n\n---\n\n".join(dict.fromkeys(parts)))
    return types.Hover(content, held.text.range(*span))
