"""Crystal choices: lists the crystals that a session can switch to, and makes the crystal that the user chose.

The value of a choice is the name of one of the recipe's ``crystals``, or ``PROVIDER:MODEL``. The list contains the
recipe's own crystal, its named crystals, the models of local servers, and the catalog's models of providers with a
key. A ``PROVIDER:MODEL`` that is not in the list is accepted too.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.recipes.build import crystal_factory, crystals
from cantrip_acp.recipes.build.crystal_factory import KEYS, VARIABLE, FactoryContext
from cantrip_acp.recipes.build.python_files import Files
from cantrip_acp.recipes.parse.names import MODEL_PROVIDERS
from cantrip_acp.recipes.recipe import Recipe
from cantrip_acp.types.errors import CantripError, DefinitionError

MAX_MODELS = 12
"""Maximum models of one provider in the list. The catalog lists the newest models first."""

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class Choice(Struct, frozen=True):
    """A crystal that can be chosen. ``name`` is for people."""

    value: str
    name: str
    description: str | None = None


def list_choices(recipe: Recipe | None, current: Crystal, served: Sequence[Choice] = ()) -> list[Choice]:
    """The crystals that a session can switch to. The recipe's own crystal is the first. ``served`` are `served_choices`.

    The keyring is not asked, because the start of a session waits for this list.
    """
    from cantrip_acp.crystals import keys

    now = value_of(current)
    if recipe is None:
        return [Choice(now, current.model, current.name)]
    own = own_value(recipe)
    whose = "your default" if recipe.data.get("crystal") is None else "the recipe's own"
    found = {own: Choice(own, own.partition(":")[2], f"{own.partition(':')[0]}, {whose}")} if own else {}
    for name, crystal in recipe.data.get("crystals", {}).items():
        options = crystal_factory.options_of(crystal)
        found.setdefault(name, Choice(name, name, f"{options['provider']}:{options.get('model', 'a script')}"))
    for provider, names in KEYS.items():
        route = crystal_factory.routes().get(provider, False)
        if route is None or (route is False and keys.find(names, keyring=False) is None):
            continue
        from cantrip_acp.crystals.catalog import lookup

        models = (model for _, model, info in lookup.list_models(provider) if not lookup.is_retired(info))
        for model in itertools.islice(models, MAX_MODELS):
            value = f"{provider}:{model}"
            found.setdefault(value, Choice(value, model, provider))
    from cantrip_acp.crystals.local import discovery

    for server in discovery.last_found():
        for offered in server.models:
            value = f"{server.provider}:{offered.name}"
            found.setdefault(value, Choice(value, offered.name, f"{server.provider}, on this machine"))
    for choice in served:
        found.setdefault(choice.value, choice)
    found.setdefault(now, Choice(now, current.model, current.name))
    return list(found.values())


def served_choices(recipe: Recipe, value: str) -> list[Choice]:
    """All models of the server that a choice uses, if it is not a provider's own address but a server that lists its models.

    Empty if it lists none. Asks the server, so it blocks for some seconds at most.
    """
    from cantrip_acp.crystals.local import discovery
    from cantrip_acp.crystals.local.presets import LOCAL, PRESETS

    try:
        options, where = _chosen_options(recipe, value)
        provider = str(options.pop("provider"))
        if provider not in ("local", "openai", *PRESETS) or (provider in LOCAL and "base_url" not in options):
            # The servers of this machine are found without this.
            return []
        from cantrip_acp.recipes.build import providers

        end = providers.endpoint(provider, options, _context(recipe, where, value), known=False)
        address = end.address()
        found = discovery.list_models(address, end.api_key) if address is not None else ()
    except (CantripError, discovery.NoServer):
        return []
    return [Choice(f"{provider}:{model.name}", model.name, provider) for model in found]


def own_value(recipe: Recipe) -> str | None:
    """The recipe's own crystal as the value of a choice. None if neither the recipe nor the environment names a crystal."""
    given = recipe.data.get("crystal")
    try:
        options = crystal_factory.options_of(given) if given is not None else _of_environment(ask=False)[0]
    except DefinitionError:
        return None
    provider = options["provider"]
    return f"{provider}:{options.get('model') or provider}"


def value_of(crystal: Crystal) -> str:
    """The value of the choice for a crystal."""
    return f"{crystal.name}:{crystal.model}"


def efforts_of(crystal: Crystal) -> tuple[str, ...]:
    """The effort levels of a crystal. Empty if the model is not known as a reasoning model."""
    from cantrip_acp.crystals.catalog import lookup

    if crystal.name not in MODEL_PROVIDERS:
        return ()
    info = lookup.look_up(crystal.name, crystal.model, remark=False)
    return (info.efforts or EFFORTS) if info.reasoning else ()


def make_chosen_crystal(recipe: Recipe, value: str | None, effort: str | None) -> Crystal:
    """Make the crystal of a choice. If ``value`` is None, it is the recipe's own crystal.

    Raises `DefinitionError` if the choice names no crystal, and `MissingKey` if the provider's key is missing.
    """
    if value is None and effort is None:
        return crystals.crystal_for(recipe)
    options, where = _chosen_options(recipe, value)
    if effort is not None and options["provider"] not in ("scripted", "human"):
        options = {**options, "effort": effort}
        options.pop("thinking_budget", None)
    return crystals.make_crystal(options, _context(recipe, where, value or options.get("model", "")))


_OF_SERVER = ("provider", "base_url", "headers", "api_key_env", "api", "timeout_s")
"""The options of a crystal that hold for each model of its server."""


