"""Crystal factories of model providers: choose address, key, headers and limits from recipe, catalog and environment.

Nothing here imports an SDK or uses the network, so that a session opens fast.

Each kind of address gets only its own keys and headers:

- The provider's own address, or the address that the environment names for the provider (``ANTHROPIC_BASE_URL`` …)
  gets the provider's key and ``CANTRIP_HEADERS``.
- A gateway (``CANTRIP_BASE_URL``, which replaces every other address, also a recipe's) gets ``CANTRIP_API_KEY`` and
  ``CANTRIP_HEADERS``, but no provider's key.
- An address that an ACP client sets (``providers/set``) replaces the others for its connection, from the next query on,
  and gets only the headers that the client sets.
- A recipe's ``base_url`` gets the recipe's ``headers`` and the key that its ``api_key_env`` names. It gets nothing
  else from the environment.
"""

from __future__ import annotations

import base64
import importlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

import anyio
import anyio.to_thread
import msgspec

from cantrip_acp.crystals import keys
from cantrip_acp.crystals.catalog import lookup
from cantrip_acp.crystals.catalog.types import ModelInfo, Price
from cantrip_acp.crystals.catalog.unsupported_params import nearest_effort
from cantrip_acp.crystals.contract import Crystal, CrystalBase, Emit, Query, Response
from cantrip_acp.crystals.embedded import weights
from cantrip_acp.crystals.endpoint import BASE_URL_VARIABLES, LOCAL_KEY, SILENCE_S, Endpoint, environment_address
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.local.presets import PRESETS, ollama_address
from cantrip_acp.recipes.build.crystal_factory import AUTH_TOKEN, KEYS, ROUTES, FactoryContext, Route, routes
from cantrip_acp.recipes.build.python_files import Files
from cantrip_acp.recipes.parse.names import EMBEDDED
from cantrip_acp.recipes.parse.problem_positions import KeyPath
from cantrip_acp.text import codecs
from cantrip_acp.text.defaults import complete
from cantrip_acp.text.redaction import shared
from cantrip_acp.types.errors import CantripError, CrystalError, DefinitionError, MissingKey

BASE_URL = "CANTRIP_BASE_URL"
API_KEY = "CANTRIP_API_KEY"
HEADERS = "CANTRIP_HEADERS"

_CLASSES = {
    "anthropic": "cantrip_acp.crystals.anthropic.crystal:AnthropicCrystal",
    "openai": "cantrip_acp.crystals.openai.responses_api:OpenAICrystal",
    "google": "cantrip_acp.crystals.google.crystal:GoogleCrystal",
    "openrouter": "cantrip_acp.crystals.openai.openrouter:OpenRouterCrystal",
    "human": "cantrip_acp.crystals.human:HumanCrystal",
}
_CHAT = "cantrip_acp.crystals.local.crystal:LocalCrystal"
"""The class for ``local`` and for every preset."""
_SIGNING = ("authorization", "x-api-key", "x-goog-api-key")
"""Headers that contain a key. If one of them is set, no key is needed."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*\Z")


def crystal(provider: str, options: Mapping[str, Any], need: FactoryContext) -> Crystal:
    """The crystal of a built-in provider. ``options`` is the recipe's mapping without ``provider``."""
    if provider == "human":
        human: Crystal = _class(provider)()
        return human
    own_routes = ROUTES.get(None)
    if own_routes is not None and provider in KEYS:
        return cast("Crystal", _RoutedCrystal(provider, own_routes, lambda: _made(provider, options, need)))
    return _made(provider, options, need)


