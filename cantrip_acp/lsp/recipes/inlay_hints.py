"""Inlay hints of a recipe: the tokens of the call, the price of a turn, and the composed wards for the entity and its children."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from cantrip_acp.gates.registry import ALIASES, DELEGATION
from cantrip_acp.lsp.recipes import file_references, lint
from cantrip_acp.lsp.recipes.syntax.tree import Node
from cantrip_acp.lsp.server.documents import OpenDocument

if TYPE_CHECKING:
    from pathlib import Path

    from cantrip_acp.gates.wards import Wards

Hint = tuple[int, str, str]
"""An offset, the label, and the tooltip that explains it."""


def hints(document: OpenDocument, data: Any, spot: types.Range) -> list[types.InlayHint]:
    """The hints in a range; none for parts that are not valid."""
    if not isinstance(data, dict):
        return []
    start, end = document.text.offset(spot.start), document.text.offset(spot.end)
    return [
        types.InlayHint(document.text.position(at), label, tooltip=tooltip, padding_left=True)
        for at, label, tooltip in _all(document, data)
        if start <= at <= end
    ]


def _all(document: OpenDocument, data: dict[str, Any]) -> Iterator[Hint]:
    tokens = yield from _call(document, data)
    yield from _prices(document, data, tokens)
    circle = data.get("circle")
    if isinstance(circle, dict):
        yield from _wards(document, circle)


def _call(document: OpenDocument, data: dict[str, Any]) -> Generator[Hint, None, int]:
    """Yield the hint for the tokens of the system prompt; return their number."""
    call = data.get("call")
    if not isinstance(call, dict):
        return 0
    for name in ("system_prompt", "system_prompt_file"):
        given, node = call.get(name), document.tree.find(("call", name))
        if not isinstance(given, str) or node is None or node.key_span is None:
            continue
        text = given if name == "system_prompt" else _file(file_references.path_beside(document.path.parent, given))
        if text is None:
            continue
        tokens = estimated(text)
        # A long text begins below its key; the hint stays on the key's line.
        at = _line_end(document, node.key_span[0])
        yield at, f"≈ {tokens:,} tokens", "An estimate, rather too high than too low. Each query begins with them."
        return tokens
    return 0


def _prices(document: OpenDocument, data: dict[str, Any], tokens: int) -> Iterator[Hint]:
    from cantrip_acp.crystals.catalog import lookup
    from cantrip_acp.lsp.commands.progress import money
    from cantrip_acp.types.errors import DefinitionError

    for path, provider, model in lint.crystals(data):
        node = document.tree.find(path)
        try:
            price = lookup.look_up(provider, model, remark=False).price
        except DefinitionError:
            return
        if price is None or node is None:
            continue
        once = price.input * tokens / 1_000_000
        label = f"≥ {money(once)} a turn" if tokens else f"${price.input:g} in, ${price.output:g} out"
        tooltip = (
            f"${price.input:g} for a million tokens in, ${price.output:g} for a million out. The call alone has about "
            f"{tokens:,} tokens; what was said before and the answer come on top."
        )
        yield _line_end(document, node.whole[1]), label, tooltip


def _wards(document: OpenDocument, circle: dict[str, Any]) -> Iterator[Hint]:
    from cantrip_acp.gates.wards import WARDS, Wards
    from cantrip_acp.types.errors import DefinitionError

    listed = lint.wards(circle)
    try:
        wards = Wards.of([{name: value} for name, value, _ in listed if name in WARDS])
    except (DefinitionError, TypeError):
        return
    times: dict[str, int] = {}
    for name, _, _ in listed:
        times[name] = times.get(name, 0) + 1
    for name, value, path in listed:
        if name in WARDS and times[name] > 1:
            holds = getattr(wards, name)
            holds = list(holds) if isinstance(holds, tuple) else holds
            node = document.tree.find(path)
            if node is not None and holds != value:
                yield (
                    _line_end(document, node.whole[1]),
                    f"holds: {_word(holds)}",
                    "Composed with the other one (WARD-1).",
                )
    at = _key_end(document, document.tree.find(("circle", "wards")))
    if at is not None:
        yield (
            at,
            _summary(wards),
            "What bounds an entity of this recipe; wards that are not written have their defaults.",
        )
    gates = lint.gates(circle)
    for gate, path in gates.items():
        if ALIASES.get(gate, gate) in DELEGATION:
            node = document.tree.find(path)
            if node is not None:
                yield (
                    _line_end(document, node.whole[1]),
                    _children(wards),
                    "A child's wards are its parent's, or tighter (COMP-1).",
                )


def _summary(wards: Wards) -> str:
    parts = [f"{wards.max_turns} turns" if wards.max_turns else "", f"depth {wards.max_depth}"]
    parts.append(f"{wards.max_seconds:g} s" if wards.max_seconds else "")
    parts.append(f"{wards.max_total_tokens:,} tokens" if wards.max_total_tokens else "")
    parts.append(f"${wards.max_cost_usd:g}" if wards.max_cost_usd else "")
    return "in all: " + ", ".join(part for part in parts if part)


def _children(wards: Wards) -> str:
    if wards.max_depth < 1:
        return "no children: max_depth is 0"
    parts = [f"depth {wards.max_depth - 1}"]
    ceiling = [n for n in (wards.max_turns, wards.child_max_turns_ceiling) if n is not None]
    parts += [f"≤ {min(ceiling)} turns"] if ceiling else []
    parts.append(f"{wards.max_concurrent_children} at once")
    parts += [f"{wards.max_children_total} in all"] if wards.max_children_total is not None else []
    parts += [f"without {', '.join(wards.child_gate_denylist)}"] if wards.child_gate_denylist else []
    return "children: " + ", ".join(parts)


def estimated(text: str) -> int:
    from cantrip_acp.core.folding.policy import tokens_of
    from cantrip_acp.types.messages import Message

    return tokens_of(Message("system", text))


def _file(path: Path) -> str | None:
    from cantrip_acp.recipes.build.python_files import Files
    from cantrip_acp.types.errors import DefinitionError

    try:
        return Files().read(path).decode("utf-8-sig", "replace")
    except DefinitionError:
        return None


def _word(value: Any) -> str:
    return "true" if value is True else "false" if value is False else str(value)


def _key_end(document: OpenDocument, node: Node | None) -> int | None:
    return _line_end(document, node.key_span[0]) if node is not None and node.key_span is not None else None


def _line_end(document: OpenDocument, offset: int) -> int:
    """The end of the line that contains an offset, without trailing space."""
    line = document.text.line_of(max(offset, 0))
    begin = document.text.starts[line]
    return begin + len(document.text.line(line).rstrip())
