"""What belongs to the cursor's place: other uses of its name, what lies around it, names that change together."""

from __future__ import annotations

from lsprotocol import types

from cantrip_acp.lsp import references
from cantrip_acp.lsp.documents import Held
from cantrip_acp.lsp.tree import Node, Span


def highlights(held: Held, position: types.Position) -> list[types.DocumentHighlight]:
    """Where the name at a position is given (written) and used (read)."""
    write, read = types.DocumentHighlightKind.Write, types.DocumentHighlightKind.Read
    offset = held.text.offset(position)
    return [
        types.DocumentHighlight(held.text.range(*span), write if defines else read)
        for span, defines in references.places(held, offset)
    ]


def linked(held: Held, position: types.Position) -> types.LinkedEditingRanges | None:
    """Names that are the recipe's own and stand in several places: typed in one, they change in all."""
    if references.renaming(held, position) is None:
        return None
    source = held.text.source
    spans = [span for span, _ in references.places(held, held.text.offset(position))]
    words = {source[slice(*span)] for span in spans}
    if len(spans) < 2 or len(words) != 1:
        return None
    return types.LinkedEditingRanges([held.text.range(*span) for span in spans], r"[A-Za-z_][A-Za-z0-9_.\-]*")


def selections(held: Held, positions: list[types.Position]) -> list[types.SelectionRange]:
    """For each position what lies around it: the word, the value, the pair, and so on to the whole text."""
    return [_around(held, held.text.offset(position)) for position in positions]


def _around(held: Held, offset: int) -> types.SelectionRange:
    spans: list[Span] = []
    node: Node | None = held.tree.at(offset)
    while node is not None:
        if node.key_span is not None and node.key_span[0] <= offset <= node.key_span[1]:
            spans.append(node.key_span)
        if node.quote in ("'", '"') and node.closed:
            spans.append((node.span[0] + 1, node.span[1] - 1))
        spans += [node.span, node.whole]
        node = node.parent
    spans.append((0, len(held.text.source)))
    chosen: types.SelectionRange | None = None
    held_spans: list[Span] = []
    for span in spans:  # the innermost first; each holds the one before and is larger
        inner = held_spans[-1] if held_spans else (offset, offset)
        if span[0] <= inner[0] and inner[1] <= span[1] and (not held_spans or span != inner):
            held_spans.append(span)
    for span in reversed(held_spans):
        chosen = types.SelectionRange(held.text.range(*span), chosen)
    assert chosen is not None  # the whole text is always among them
    return chosen
