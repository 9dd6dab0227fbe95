"""Model lookup: finds the data of a model in the user's table (``models.toml``) and in the shipped table (`models.json`).

``models.toml`` is in the configuration folder. It has a table for each provider, with a table for each model, which has
the fields of `ModelInfo`. Each field overrides the same field of the shipped table::

    [openai."gpt-6.1-sol"]
    price = {input = 2, output = 10, cached = 0.1}

    [ollama.qwen3]
    context_window = 32768

    [defaults]
    anthropic = "claude-opus-5-5"
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from cantrip_acp.crystals.catalog.types import UNKNOWN, ModelInfo
from cantrip_acp.crystals.local.presets import LOCAL, PRESETS
from cantrip_acp.files.paths import config_dir
from cantrip_acp.text import codecs
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import DefinitionError

_log = logger(__name__)

SHIPPED = Path(__file__).with_name("models.json")
FILE = "models.toml"
DEFAULTS = "defaults"
MAX_BYTES = 1_000_000
SOON_DAYS = 60
"""A retirement is announced to the user this many days before its date."""
ALIKE = 0.88
"""How similar the letters of two names must be to count as a misspelling, from 0 to 1."""

_SUFFIX = re.compile(
    r"-(?:latest|\d{8}|\d{4}-\d{2}-\d{2}|\d{2}-\d{4}|preview-\d{2}-\d{2}|preview-\d{2}-\d{4}|preview|exp|\d{3})\Z"
)
"""The suffixes that providers append to a model's name for a version of the model."""

_VENDORS = {"anthropic": "anthropic", "openai": "openai", "google": "google"}
_FIELDS = tuple(field for field in ModelInfo.__struct_fields__ if field not in ("known", "family"))


_OWN = ("embedded", "gguf")
"""Providers whose models this machine runs itself."""


def look_up(provider: str, model: str, *, remark: bool = True) -> ModelInfo:
    """Look up a model. A name with a date or ``-latest`` means the model itself. For a model that is in no table, return
    the assumptions for its family, else `UNKNOWN`.

    With ``remark``, an unknown model is logged once. Raises `DefinitionError` if the user's table cannot be read.
    """
    shipped, users = _entry(_shipped()["models"], provider, model), _entry(user_table(), provider, model)
    retired = _entry(_shipped()["retired"], provider, model) if shipped is None else None
    known = not (shipped is None and retired is None and users is None)
    found = {**(_of_family(provider, model) if shipped is None else shipped), **(retired or {}), **(users or {})}
    own = provider in _OWN or (provider == "ollama" and "cloud" not in model.partition(":")[2])
    if own and "price" not in found:
        found["price"] = {}  # The model runs on the user's own machine, so it costs nothing.
    if not known and remark and provider not in ("local", *LOCAL, *_OWN):
        _remark(provider, model, found.get("family", ""))
    return codecs.convert({**found, "known": known}, ModelInfo) if found or known else UNKNOWN


def _of_family(provider: str, model: str) -> dict[str, Any]:
    """The assumptions for a model's family; empty if no family matches."""
    bare = _plain_name(model)
    rule = next((rule for rule in _shipped()["families"] if re.search(rule["match"], bare)), None)
    if rule is None:
        return {}
    found = {**rule["assume"], "family": rule["family"]}
    if provider in ("local", *LOCAL, *_OWN):
        # A local server may use a smaller window than the model has.
        for key in ("context_window", "max_input", "max_output"):
            found.pop(key, None)
    return found


def _plain_name(model: str) -> str:
    """A model's name without vendor and tag. Dots in a Claude name (as OpenRouter writes it) become dashes."""
    name = model.rpartition("/")[2].partition(":")[0].lower()
    return name.replace(".", "-") if name.startswith("claude-") else name


def is_retired(info: ModelInfo) -> bool:
    """Whether the model's provider has shut it down."""
    return bool(info.retired) and _days_to(info.retired) <= 0


def _days_to(day: str) -> int:
    return (date.fromisoformat(day) - datetime.now(UTC).date()).days


