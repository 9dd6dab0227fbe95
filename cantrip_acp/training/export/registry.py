"""Export formats by name: the built-in ones, and those of other packages (entry points ``cantrip_acp.exports``)."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from cantrip_acp.gates.registry import load_entry
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.training.export.selection import Source


BUILT_IN: dict[str, str] = {
    "trl-sft": "cantrip_acp.training.export.fine_tuning:TrlSft",
    "trl-preference": "cantrip_acp.training.export.fine_tuning:TrlPreference",
    "atif": "cantrip_acp.training.export.atif:Atif",
    "inspect": "cantrip_acp.training.export.inspect_log:InspectLog",
    "trl-prompts": "cantrip_acp.training.export.fine_tuning:TrlPrompts",
    "trl-kto": "cantrip_acp.training.export.fine_tuning:TrlKto",
    "trl-stepwise": "cantrip_acp.training.export.fine_tuning:TrlStepwise",
    "tokens": "cantrip_acp.training.export.tokens:Tokens",
    "art": "cantrip_acp.training.export.art:Art",
    "verifiers": "cantrip_acp.training.export.verifiers:Verifiers",
    "openai": "cantrip_acp.training.export.fine_tuning:OpenAI",
    "otlp": "cantrip_acp.training.export.otlp:Otlp",
}


def names() -> list[str]:
    """The names of all formats: the built-in ones first, then the others by name."""
    from importlib.metadata import entry_points

    return [*BUILT_IN, *sorted({e.name for e in entry_points(group="cantrip_acp.exports")} - set(BUILT_IN))]


_MEANT = {
    **dict.fromkeys(("trl-dpo", "dpo"), "trl-preference"),
    **dict.fromkeys(("trl-grpo", "grpo", "trl-rloo", "rloo"), "trl-prompts"),
    **dict.fromkeys(("trl-prm", "prm"), "trl-stepwise"),
}
"""Names of trainers, and the format that they read."""


def find(name: str) -> Format:
    """The format with this name. Raises `DefinitionError`, with the nearest known name."""
    target = BUILT_IN.get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        built_in: Format = getattr(importlib.import_module(module), attribute)()
        return built_in
    from importlib.metadata import entry_points

    for entry in entry_points(group="cantrip_acp.exports", name=name):
        added = load_entry(entry)
        return added() if isinstance(added, type) else added  # type: ignore[no-any-return]
    near = [_MEANT[name]] if name in _MEANT else difflib.get_close_matches(str(name), names(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise DefinitionError(f"unknown export format {name!r}{hint} (known: {', '.join(names())})")


# --- An export format has a name, a line of help, and a function from the chosen threads to rows.
#
# Other packages add formats as entry points ``cantrip_acp.exports``: each loads to a `Format`, or to a class of one.


class Format(Protocol):
    """An export format. Each row is one JSON object and becomes one line of the output."""

    name: str
    summary: str
    """Its purpose, in one line."""
    marks_truncated: bool
    """Whether a row says that its thread was cut off. If not, such threads are left out unless requested."""

    def rows(self, source: Source) -> Iterator[dict[str, Any]]:
        """Yield the rows one by one; at most one thread or group is in memory."""
        ...
