"""Providers of models as the client sets them: ``providers/list``, ``providers/set`` and ``providers/disable`` (unstable).

A route that a client sets holds for its connection, from the next query on, also of sessions that are open
(`recipes.build.providers`).
Answers hold addresses only, never a key or a header.
"""

from __future__ import annotations

import anyio.to_thread

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.wire.connection import Method, Request
from cantrip_acp.acp.wire.jsonrpc import invalid_params
from cantrip_acp.crystals import keys
from cantrip_acp.crystals.endpoint import environment_address
from cantrip_acp.recipes.build.crystal_factory import KEYS, ROUTES, Route
from cantrip_acp.types.errors import DefinitionError

_KNOWN = {
    "anthropic": ("anthropic", "https://api.anthropic.com"),
    "openai": ("openai", "https://api.openai.com/v1"),
    "google": ("_gemini", "https://generativelanguage.googleapis.com"),
    "openrouter": ("openai", "https://openrouter.ai/api/v1"),
}
"""The protocol and the own address of each provider. A protocol outside of ACP's names begins with ``_``."""


class ModelProviders:
    """The model providers of one connection."""

    def __init__(self) -> None:
        self._routes: dict[str, Route | None] = {}

    def activate(self) -> None:
        """Use these providers in this task and in all tasks that it starts."""
        ROUTES.set(self._routes)

    def methods(self) -> dict[str, Method]:
        return {
            "providers/list": Method(acp.NoParams, self._list),
            "providers/set": Method(acp.SetProvider, self._set),
            "providers/disable": Method(acp.DisableProvider, self._disable),
        }

    async def _list(self, params: acp.NoParams, request: Request) -> acp.Providers:
        return await anyio.to_thread.run_sync(lambda: acp.Providers([self._provider(name) for name in KEYS]))

    def _provider(self, name: str) -> acp.Provider:
        api_type, own = _KNOWN[name]
        if name in self._routes:
            route = self._routes[name]
            current = acp.ProviderConfig(route.api_type, route.base_url) if route is not None else None
        else:
            address = environment_address(name)
            usable = address is not None or keys.find(KEYS[name]) is not None
            current = acp.ProviderConfig(api_type, _without_login(address or own)) if usable else None
        return acp.Provider(name, [api_type], False, current)

    def _set(self, params: acp.SetProvider, request: Request) -> dict[str, object]:
        from cantrip_acp.recipes.build.providers import make_route

        name = params.provider_id
        if name not in KEYS:
            raise invalid_params(f"unknown provider {name[:100]!r}; known: {', '.join(KEYS)}", "providerId")
        if params.api_type != _KNOWN[name][0]:
            raise invalid_params(f"{name} supports {_KNOWN[name][0]}, not {params.api_type[:100]!r}", "apiType")
        try:
            self._routes[name] = make_route(params.api_type, params.base_url, params.headers or {})
        except DefinitionError as problem:
            raise invalid_params(str(problem), problem.where or "baseUrl") from None
        return {}

    def _disable(self, params: acp.DisableProvider, request: Request) -> dict[str, object]:
        # A provider that does not exist is as good as disabled.
        if params.provider_id in KEYS:
            self._routes[params.provider_id] = None
        return {}


def _without_login(address: str) -> str:
    """An address without user name, password and query."""
    from urllib.parse import urlsplit

    parts = urlsplit(address)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"
