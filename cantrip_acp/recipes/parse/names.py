"""Names in recipes: providers, mediums and gates that are built in, announced, or added by other packages.

Announced names are already part of the recipe language, so that recipes, editors and the schema agree. A version that
lacks one reports it by name when a cantrip is built (`build`).
"""

from __future__ import annotations

from functools import cache

from cantrip_acp.crystals.local.presets import PRESETS
from cantrip_acp.gates import registry as gates
from cantrip_acp.mediums import registry as mediums

MODEL_PROVIDERS = ("anthropic", "openai", "google", "openrouter", "local", *PRESETS)
"""Providers that serve models by name."""

PROVIDERS = (*MODEL_PROVIDERS, "scripted", "human")

MEDIUMS = ("conversation", "code", "bash", "monty")

ANNOUNCED_GATES = (
    "call_agent",
    "call_agent_batch",
    "read_context",
    "fetch",
    "plan",
    "git_commit",
    "run_tests",
)

FILE_GATES = ("read_file", "write_file", "edit_file", "list_dir", "search")
"""Gates that work below a folder; a recipe may set it with ``root``."""


TEST_GATE = "run_tests"
"""The gate that runs tests; a recipe may set its command."""


@cache
def medium_names() -> tuple[str, ...]:
    """Every medium that a recipe may name."""
    return tuple(dict.fromkeys((*MEDIUMS, *mediums.names())))


@cache
def gate_names() -> tuple[str, ...]:
    """Every gate that a recipe may name, without aliases."""
    return tuple(dict.fromkeys((*gates.BUILT_IN, *ANNOUNCED_GATES, *gates.names())))


@cache
def provider_names() -> tuple[str, ...]:
    """Every provider that a crystal may name."""
    return tuple(dict.fromkeys((*PROVIDERS, *added_crystals())))


@cache
def added_crystals() -> tuple[str, ...]:
    """Providers that other packages add as entry points ``cantrip_acp.crystals``."""
    from importlib.metadata import entry_points

    return tuple(sorted({e.name for e in entry_points(group="cantrip_acp.crystals")} - set(PROVIDERS)))


def added_gates() -> tuple[str, ...]:
    """Gates that other packages add."""
    return tuple(n for n in gates.names() if n not in gates.BUILT_IN and n not in ANNOUNCED_GATES)
