"""Hover text of recipes: what the key, value or diagnostic under the pointer means."""

from __future__ import annotations

import json
from typing import Any

from lsprotocol import types

from cantrip_acp.gates.registry import ALIASES
from cantrip_acp.gates.wards import WARDS
from cantrip_acp.lsp.recipes import lint
from cantrip_acp.lsp.recipes.diagnostics import Analysis
from cantrip_acp.lsp.recipes.syntax import schema_lookup
from cantrip_acp.lsp.recipes.syntax.tree import Node
from cantrip_acp.lsp.server.documents import OpenDocument
from cantrip_acp.recipes.parse.problem_positions import KeyPath

# --- The words of a recipe, explained in Markdown: keys, wards, gates, mediums, models.

MEDIUMS = {
    "conversation": "Gates are tools that the crystal calls one by one; nothing else runs.",
    "bash": "One shell command a turn, in the sandbox; gates are commands on its PATH.",
    "code": "Cells of Python in one process that stays, in the sandbox; gates are functions.",
    "monty": "Cells of a restricted Python without imports or files; gates are functions.",
}

_COMPOSED = {
    "min": "the smaller",
    "or": "true where either says so",
    "and": "true only where both say so",
    "paths": "what both have",
    "allow": "what both have",
    "deny": "what either has",
    "home": "private, unless both say persistent",
}


def ward(name: str) -> str:
    """A ward: its meaning, its default, and how two of it compose."""
    about = WARDS[name]
    meaning = about["meaning"]
    return (
        f"{meaning[:1].upper()}{meaning[1:]}.\n\n{_default(name)}A parent's and a child's compose to "
        f"{_COMPOSED[about['rule']]} (WARD-1)."
    )


def _default(name: str) -> str:
    """A sentence about a ward's default; empty for a ward that every recipe gives."""
    default = WARDS[name]["default"]
    if name == "max_turns":
        return ""
    if name.startswith("allow_compile_"):
        return "Without it nothing is asked of this; without any of the four `allow_compile_…` no module is admitted. "
    if default is None:
        return "Default: not limited. "
    return f"Default: {json.dumps(list(default) if isinstance(default, tuple) else default)}. "


def key(path: KeyPath, root: Node) -> str:
    """Describe a key; empty if it is unknown."""
    name = path[-1] if path else None
    if not isinstance(name, str):
        return ""
    if path[:2] == ("circle", "wards") and name in WARDS:
        return f"**{name}** (ward)\n\n{ward(name)}"
    if path[:1] == ("crystals",) and len(path) == 2:
        given = root.find(path)
        of = value(given) if given is not None else ""
        return f"**{name}** (crystal)\n\nA child may be given it by this name." + (f"\n\n{of}" if of else "")
    schema = schema_lookup.keys(path[:-1], root).get(name)
    if schema is None:
        return ""
    kind = schema_lookup.kind(schema)
    text = str(schema.get("description", ""))
    return f"**{name}**" + (f" ({kind})" if kind else "") + (f"\n\n{text}" if text else "")


def gate(name: str) -> str:
    """A gate's signature and description; empty if it is unknown."""
    from cantrip_acp.gates import registry
    from cantrip_acp.types.errors import CantripError

    canonical = ALIASES.get(name, name)
    if canonical not in registry.BUILT_IN:
        # A gate of another package would have to be imported, so it is not described.
        return f"**{name}**: a gate of another package." if name in registry.names() else ""
    try:
        found = registry.find(canonical)
    except CantripError:
        return ""
    return f"```python\n{found.signature()}\n```\n\n{found.description}"


def model(provider: str, name: str) -> str:
    """A model's window and price; empty if no table has the model."""
    about = model_line(provider, name)
    return f"**{provider}:{name}**\n\n{about}" if about else ""


def model_line(provider: str, name: str) -> str:
    """Window and price in one line; empty if no table has the model."""
    from cantrip_acp.crystals.catalog import lookup
    from cantrip_acp.types.errors import DefinitionError

    try:
        info = lookup.look_up(provider, name, remark=False)
    except DefinitionError:
        return ""
    parts: list[str] = []
    if info.context_window:
        parts.append(f"{info.context_window:,} tokens of context")
    if info.max_output:
        parts.append(f"answers up to {info.max_output:,}")
    if info.price is not None:
        parts.append(f"${info.price.input:g} in, ${info.price.output:g} out for a million tokens")
    return "; ".join(parts)


def value(node: Node) -> str:
    """Describe a value, by its key path; empty if there is nothing to say."""
    path, text = node.path, node.value
    if node.kind != "scalar" or not path:
        return ""
    if path == ("circle", "medium"):
        return f"**{text}** (medium)\n\n{MEDIUMS[text]}" if text in MEDIUMS else ""
    if is_gate(path):
        return gate(text)
    provider, colon, name = text.partition(":")
    if colon and is_crystal(path):
        return model(provider, name)
    if path[-1] == "model" and node.parent is not None:
        given = node.parent.get("provider")
        return model(given.value, text) if given is not None else ""
    return ""


def is_gate(path: KeyPath) -> bool:
    """Whether the value at a path names a gate."""
    if path[:2] == ("circle", "gates"):
        return len(path) == 3 or (len(path) == 4 and path[3] == "name")
    named: tuple[Any, ...] = ("remove_gate", "child_gate_allowlist", "child_gate_denylist")
    return path[:2] == ("circle", "wards") and len(path) in (4, 5) and path[3] in named


def is_crystal(path: KeyPath) -> bool:
    """Whether the value at a path is a crystal."""
    return path == ("crystal",) or (len(path) == 2 and path[0] == "crystals")


def hover(document: OpenDocument, analysis: Analysis, position: types.Position) -> types.Hover | None:
    """The hover text at a position: the meaning of the word, and of the rules that are broken there."""
    offset = document.text.offset(position)
    node = document.tree.at(offset)
    on_key = node.key_span is not None and node.key_span[0] <= offset <= node.key_span[1]
    span = node.key_span if on_key and node.key_span is not None else node.span
    said = key(node.path, document.tree) if on_key else value(node)
    parts = [said] if said else []
    for finding in analysis.findings:
        if finding.span[0] <= offset <= finding.span[1]:
            text = lint.meanings().get(finding.rule)
            if text is not None:
                parts.append(f"**{finding.rule}** [↗]({lint.link(finding.rule)})\n\n{text}")
                span = span if said else finding.span
    if not parts:
        return None
    content = types.MarkupContent(types.MarkupKind.Markdown, "\n\n---\n\n".join(dict.fromkeys(parts)))
    return types.Hover(content, document.text.range(*span))
