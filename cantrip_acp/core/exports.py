"""Exports of threads for trainers and trace stores, by the name of a format: a built-in one, or one of another package (entry
points ``cantrip_acp.exports``: each loads to a `Format`, or to a class of one).

The built-in formats are in `training.export`, which is above this module: they are found by their names.
"""

from __future__ import annotations

import difflib
import importlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from cantrip_acp.gates.registry import load_entry
from cantrip_acp.text.defaults import complete
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom

_WRITER = "cantrip_acp.training.export.rows"

BUILT_IN: dict[str, str] = {
    "trl-sft": "cantrip_acp.training.export.trl_and_openai:trl_sft",
    "trl-preference": "cantrip_acp.training.export.trl_and_openai:trl_preference",
    "atif": "cantrip_acp.training.export.atif:atif",
    "inspect": "cantrip_acp.training.export.inspect_log:inspect_log",
    "trl-prompts": "cantrip_acp.training.export.trl_and_openai:trl_prompts",
    "trl-kto": "cantrip_acp.training.export.trl_and_openai:trl_kto",
    "trl-stepwise": "cantrip_acp.training.export.trl_and_openai:trl_stepwise",
    "tokens": "cantrip_acp.training.export.tokens:tokens",
    "art": "cantrip_acp.training.export.art:art",
    "verifiers": "cantrip_acp.training.export.verifiers:verifiers",
    "openai": "cantrip_acp.training.export.trl_and_openai:openai",
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


class FormatBase:
    """The defaults for the optional members of an export format."""

    archive: bool = False
    """Whether the output is a ZIP file: a row is an entry, ``{path, data, sample}``, and counts if it is a sample."""
    ending: str = "jsonl"
    """The ending of the name of a file in this format, without the dot."""


def file_name(stem: str, format_: Format) -> str:
    """The name of a new file in this format: ``stem.format.ending``."""
    return f"{stem}.{format_.name}.{complete(format_, FormatBase).ending}"


class Format(Protocol):
    """An export format. Each row is one JSON object and becomes one line of the output. It may also have the members of
    `FormatBase`."""

    name: str
    summary: str
    """Its purpose, in one line."""
    marks_truncated: bool
    """Whether a row says that its thread was cut off. If not, such threads are left out unless requested."""

    @property
    def rows(self) -> Callable[[Any], Iterator[dict[str, Any]]]:
        """Yields the rows of a `training.export.selection.Source`; at most one thread or group is in memory."""
        ...


DIFFERS = "what the model was sent is recorded otherwise than it is rebuilt"
"""Why a thread is left out if the loom does not show exactly what the model read."""


class Report:
    """The result of an export, filled in while it runs: ``threads`` and ``rows`` written, ``left_out`` by reason,
    ``notes`` with the number of times that a format could not represent something."""

    def __init__(self) -> None:
        self.threads = 0
        self.rows = 0
        self.left_out: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()

    def record(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "rows": self.rows,
            "left_out": dict(self.left_out),
            "notes": dict(self.notes),
        }


@dataclass(frozen=True, slots=True)
class ThreadSelection:
    """A filter for threads. None or an empty value means no condition.

    ``threads`` are ids of leaves. ``outcomes`` are states (terminated, truncated, active) or reasons (done, max_turns
    …). ``intent`` is part of a cast's intent, in upper or lower case. ``truncated``: include threads that did not end
    by themselves; None lets the format decide. ``children``: include the threads of delegated children. ``differing``:
    include threads with a query that was recorded otherwise than it is rebuilt.
    """

    threads: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    min_reward: float | None = None
    max_reward: float | None = None
    intent: str | None = None
    truncated: bool | None = None
    children: bool = True
    differing: bool = False


def export(
    loom: Loom,
    chosen: Format,
    out: BinaryIO,
    wanted: ThreadSelection | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    raw: bool = False,
) -> Report:
    """Write threads of a loom (all, or those ``wanted``) to a stream. ``progress(done, of)`` is called for each thread; with
    ``raw``, texts that look like secrets are not masked. Raises the stream's errors, and `LoomError`."""
    writer = importlib.import_module(_WRITER)
    report: Report = writer.write(chosen, writer.Source(loom, wanted, progress), out, raw=raw)
    return report
