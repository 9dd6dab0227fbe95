"""Medium registry: finds mediums by name, built-in ones and those of other packages (entry points
``cantrip_acp.mediums``).
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from cantrip_acp.gates.registry import load_entry
from cantrip_acp.mediums.contract import Medium
from cantrip_acp.types.errors import DefinitionError

BUILT_IN: dict[str, str] = {
    "conversation": "cantrip_acp.mediums.conversation:ConversationMedium",
    "bash": "cantrip_acp.mediums.bash:BashMedium",
    "code": "cantrip_acp.mediums.code.medium:CodeMedium",
    "monty": "cantrip_acp.mediums.monty.medium:MontyMedium",
}


def names() -> list[str]:
    """All medium names that a circle can use here, sorted."""
    from importlib.metadata import entry_points

    return sorted({*BUILT_IN, *(e.name for e in entry_points(group="cantrip_acp.mediums"))})


MEANT = {"shell": "bash", "sh": "bash", "zsh": "bash", "terminal": "bash", "python": "code", "chat": "conversation"}
"""Other names that people use for mediums, each with the medium's name."""


def find(name: str, **options: Any) -> Medium:
    """Make the medium with that name and those options.

    Raises `DefinitionError` that suggests the nearest known name.
    """
    target = BUILT_IN.get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        built_in: Medium = getattr(importlib.import_module(module), attribute)(**options)
        return built_in
    from importlib.metadata import entry_points

    for entry in entry_points(group="cantrip_acp.mediums", name=name):
        added: Medium = load_entry(entry)(**options)
        return added
    near = [MEANT[name]] if name in MEANT else difflib.get_close_matches(str(name), names(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise DefinitionError(f"unknown medium {name!r}{hint} (known: {', '.join(names())})", rule="unknown-name")
