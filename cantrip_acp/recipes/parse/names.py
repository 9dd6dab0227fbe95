"""Names that recipes may use: the built-in, announced and added providers, mediums and gates.

An announced name is part of the recipe language, even if this version does not have the feature. In that case the
error is reported when a cantrip is built (`build`). Added names come from other installed packages.
"""

from __future__ import annotations

from functools import cache

from cantrip_acp.crystals.local.presets import PRESETS
from cantrip_acp.gates import registry as gates
from cantrip_acp.mediums import registry as mediums

EMBEDDED = ("embedded", "gguf")
"""Providers whose models this machine runs itself."""

MODEL_PROVIDERS = ("anthropic", "openai", "google", "openrouter", *EMBEDDED, "local", *PRESETS)
"""Providers that serve models by name."""

PROVIDERS = (*MODEL_PROVIDERS, "scripted", "human")

MEDIUMS = ("conversation", "code", "bash", "monty")

ANNOUNCED_GATES = ("call_agent", "call_agent_batch", "read_context", "fetch", "plan", "git_commit", "run_tests")

FILE_GATES = ("read_file", "write_file", "edit_file", "list_dir", "search")
"""Gates that work in a folder. A recipe may set the folder with ``root``."""


TEST_GATE = "run_tests"
"""The gate that runs tests. A recipe may set its command."""


@cache
def medium_names() -> tuple[str, ...]:
    return tuple(dict.fromkeys((*MEDIUMS, *mediums.names())))


@cache
def gate_names() -> tuple[str, ...]:
    """The names of all gates that a recipe may use, without aliases."""
    return tuple(dict.fromkeys((*gates.BUILT_IN, *ANNOUNCED_GATES, *gates.names())))


@cache
def provider_names() -> tuple[str, ...]:
    return tuple(dict.fromkeys((*PROVIDERS, *added_crystals())))


@cache
def added_crystals() -> tuple[str, ...]:
    """Providers that other packages add as entry points ``cantrip_acp.crystals``."""
    from importlib.metadata import entry_points

    return tuple(sorted({e.name for e in entry_points(group="cantrip_acp.crystals")} - set(PROVIDERS)))


def added_gates() -> tuple[str, ...]:
    """Gates that other packages add."""
    return tuple(n for n in gates.names() if n not in gates.BUILT_IN and n not in ANNOUNCED_GATES)