class _RoutedCrystal:
    """A crystal of an ACP connection. If the client routes its provider elsewhere, the next query goes there: a client
    renews a token in this way. It has the attributes of the crystal that it queries."""

    def __init__(self, provider: str, own_routes: Mapping[str, Route | None], make: Callable[[], Crystal]) -> None:
        self._provider = provider
        self._routes = own_routes
        self._make = make
        self._route = own_routes.get(provider, _UNROUTED)
        self._crystal = make()
        self._queries: Counter[Crystal] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._crystal, name)

    def __repr__(self) -> str:
        return repr(self._crystal)

    async def query(self, query: Query, emit: Emit) -> Response:
        used = await self._follow_route()
        self._queries[used] += 1
        try:
            return await used.query(query, emit)
        finally:
            self._queries[used] -= 1
            await self._close_unused(used)

    async def _follow_route(self) -> Crystal:
        route = self._routes.get(self._provider, _UNROUTED)
        if route is not self._route:
            try:
                new = await anyio.to_thread.run_sync(self._make)
            except CantripError as problem:
                raise CrystalError(str(problem), retryable=False) from problem
            old, self._crystal, self._route = self._crystal, new, route
            await self._close_unused(old)
        return self._crystal

    async def _close_unused(self, crystal: Crystal) -> None:
        """Close the connections to an address that is not used any more."""
        if crystal is self._crystal or self._queries[crystal] > 0:
            return
        del self._queries[crystal]
        await complete(crystal, CrystalBase).aclose()


_UNROUTED: Any = object()


def _made(provider: str, options: Mapping[str, Any], need: FactoryContext) -> Crystal:
    end = endpoint(provider, options, need)
    if need.cost_limited and end.info.price is None and provider != "openrouter":
        # OpenRouter reports the cost of each query. For any other model without a price, the cost is unknown.
        raise need.error(
            ("model",),
            f"the ward max_cost_usd needs a price, and the price of {provider}:{end.model} is unknown; give the crystal a "
            f"price ({{input: …, output: …}}, US dollars for a million tokens), or add one to {lookup.user_table_path()}",
        )
    try:
        if provider in EMBEDDED:
            from cantrip_acp.crystals.embedded.crystal import EmbeddedCrystal

            return EmbeddedCrystal(end, need.folder)
        made: Crystal = _class(provider)(end)
    except DefinitionError as error:
        raise need.error((), str(error)) from None
    return made


def _class(provider: str) -> Any:
    module, _, name = _CLASSES.get(provider, _CHAT).partition(":")
    return getattr(importlib.import_module(module), name)


def endpoint(provider: str, options: Mapping[str, Any], need: FactoryContext, *, known: bool = True) -> Endpoint:
    """The endpoint of a model: address, key and limits. If ``known``, a model that no catalog has is logged.

    Raises `MissingKey`, and `DefinitionError` with the position of the error.
    """
    rest = dict(options)
    model = str(rest.pop("model")).strip()
    if provider in routes():
        return _routed(provider, model, rest, known=known)
    if provider in EMBEDDED:
        return _embedded(provider, model, rest, need)
    given = rest.pop("base_url", None)
    gateway = keys.setting(BASE_URL)
    base_url = gateway or given
    headers = _headers(rest.pop("headers", None) or {}, need, environment=bool(gateway) or given is None)
    if base_url is not None:
        base_url, authorization = address(base_url, BASE_URL if gateway else None, need)
        if authorization is not None:
            headers.setdefault("Authorization", authorization)
    elif provider in PRESETS:
        base_url = (
            ollama_address(keys.setting("OLLAMA_HOST"))
            if provider == "ollama"
            else environment_address(provider) or PRESETS[provider].base_url
        )
    elif provider == "local":
        base_url = environment_address(provider)
        if base_url is None:
            raise need.error(
                (),
                "a local crystal needs base_url, the address of its server, such as http://127.0.0.1:8000/v1. "
                f"You can also set {BASE_URL_VARIABLES[provider]} or {BASE_URL}",
            )
    variable = rest.pop("api_key_env", None)
    hint = ""
    if gateway:
        found = keys.find((API_KEY,), keyring=False)
        hint = f"no provider's key is sent to {BASE_URL}; set {API_KEY}" if found is None else ""
    elif given is not None:
        found = _find_key(provider, (variable,)) if variable else None
        hint = "no key is sent to a recipe's base_url; name a key with api_key_env" if found is None else ""
    else:
        signed = any(name.lower() in _SIGNING for name in headers)
        local = provider in PRESETS and PRESETS[provider].local
        needed = not signed and not local and environment_address(provider) is None
        found = _key(provider, variable, needed=needed)
    key = found.secret if found is not None else None
    if found is not None and found.name == AUTH_TOKEN:
        key = None
        headers.setdefault("Authorization", Secret(f"Bearer {found.secret.reveal()}"))
    info = _info(provider, model, rest, known=known)
    silence_s = float(rest.pop("timeout_s", SILENCE_S))
    remark = lookup.remark(provider, model)
    # Other servers have their own model names, so a name that the catalog does not have may be right.
    notes = [remark if given is None and not gateway else "", _fit_effort(f"{provider}:{model}", rest, info)]
    return Endpoint(
        provider,
        model,
        base_url,
        key,
        headers,
        info,
        silence_s=silence_s,
        options=rest,
        refusal_hint=hint,
        name_hint=remark,
        remarks=tuple(note for note in notes if note),
    )


