"""Export formats by name: the built-in ones, and those of other packages (entry points ``cantrip_acp.exports``)."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from cantrip_acp.gates.registry import load_entry
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.training.export.selection import Source


BUILT_IN: dict[str, str] = {
    "trl-sft": "cantrip_acp.training.export.fine_tuning:trl_sft",
    "trl-preference": "cantrip_acp.training.export.fine_tuning:trl_preference",
    "atif": "cantrip_acp.training.export.atif:atif",
    "inspect": "cantrip_acp.training.export.inspect_log:inspect_log",
    "trl-prompts": "cantrip_acp.training.export.fine_tuning:trl_prompts",
    "trl-kto": "cantrip_acp.training.export.fine_tuning:trl_kto",
    "trl-stepwise": "cantrip_acp.training.export.fine_tuning:trl_stepwise",
    "tokens": "cantrip_acp.training.export.tokens:tokens",
    "art": "cantrip_acp.training.export.art:art",
    "verifiers": "cantrip_acp.training.export.verifiers:verifiers",
    "openai": "cantrip_acp.training.export.fine_tuning:openai",
    "otlp": "cantrip_acp.training.export.otlp:otlp",
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
        built_in: Format = getattr(importlib.import_module(module), attribute)
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

    @property
    def rows(self) -> Rows:
        """Yields the rows one by one; at most one thread or group is in memory."""
        ...


Rows = Callable[["Source"], Iterator[dict[str, Any]]]


@dataclass(slots=True)
class ExportFormat:
    """A `Format` of this package: a generator function below `export_format`, which has the same fields."""

    name: str
    summary: str
    rows: Rows
    marks_truncated: bool
    archive: bool
    """Whether the output is a ZIP file, of which a row is an entry (`rows.write`)."""


def export_format(
    name: str, summary: str, *, marks_truncated: bool, archive: bool = False
) -> Callable[[Rows], ExportFormat]:
    """Make the generator function below it an export format."""
    return lambda rows: ExportFormat(name, summary, rows, marks_truncated, archive)