def _chosen_options(recipe: Recipe, value: str | None) -> tuple[dict[str, Any], Path]:
    """The options of a choice, and the folder of its files. Raises `DefinitionError` if the choice names no crystal."""
    from cantrip_acp.crystals.endpoint import environment_address

    given = recipe.data.get("crystal")
    named: Mapping[str, Any] = recipe.data.get("crystals", {})
    if value is not None and value in named:
        return crystal_factory.options_of(named[value]), recipe.path.parent
    if value is None or value == own_value(recipe):
        return (crystal_factory.options_of(given), recipe.path.parent) if given is not None else _of_environment()
    provider, colon, model = value.partition(":")
    own = crystal_factory.options_of(given) if given is not None else {}
    if own.get("provider") == provider and "base_url" in own and model.strip():
        # Another model of the recipe's own server.
        return {**{key: own[key] for key in _OF_SERVER if key in own}, "model": model.strip()}, recipe.path.parent
    homeless = provider == "local" and environment_address(provider) is None
    if not colon or not model.strip() or provider not in MODEL_PROVIDERS or homeless:
        known = ", ".join((*named, *(f"{name}:MODEL" for name in MODEL_PROVIDERS if name != "local")))
        raise DefinitionError(f"there is no model {value[:100]!r} to choose (known: {known})")
    return {"provider": provider, "model": model.strip()}, Path.cwd()


def _context(recipe: Recipe, folder: Path, what: str) -> FactoryContext:
    def error(path: Any, message: str) -> DefinitionError:
        return DefinitionError(message, where=f"the crystal {what}")

    limited = any("max_cost_usd" in ward for ward in recipe.data["circle"]["wards"])
    return FactoryContext(folder, Files(), recipe.state_dir, error, limited)


_CARRIED = ("effort", "timeout_s")
"""The keys of a recipe's crystal that mean the same for every model. All others belong to the recipe's own model."""


def crystal_for_run(recipe: Recipe, name: str, where: str) -> tuple[Crystal, tuple[str, ...]]:
    """The crystal that takes the place of the recipe's own for one run, and notes for the user.

    ``name`` is one of the recipe's ``crystals``, the recipe's own ``PROVIDER:MODEL`` (with all that the recipe says about it), or
    any name that `recipes.build.crystals.options_named` knows. ``where`` is the option that has the name, for errors. The notes
    say what the recipe sets and the new crystal does not take. Raises `DefinitionError`, and `MissingKey` if the key is missing.
    """
    value = name_for_run(recipe, name, where)
    if value in recipe.data.get("crystals", {}):
        return make_chosen_crystal(recipe, value, None), ()
    if value == own_value(recipe):
        return crystals.crystal_for(recipe), ()
    options = crystal_factory.options_of(value)
    own = recipe.data.get("crystal")
    left: list[str] = []
    if isinstance(own, Mapping) and own["provider"] in MODEL_PROVIDERS:
        takes = options["provider"] in MODEL_PROVIDERS
        options |= {key: own[key] for key in _CARRIED if takes and key in own}
        left = [key for key in sorted(own) if key not in ("provider", "model", *options)]

    def error(path: Any, message: str) -> DefinitionError:
        return DefinitionError(message, where=where)

    limited = any("max_cost_usd" in ward for ward in recipe.data["circle"]["wards"])
    made = crystals.make_crystal(options, FactoryContext(Path.cwd(), Files(), recipe.state_dir, error, limited))
    who, notes = value_of(made), []
    if "effort" in options and not efforts_of(made):
        left.append("effort")
    if left:
        notes.append(f"{who} takes the place of {own_value(recipe)}, so these keys of the recipe's crystal are not used: "
                     f"{', '.join(left)}")  # fmt: skip
    if untaken := _untaken(recipe, made):
        notes.append(f"{who} does not take {', '.join(untaken)}, which the recipe's call sets")
    return made, tuple(notes)


def name_for_run(recipe: Recipe, name: str, where: str) -> str:
    """The whole name of a crystal for one run: one of the recipe's ``crystals``, or ``PROVIDER:MODEL``. No key is needed."""
    name = name.strip()
    if not name:
        raise DefinitionError("is empty; write PROVIDER:MODEL, such as ollama:qwen3", where=where)
    if name in recipe.data.get("crystals", {}):
        return name
    options = crystals.options_named(name, where)
    return f"{options['provider']}:{options.get('model') or options.get('script') or options['provider']}"


def _untaken(recipe: Recipe, crystal: Crystal) -> list[str]:
    """The parameters of the recipe's call that this model does not accept, according to the catalog."""
    from cantrip_acp.crystals.catalog import lookup

    if crystal.name not in MODEL_PROVIDERS:
        return []
    call, info = recipe.data.get("call", {}), lookup.look_up(crystal.name, crystal.model, remark=False)
    found = [key for key in ("temperature", "top_p", "top_k", "min_p") if key in call and not info.sampling]
    forced = call.get("tool_choice", "auto") not in ("auto", "none")
    return [*found, "tool_choice"] if forced and not info.forced_tools else found


def _of_environment(*, ask: bool = True) -> tuple[dict[str, Any], Path]:
    """The options for a recipe without a crystal: ``$CANTRIP_CRYSTAL``, or `recipes.build.crystals.default_options`."""
    from cantrip_acp.crystals import keys
    from cantrip_acp.crystals.catalog import lookup

    setting = keys.setting(VARIABLE)
    if setting and setting.partition(":")[2].strip():
        return crystal_factory.options_of(setting), Path.cwd()
    if setting:
        provider = setting.partition(":")[0]
        return {"provider": provider, "model": lookup.default(provider) or ""}, Path.cwd()
    return crystals.default_options(ask=ask), Path.cwd()


def is_file(name_or_path: str) -> bool:
    """Whether this is a file path (relative to the folder in which the program started), not the name of a recipe."""
    return os.sep in name_or_path or name_or_path.endswith((".yaml", ".yml", ".toml"))