def _embedded(provider: str, model: str, rest: dict[str, Any], need: FactoryContext) -> Endpoint:
    """The endpoint of a model that this machine runs: it has no address, no key and no headers."""
    for name in ("base_url", "api_key_env", "headers"):
        if name in rest:
            raise need.error((name,), f"a crystal of the provider {provider} is on this machine and takes no {name}")
    if provider == "embedded" and model not in weights.KNOWN:
        raise need.error(("model",), weights.unknown(model))
    info = _info(provider, model, rest, known=False)
    silence_s = float(rest.pop("timeout_s", SILENCE_S))
    return Endpoint(provider, model, weights.ADDRESS, info=info, silence_s=silence_s, options=rest)


def _routed(provider: str, model: str, rest: dict[str, Any], *, known: bool) -> Endpoint:
    """The endpoint of a model whose requests the client routes. Raises `MissingKey` if the client disabled the provider."""
    route = routes()[provider]
    if route is None:
        raise MissingKey(f"the client has disabled {provider} (providers/disable)")
    for name in ("base_url", "headers", "api_key_env"):
        rest.pop(name, None)
    info = _info(provider, model, rest, known=known)
    silence_s = float(rest.pop("timeout_s", SILENCE_S))
    note = _fit_effort(f"{provider}:{model}", rest, info)
    return Endpoint(
        provider,
        model,
        route.base_url,
        None,
        dict(route.headers),
        info,
        silence_s=silence_s,
        options=rest,
        refusal_hint="no key is sent to an address that the client set; it must set a header with one",
        remarks=(note,) if note else (),
    )


def make_route(api_type: str, base_url: str, headers: Mapping[str, str]) -> Route:
    """Check the address and the headers of a route. Raises `DefinitionError`, whose text contains no value of a header."""

    def error(path: KeyPath, message: str) -> DefinitionError:
        return DefinitionError(message, where=".".join(map(str, path)))

    need = FactoryContext(Path("/"), Files(), None, error)
    plain, authorization = address(base_url, "baseUrl", need)
    checked = _headers(headers, need, environment=False)
    if authorization is not None:
        checked.setdefault("Authorization", authorization)
    return Route(api_type, plain, checked)


def _fit_effort(who: str, rest: dict[str, Any], info: ModelInfo) -> str:
    """Set the nearest effort that the model supports. Returns a note, or an empty text if the effort is supported."""
    asked = rest.get("effort")
    if asked is None or not info.efforts or asked in info.efforts:
        return ""
    rest["effort"] = nearest_effort(asked, info.efforts)
    taken = ", ".join(info.efforts)
    return f"{who} does not support the effort {asked}; {rest['effort']} is used (supported: {taken})"


def _info(provider: str, model: str, rest: dict[str, Any], *, known: bool) -> ModelInfo:
    """The model's data from the catalog, overridden by the recipe's options, which are removed from ``rest``."""
    info = lookup.look_up(provider, model, remark=known)
    changes: dict[str, Any] = {}
    if "context_window" in rest:
        # The catalog's largest prompt belongs to the catalog's window, so it is not used either.
        changes |= {"context_window": rest.pop("context_window"), "max_input": None}
    for name in ("max_input", "images"):
        if name in rest:
            changes[name] = rest.pop(name)
    if "price" in rest:
        changes["price"] = codecs.convert(rest.pop("price"), Price, strict=False)
    return msgspec.structs.replace(info, **changes)


