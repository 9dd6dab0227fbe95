"""Export formats by name: the built-in ones, and those that other packages add as entry points ``cantrip_acp.exports``."""

from __future__ import annotations

import difflib
import importlib

from cantrip_acp.core.errors import DefinitionError
from cantrip_acp.gates.registry import load_entry
from cantrip_acp.loom.export.contract import Format

BUILT_IN: dict[str, str] = {
    "trl-sft": "cantrip_acp.loom.export.trl_sft:TrlSft",
    "trl-preference": "cantrip_acp.loom.export.trl_preference:TrlPreference",
    "art": "cantrip_acp.loom.export.art:Art",
    "verifiers": "cantrip_acp.loom.export.verifiers:Verifiers",
    "openai": "cantrip_acp.loom.export.openai:OpenAI",
    "otlp": "cantrip_acp.loom.export.otlp:Otlp",
}


def names() -> list[str]:
    """Every format that can be exported to here: the built-in ones, then the others by name."""
    from importlib.metadata import entry_points

    return [*BUILT_IN, *sorted({e.name for e in entry_points(group="cantrip_acp.exports")} - set(BUILT_IN))]


def find(name: str) -> Format:
    """The format of that name; raises `DefinitionError` with the nearest known one."""
    target = BUILT_IN.get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        built_in: Format = getattr(importlib.import_module(module), attribute)()
        return built_in
    from importlib.metadata import entry_points

    for entry in entry_points(group="cantrip_acp.exports", name=name):
        added = load_entry(entry)
        return added() if isinstance(added, type) else added  # type: ignore[no-any-return]
    near = difflib.get_close_matches(str(name), names(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise DefinitionError(f"unknown export format {name!r}{hint} (known: {', '.join(names())})")
