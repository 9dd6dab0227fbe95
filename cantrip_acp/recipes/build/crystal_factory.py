"""The interface of crystal factories (`Factory`), the names of the providers, and the variables of their keys.

A factory is a function ``(options, context) -> Crystal``. ``options`` is the recipe's crystal mapping without
``provider``. ``context`` has the locations of files, and makes errors with the position in the recipe. Other packages
add factories as entry points ``cantrip_acp.crystals``. A factory's module is imported only if a recipe needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import Struct

from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.recipes.build.python_files import Files
from cantrip_acp.recipes.parse import names
from cantrip_acp.recipes.parse.problem_positions import KeyPath
from cantrip_acp.types.errors import DefinitionError

BUILT_IN: tuple[str, ...] = names.PROVIDERS
"""The providers of this package."""

AUTH_TOKEN = "ANTHROPIC_AUTH_TOKEN"
"""The variable of a token for Anthropic. It replaces the key and is sent as ``Authorization: Bearer``."""

KEYS: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY", AUTH_TOKEN),
    "openai": ("OPENAI_API_KEY",),
    "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "openrouter": ("OPENROUTER_API_KEY",),
}
"""The environment variables of each provider's key. The first provider with a key is the default."""

VARIABLE = "CANTRIP_CRYSTAL"
"""The environment variable with the crystal for recipes that name none."""


@dataclass(frozen=True, slots=True)
class Route:
    """The address to which a client sends all requests of a provider (ACP, ``providers/set``).

    Only its ``headers`` are sent there: no key, and no header of the environment or of a recipe.
    """

    api_type: str
    base_url: str
    headers: Mapping[str, Secret] = field(default_factory=dict, repr=False)


ROUTES: ContextVar[dict[str, Route | None]] = ContextVar("ROUTES")
"""The routes of the present connection by provider. None means that the client has disabled the provider."""


def routes() -> Mapping[str, Route | None]:
    """The routes of the present connection. Empty outside of one."""
    return ROUTES.get({})


def usable_keys() -> dict[str, tuple[str, ...]]:
    """`KEYS` without the providers that have a route, or that the client has disabled."""
    return {provider: names for provider, names in KEYS.items() if provider not in routes()}


class FactoryContext(Struct, frozen=True):
    """The context that a factory gets. The paths of the crystal's files are relative to ``folder``."""

    folder: Path
    files: Files
    state_dir: Path | None
    error: Callable[[KeyPath, str], DefinitionError]
    """Makes an error at a key of the crystal's mapping, with the position in the recipe."""
    cost_limited: bool = False
    """Whether the circle limits the cost of a cast. If it does, the crystal's prices must be known."""


Factory = Callable[[Mapping[str, Any], FactoryContext], Crystal]


def available() -> list[str]:
    """The providers that recipes can use in this installation."""
    from importlib.metadata import entry_points

    return sorted({*BUILT_IN, *(e.name for e in entry_points(group="cantrip_acp.crystals"))})


def options_of(crystal: Any) -> dict[str, Any]:
    """The options of a recipe's crystal, as a mapping. A text such as ``scripted:FILE`` is converted to a mapping."""
    if not isinstance(crystal, str):
        return _with_model(dict(crystal))
    provider, _, rest = crystal.partition(":")
    if provider == "embedded" and not rest.strip():
        return _with_model({"provider": provider})
    if provider == "human":
        return {"provider": provider}
    return {"provider": provider, "script" if provider == "scripted" else "model": rest.strip()}


def _with_model(options: dict[str, Any]) -> dict[str, Any]:
    if options["provider"] == "embedded" and "model" not in options:
        # It reads packages, which other crystals do not need.
        from cantrip_acp.crystals.embedded import weights

        options["model"] = weights.DEFAULT
    return options
