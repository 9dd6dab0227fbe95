"""Makes the crystal of a recipe: the recipe's own crystal, one of its named ``crystals``, or the default crystal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.gates.registry import load_entry
from cantrip_acp.recipes.build.crystal_factory import (
    BUILT_IN,
    KEYS,
    VARIABLE,
    Factory,
    FactoryContext,
    available,
    options_of,
    routes,
    usable_keys,
)
from cantrip_acp.recipes.build.python_files import Files
from cantrip_acp.recipes.parse.problem_positions import KeyPath
from cantrip_acp.recipes.recipe import Recipe
from cantrip_acp.types.errors import DefinitionError, MissingKey

if TYPE_CHECKING:
    from cantrip_acp.crystals.local.discovery import LocalServer


def crystal_for(recipe: Recipe) -> Crystal:
    """Make the recipe's crystal, else the crystal of ``$CANTRIP_CRYSTAL``, else the crystal of `default_options`.

    Each call makes a new crystal, so that two sessions never share the position in a script. Raises `MissingKey` if
    there is no crystal.
    """
    given = recipe.data.get("crystal")
    if given is not None:
        need = FactoryContext(
            recipe.path.parent,
            recipe.files,
            recipe.state_dir,
            # A text has no keys, so the position of the text is used.
            lambda path, message: recipe.error(("crystal", *(() if isinstance(given, str) else path)), message),
            _cost_limited(recipe),
        )
        return make_crystal(options_of(given), need)
    from cantrip_acp.crystals import keys

    chosen = keys.setting(VARIABLE)
    if chosen:
        return crystal_named(chosen, recipe, VARIABLE)
    options = default_options()

    def error(path: KeyPath, message: str) -> DefinitionError:
        return DefinitionError(
            message, where=f"the crystal {options['provider']}:{options['model']}, chosen by default"
        )

    return make_crystal(options, FactoryContext(Path.cwd(), Files(), recipe.state_dir, error, _cost_limited(recipe)))


def default_name() -> str:
    """The crystal of recipes that name none, such as ``ollama:qwen3``. Raises `MissingKey` if there is none."""
    from cantrip_acp.crystals import keys

    if chosen := keys.setting(VARIABLE):
        return chosen
    options = default_options()
    return f"{options['provider']}:{options['model']}"


def default_options(*, ask: bool = True) -> dict[str, Any]:
    """The options of the default crystal: the first provider whose key is set, else the only running local server.

    If ``ask`` is false, the local servers are not asked again. Raises `MissingKey` if there is no default crystal.
    """
    from cantrip_acp.crystals import keys

    provider = next((name for name in KEYS if routes().get(name) is not None), None)
    if provider is None and (found := keys.find_first_provider(usable_keys())) is not None:
        provider = found[0]
    if provider is not None:
        from cantrip_acp.crystals.catalog import lookup

        model = lookup.default(provider)
        if model is None:
            raise MissingKey(f"{provider} has no default model; set {VARIABLE}={provider}:MODEL")
        return {"provider": provider, "model": model}
    if keys.setting("CANTRIP_BASE_URL"):
        # The user has set a gateway, so a local server is not used.
        raise MissingKey(_how_to_get_one())
    from cantrip_acp.crystals.local import discovery

    servers = discovery.find_running() if ask else discovery.last_found()
    if len(servers) != 1:
        raise MissingKey(_how_to_get_one(servers))
    return {"provider": servers[0].provider, "model": servers[0].models[0].name}


def _cost_limited(recipe: Recipe) -> bool:
    return any("max_cost_usd" in ward for ward in recipe.data["circle"]["wards"])


def make_named_crystal(recipe: Recipe, name: str) -> Crystal:
    """Make one of the recipe's ``crystals`` by its name."""
    given = recipe.data["crystals"][name]

    def error(path: KeyPath, message: str) -> DefinitionError:
        return recipe.error(("crystals", name, *(() if isinstance(given, str) else path)), message)

    return make_crystal(options_of(given), FactoryContext(recipe.path.parent, recipe.files, recipe.state_dir, error))