def remark(provider: str, model: str) -> str:
    """A note about a model's name: a retirement and its successor, or a likely misspelling. Empty if there is none."""
    info = look_up(provider, model, remark=False)
    if info.retired:
        instead = f"; use {info.successor}" if info.successor else ""
        days = _days_to(info.retired)
        if days <= 0:
            return f"{provider}:{model} was retired on {info.retired}{instead}"
        return f"{provider}:{model} will be retired on {info.retired}{instead}" if days <= SOON_DAYS else ""
    near = None if info.known else suggest_model(provider, model)
    return f"no model {provider}:{model} is known; did you mean {near!r}?" if near else ""


def suggest_model(provider: str, model: str) -> str | None:
    """The known model whose name is probably misspelled here; None if there is none.

    A name that differs from a known name only in digits is not a misspelling, but a version that is missing in the table.
    """
    import difflib

    if provider in ("local", *PRESETS):
        return None
    known = {name: _letters(name) for name in _all_names(provider)}
    letters = _letters(model.partition(":")[0])
    if not letters or letters in known.values():
        return None
    near = difflib.get_close_matches(letters, dict.fromkeys(known.values()), n=1, cutoff=ALIKE)
    if not near:
        return None
    named = [name for name, plain in known.items() if plain == near[0]]
    return max(named, key=lambda name: difflib.SequenceMatcher(None, model.lower(), name).ratio())


def _letters(name: str) -> str:
    return re.sub(r"[\d.\-_@~]+", "-", name.lower()).strip("-")


def _all_names(provider: str) -> list[str]:
    """All names of a provider's models in the tables. OpenRouter also serves the models of other providers."""
    found = [name for _, name, _ in list_models(provider)]
    if provider == "openrouter":
        for vendor, maker in _VENDORS.items():
            found += [f"{vendor}/{re.sub(r'(?<=[0-9])-(?=[0-9])', '.', name)}" for _, name, _ in list_models(maker)]
    return found


def list_models(provider: str | None = None) -> Iterator[tuple[str, str, ModelInfo]]:
    """List the models of both tables as (provider, name, data)."""
    shipped, users = _shipped()["models"], user_table()
    for name in (n for n in dict.fromkeys((*shipped, *users)) if provider in (None, n)):
        for model in dict.fromkeys((*shipped.get(name, {}), *users.get(name, {}))):
            yield name, model, look_up(name, model)


def default(provider: str) -> str | None:
    """The default model of a provider. The user's ``defaults`` override the shipped ones. None if there is none."""
    chosen = _file().get(DEFAULTS, {}).get(provider) or _shipped()["defaults"].get(provider)
    return str(chosen) if chosen else None


def table_info() -> Mapping[str, Any]:
    """Data about the shipped table: ``date``, ``table_info``, ``sources``, ``notes`` and ``defaults``."""
    return {key: value for key, value in _shipped().items() if key not in ("families", "retired", "models")}


def user_table_path() -> Path:
    """The path of the user's own table."""
    return config_dir() / FILE


def names(provider: str, model: str) -> Iterator[str]:
    """The names under which a table may have a model, from the most exact to the least exact."""
    yield model
    if provider in ("local", *PRESETS):
        base = model.partition(":")[0]
        yield base
        yield base.rpartition("/")[2].lower()
        return
    if provider == "openrouter":
        model = model.partition(":")[0].removeprefix("~")
        yield model
    if provider == "google":
        model = model.removeprefix("models/")
        yield model
    while match := _SUFFIX.search(model):
        model = model[: match.start()]
        yield model


def _entry(table: Mapping[str, Any], provider: str, model: str) -> Mapping[str, Any] | None:
    entries = table.get(provider, {})
    for name in names(provider, model):
        if name in entries:
            found: Mapping[str, Any] = entries[name]
            return found
    if provider == "openrouter":
        # OpenRouter serves models of other providers at the same price, with dots instead of dashes in their names.
        vendor, _, name = model.partition("/")
        maker = _VENDORS.get(vendor)
        if maker is not None:
            name = name.partition(":")[0]
            plain = _entry(table, maker, name)
            return plain if plain is not None else _entry(table, maker, name.replace(".", "-"))
    if provider == "local" or provider in LOCAL[1:]:
        return _entry(table, "ollama", model) if table is not user_table() else None
    return None