def _key(provider: str, variable: str | None, *, needed: bool) -> keys.Found | None:
    """The key of a provider, for the provider's own address or the address that the environment names for it."""
    if variable or needed:
        names = (variable,) if variable else key_names(provider)
        return _find_key(provider, names) if names else None
    # The user's own server may need no key, so the keyring is not asked.
    return keys.find(key_names(provider), keyring=False)


def key_names(provider: str) -> tuple[str, ...]:
    """The variables that may hold a provider's key."""
    preset = PRESETS.get(provider)
    return KEYS.get(provider, (preset.key,) if preset is not None else (LOCAL_KEY,) if provider == "local" else ())


def _find_key(provider: str, names: tuple[str, ...]) -> keys.Found:
    found = keys.find(names)
    if found is None:
        raise MissingKey(no_key(provider, names))
    return found


def no_key(provider: str, names: tuple[str, ...]) -> str:
    """Explain how to set a provider's missing key."""
    or_else = f", or: keyring set {keys.SERVICE} {names[0]}" if keys.keyring_installed() else ""
    return (
        f"no key for {provider}: set {' or '.join(names)} in the environment, or write {names[0]}=… into "
        f"{keys.dotenv_file()}{or_else}"
    )


def address(url: str, variable: str | None, need: FactoryContext) -> tuple[str, Secret | None]:
    """An address without its user name and password, and the header that replaces them."""

    def refuse(problem: str) -> DefinitionError:
        if variable is not None:
            return DefinitionError(problem, where=variable)
        return need.error(("base_url",), problem)

    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise refuse("must be an address such as https://gateway.example/v1") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"[\s\x00-\x1f]", url.strip()):
        raise refuse("must be an address that begins with http:// or https://, such as https://gateway.example/v1")
    if parts.query or parts.fragment:
        raise refuse("must not contain ? or #; put a secret part of the address into headers")
    authorization = None
    if parts.username is not None or parts.password is not None:
        name, password = unquote(parts.username or ""), unquote(parts.password or "")
        shared().add(password or name, parts.password or "")
        login = base64.b64encode(f"{name}:{password}".encode()).decode()
        shared().add(login)
        authorization = Secret(f"Basic {login}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    plain = SplitResult(parts.scheme, f"{host}:{port}" if port is not None else host, parts.path.rstrip("/"), "", "")
    return urlunsplit(plain), authorization


def _headers(given: Mapping[str, str], need: FactoryContext, *, environment: bool) -> dict[str, Secret]:
    """The recipe's headers, checked, because an invalid header breaks every request.

    With ``environment``, the headers of the environment are added; they override the recipe's.
    """
    merged: dict[str, tuple[str, Secret]] = {}
    for name, value in given.items():
        problem = _header_problem(name, value)
        if problem:
            raise need.error(("headers", name), problem)
        merged[name.lower()] = (name, _register_secret(value))
    for name, value in environment_headers().items():
        # Register the secret even if it is not sent: it must be masked everywhere.
        secret = _register_secret(value)
        if environment:
            merged[name.lower()] = (name, secret)
    return dict(merged.values())


def _register_secret(value: str) -> Secret:
    # In "Bearer abc" the second word is the secret, and may appear without the first.
    shared().add(value.partition(" ")[2])
    return Secret(value)


def environment_headers() -> dict[str, str]:
    """The headers in ``CANTRIP_HEADERS``: one ``Name: value`` per line, or a JSON object.

    Raises `DefinitionError`, whose text contains no value.
    """
    text = keys.setting(HEADERS)
    if not text:
        return {}
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise DefinitionError('must be a JSON object with text values, such as {"X-Team": "blue"}', where=HEADERS)
    else:
        found = {}
        for number, line in enumerate(text.splitlines(), 1):
            name, colon, value = line.partition(":")
            if line.strip() and not colon:
                raise DefinitionError(f"line {number} is not a header; write Name: value", where=HEADERS)
            if line.strip():
                found[name.strip()] = value.strip()
    for name, value in found.items():
        problem = _header_problem(name, value)
        if problem:
            raise DefinitionError(problem, where=HEADERS)
    return found


def _header_problem(name: str, value: str) -> str | None:
    if not _TOKEN.match(name):
        return "the name of a header may contain only letters, digits and dashes"
    if not _VALUE.match(value):
        return f"the value of the header {name} contains characters that are not allowed in a header"
    return None