class NamedCrystals(Mapping[str, Crystal]):
    """The recipe's ``crystals`` for children. Each crystal is made when a child uses it for the first time.

    So a provider's key may be missing if no child uses the crystal (COMP-7).
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._names: tuple[str, ...] = tuple(recipe.data.get("crystals", {}))
        self._made: dict[str, Crystal] = {}

    def __getitem__(self, name: str) -> Crystal:
        if name not in self._names:
            raise KeyError(name)
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = make_named_crystal(self._recipe, name)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def make_crystal(options: Mapping[str, Any], need: FactoryContext) -> Crystal:
    """Make a crystal from its mapping. Raises `DefinitionError` if this version does not have the provider."""
    rest = dict(options)
    provider = str(rest.pop("provider"))
    if provider == "scripted":
        return make_scripted_crystal(rest, need)
    if provider in BUILT_IN:
        from cantrip_acp.recipes.build import providers

        return providers.crystal(provider, rest, need)
    from importlib.metadata import entry_points

    for entry in entry_points(group="cantrip_acp.crystals", name=provider):
        factory: Factory = load_entry(entry)
        return factory(rest, need)
    here = ", ".join(available())
    raise need.error(
        ("provider",) if "provider" in options else (),
        f"provider {provider} is not available in this version yet (available: {here})",
    )


def make_scripted_crystal(options: Mapping[str, Any], need: FactoryContext) -> Crystal:
    from cantrip_acp.crystals.scripted import ScriptedCrystal
    from cantrip_acp.recipes import cache

    options = dict(options)
    script = options.pop("script", None)
    if script is not None:
        path = need.folder / Path(script).expanduser()
        try:
            raw = need.files.read(path)
        except DefinitionError as error:
            raise need.error(("script",), f"the script {error}") from None
        options = {**cache.canonical("script", raw, path, str(path), need.state_dir), **options}
    responses = options.pop("responses")
    return ScriptedCrystal(responses, **options)


def crystal_named(chosen: str, recipe: Recipe | None, where: str, *, cost_limited: bool = False) -> Crystal:
    """Make the crystal of a text such as ``ollama:qwen3``. ``where`` is the text's origin, for errors (`DefinitionError`).

    ``recipe`` is the recipe that uses it. Without one, ``cost_limited`` says whether a ward limits the cost.
    """

    def error(path: KeyPath, message: str) -> DefinitionError:
        return DefinitionError(message, where=where)

    # A path is relative to the folder in which the program started, like every path that the user gives.
    if recipe is not None:
        cost_limited = _cost_limited(recipe)
    state_dir = None if recipe is None else recipe.state_dir
    options = options_named(chosen, where)
    return make_crystal(options, FactoryContext(Path.cwd(), Files(), state_dir, error, cost_limited))


def options_named(chosen: str, where: str) -> dict[str, Any]:
    """The options of a crystal's name: ``PROVIDER:MODEL``, ``scripted:FILE``, a provider with a default model, or a model that
    only one provider of the catalog has. ``where`` is the origin of the name, for errors (`DefinitionError`)."""

    def error(path: KeyPath, message: str) -> DefinitionError:
        return DefinitionError(message, where=where)

    chosen = chosen.strip()
    provider, colon, rest = chosen.partition(":")
    if not colon and provider not in BUILT_IN:
        owners = _providers_of(provider) or _providers_of(provider, ask=True)
        if len(owners) == 1:
            provider, rest = owners[0], chosen
            chosen = f"{provider}:{rest}"
    # Entry points are searched last, because that takes longer than reading the recipe.
    if provider not in BUILT_IN and provider not in available():
        near = _similar(provider, rest)
        hint = f"; did you mean {near}? Write" if near else "; write"
        raise error(
            (),
            f"{chosen!r} is not a crystal{hint} PROVIDER:MODEL, or scripted:FILE for a script "
            f"(providers: {', '.join(available())})",
        )
    if not rest.strip() and provider in KEYS:
        from cantrip_acp.crystals.catalog import lookup

        # Only a provider is named, so use its default model.
        rest = lookup.default(provider) or ""
        chosen = f"{provider}:{rest}"
    if not rest.strip() and provider not in ("human", "embedded"):
        raise error((), f"{chosen!r} is not complete; write {provider}:{'FILE' if provider == 'scripted' else 'MODEL'}")
    return options_of(chosen)


def _providers_of(model: str, *, ask: bool = False) -> list[str]:
    """The providers whose models in the catalog, or on a server of this machine, have this name. With ``ask`` the servers are
    asked again."""
    from cantrip_acp.crystals.catalog import lookup
    from cantrip_acp.crystals.local import discovery

    found = [provider for provider, name, _ in lookup.list_models() if name == model]
    servers = discovery.find_running() if ask else discovery.last_found()
    found += [server.provider for server in servers for each in server.models if each.name == model]
    return list(dict.fromkeys(found))


def _similar(provider: str, rest: str) -> str | None:
    """The crystal that was probably meant: a misspelled provider, or the provider of a known model."""
    import difflib

    if not rest and len(owners := _providers_of(provider)) > 1:
        return " or ".join(f"{owner}:{provider}" for owner in owners)
    near = difflib.get_close_matches(provider.strip().lower(), BUILT_IN, n=1)
    if near:
        return f"{near[0]}{':' if rest else ''}{rest}"
    from cantrip_acp.crystals.catalog import lookup

    if rest:
        return None
    for owner in KEYS:
        if (name := lookup.suggest_model(owner, provider)) is not None:
            return f"{owner}:{name}"
    # A version that the catalog does not have yet.
    family = provider.partition("-")[0]
    alike = (owner for owner, name, _ in lookup.list_models() if name.partition("-")[0] == family)
    return next((f"{owner}:{provider}" for owner in alike if owner in KEYS), None)


def _how_to_get_one(servers: Sequence[LocalServer] = ()) -> str:
    from cantrip_acp.crystals import keys

    if servers:
        choices = " or ".join(f"{VARIABLE}={s.provider}:{s.models[0].name}" for s in servers)
        return (
            f"no model: the recipe names none, {VARIABLE} is not set, and {len(servers)} local servers run. Choose one of "
            f"them: set {choices} (`cantrip models local` lists their models)"
        )
    variables = ", ".join(variables[0] for variables in KEYS.values())
    return (
        f"no model: the recipe names none, {VARIABLE} is not set, no provider's key was found, and no local server answers. "
        f"Set one of {variables} in the environment or in {keys.dotenv_file()}, or set {VARIABLE}=PROVIDER:MODEL "
        "(ollama:qwen3 needs no key, scripted:FILE uses a script). `cantrip models pull smollm2` gets a small model that runs in "
        f"Cantrip itself ({VARIABLE}=embedded)"
    )