@cache
def _shipped() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(SHIPPED.read_bytes())
    return data


def user_table() -> dict[str, Any]:
    """The user's table, by provider and model. Raises `DefinitionError` if it cannot be read."""
    return {name: models for name, models in _file().items() if name != DEFAULTS}


_read: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}


def _file() -> dict[str, Any]:
    """The content of the user's file. It is read again after a change."""
    path = user_table_path()
    try:
        state = path.stat()
    except OSError:
        return {}
    version = (state.st_mtime_ns, state.st_size)
    cached = _read.get(path)
    if cached is None or cached[0] != version:
        cached = _read[path] = (version, _parsed(path))
    return cached[1]


def _parsed(path: Path) -> dict[str, Any]:
    import tomllib

    where = str(path)
    try:
        raw = path.read_bytes()
        data = tomllib.loads(raw.decode()) if len(raw) <= MAX_BYTES else None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DefinitionError(f"the table of models cannot be read: {error}", where=where) from None
    if data is None:
        raise DefinitionError(f"the table of models is larger than {MAX_BYTES:,} bytes", where=where)
    for provider, models in data.items():
        if not isinstance(models, dict):
            raise DefinitionError(f"{provider} must be a table of models", where=where)
        for model, entry in models.items():
            place = f"{where}: {provider}.{model}"
            if provider == DEFAULTS:
                if not isinstance(entry, str) or not entry:
                    raise DefinitionError("a default must be the name of a model", where=place)
                continue
            if not isinstance(entry, dict):
                raise DefinitionError("a model must be a table with the fields of the model", where=place)
            for key in entry:
                if key not in _FIELDS:
                    raise DefinitionError(f"unknown key {key!r} (known: {', '.join(_FIELDS)})", where=place)
            try:
                codecs.convert(entry, ModelInfo)
            except msgspec.ValidationError as error:
                raise DefinitionError(str(error), where=place) from None
            _sensible(entry, place)
    return data


def _sensible(entry: Mapping[str, Any], place: str) -> None:
    """Check the values. Limits must be positive. Prices must not be negative, because a limit on costs would then never
    be reached."""
    for key in ("context_window", "max_input", "max_output"):
        if entry.get(key, 1) < 1:
            raise DefinitionError(f"{key} must be a number of tokens, 1 or more, not {entry[key]}", where=place)
    if "retired" in entry:
        try:
            date.fromisoformat(entry["retired"])
        except ValueError:
            text = f"retired must be a day such as 2027-01-31, not {entry['retired']!r}"
            raise DefinitionError(text, where=place) from None
    price = entry.get("price")
    while price is not None:
        for key in ("input", "output", "cached", "cache_write", "above"):
            # This form also refuses NaN.
            if not 0 <= price.get(key, 0) < float("inf"):
                raise DefinitionError(f"price.{key} must be 0 or more, not {price[key]}", where=place)
        price = price.get("long")


_logged: set[tuple[str, str]] = set()


def _remark(provider: str, model: str, family: str) -> None:
    """Log once per process that a model is unknown, what is assumed, and where to correct it."""
    if (provider, model) in _logged:
        return
    _logged.add((provider, model))
    if family:
        _log.warning(
            "%s:%s is in no table of models. It is assumed to be like the family %s, and its price is not known. To correct "
            "this, edit %s or the recipe (context_window, max_input, images, price).",
            provider,
            model,
            family,
            user_table_path(),
        )
        return
    _log.warning(
        "%s:%s is in no table of models. It is assumed to take tools and only text; its context window and its price are "
        "not known. To correct this, edit %s or the recipe (context_window, price).",
        provider,
        model,
        user_table_path(),
    )
