"""Discovery: finds the model servers that run on this machine (Ollama, LM Studio, vLLM, llama.cpp) and their models.

It requests the list of models from each server of `presets.LOCAL`, at its usual address or the one in the environment,
over plain HTTP without an SDK. Then it requests the context windows and abilities, from a different path for each kind of
server: Ollama ``/api/show``, LM Studio ``/api/v0/models``, llama.cpp ``/props``. vLLM has them in its list.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct

from cantrip_acp.crystals import keys
from cantrip_acp.crystals.endpoint import environment_address
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.local.presets import LOCAL, PRESETS, ollama_address

if TYPE_CHECKING:
    import urllib.request

TIMEOUT_S = 1.0
"""Seconds for one request to a server on this machine."""
LIST_S = 5.0
"""Seconds for the list of models of a server anywhere."""
FRESH_S = 30.0
"""Seconds for which a result is reused."""
MOST_MODELS = 50
"""The most models of one server whose details are requested."""
_MAX_BYTES = 4_000_000
_HERE = ("localhost", "127.0.0.1", "::1")


class ServedModel(Struct, frozen=True):
    """A model that a server offers. A field is None if the server does not report it. ``context_window`` is in tokens."""

    name: str
    context_window: int | None = None
    tools: bool | None = None
    images: bool | None = None
    reasoning: bool | None = None
    loaded: bool | None = None


class LocalServer(Struct, frozen=True):
    """A server that answered, with its chat models. Loaded models come first."""

    provider: str
    base_url: str
    models: tuple[ServedModel, ...]


class NoServer(Exception):
    """No model server answers at this address. The text says why."""


def list_models(base_url: str, secret: Secret | None, *, timeout: float = LIST_S) -> tuple[ServedModel, ...]:
    """Request the models that any server lists at its ``/models`` (OpenAI's API). Raises `NoServer` with the reason."""
    get = _Getter(secret, timeout, here=(urlsplit(base_url).hostname or "") in _HERE)
    return tuple(model for model in _as_listed(get, "", _entries(get, base_url)) if model is not None)


def address(provider: str) -> str:
    """The address of a local server: from a variable such as ``OLLAMA_HOST`` or ``VLLM_BASE_URL``, else its usual port."""
    named = environment_address(provider)
    if provider == "ollama":
        named = ollama_address(keys.setting("OLLAMA_HOST"))
    return named or PRESETS[provider].base_url


def ask(provider: str, *, timeout: float = TIMEOUT_S) -> LocalServer:
    """Request the models of one server. Blocks for a few times ``timeout`` seconds at most. Raises `NoServer` with the
    reason."""
    base_url = address(provider)
    root = base_url.rstrip("/").removesuffix("/v1")
    found = keys.find((PRESETS[provider].key,), keyring=False)
    get = _Getter(found.secret if found is not None else None, timeout)
    describe = _DESCRIBERS.get(provider, _as_listed)
    models = [model for model in describe(get, root, _entries(get, base_url)) if model is not None]
    models.sort(key=lambda model: not model.loaded)
    return LocalServer(provider, base_url, tuple(models))


def _entries(get: _Getter, base_url: str) -> list[dict[str, Any]]:
    listed = get(f"{base_url.rstrip('/')}/models")
    entries = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(entries, list):
        raise NoServer("the server there does not list models")
    return [entry for entry in entries if isinstance(entry, dict) and _is_name(entry.get("id"))]


_lock = Lock()
_cache: tuple[float, tuple[str, ...], tuple[LocalServer, ...]] | None = None


def find_running(providers: Sequence[str] = LOCAL, *, timeout: float = TIMEOUT_S) -> tuple[LocalServer, ...]:
    """Find the servers that run now and have a model. They are requested in parallel, and the result is cached for
    `FRESH_S` seconds. Never raises."""
    global _cache
    wanted = tuple(f"{provider} {address(provider)}" for provider in providers)
    with _lock:
        if _cache is not None and _cache[1] == wanted and time.monotonic() - _cache[0] < FRESH_S:
            return _cache[2]

    def one(provider: str) -> LocalServer | None:
        try:
            return ask(provider, timeout=timeout)
        except NoServer:
            return None

    with ThreadPoolExecutor(max_workers=len(providers)) as pool:
        found = tuple(server for server in pool.map(one, providers) if server is not None and server.models)
    with _lock:
        _cache = (time.monotonic(), wanted, found)
    return found


def last_found() -> tuple[LocalServer, ...]:
    """The last result of `find_running`, without a request; empty if it was not called yet."""
    with _lock:
        return _cache[2] if _cache is not None else ()


# --- one server ---------------------------------------------------------------------------------------------------------


@functools.cache
def _opener(here: bool) -> urllib.request.OpenerDirector:
    """Make an opener. For servers of this machine (``here``) it uses no proxy, because a proxy cannot reach this machine's
    own ports. It never follows redirects, because they could lead to another machine."""
    # Imported late: with all that it imports, it is a tenth of the agent's start.
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any, **__: Any) -> None:
            return None

    return urllib.request.build_opener(urllib.request.ProxyHandler({} if here else None), NoRedirects)


class _Getter:
    """Gets JSON from a server, with a key if there is one. ``here``: on this machine. Raises `NoServer`."""

    def __init__(self, secret: Secret | None, timeout: float, *, here: bool = True) -> None:
        self._headers = {"accept": "application/json", "user-agent": "cantrip-acp"}
        if secret is not None:
            self._headers["authorization"] = f"Bearer {secret.reveal()}"
        self._timeout = timeout
        self._here = here

    def __call__(self, url: str, body: Mapping[str, Any] | None = None) -> Any:
        import urllib.error
        import urllib.request

        data = json.dumps(body).encode() if body is not None else None
        headers = self._headers | ({"content-type": "application/json"} if data is not None else {})
        try:
            with _opener(self._here).open(urllib.request.Request(url, data, headers), timeout=self._timeout) as reply:
                return json.loads(reply.read(_MAX_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                raise NoServer(f"it answers {error.code}") from None
        except (OSError, ValueError, RecursionError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            words = reason.strerror if isinstance(reason, OSError) else None
            raise NoServer(words or str(reason) or type(reason).__name__) from None

    def maybe(self, url: str, body: Mapping[str, Any] | None = None) -> Any:
        """Get JSON as `_Getter` does, but return None if there is no answer."""
        try:
            return self(url, body)
        except NoServer:
            return None


def _is_name(value: Any) -> bool:
    """Whether the value is a printable text that can be the name of a model."""
    return isinstance(value, str) and 0 < len(value) <= 300 and value.isprintable() and value == value.strip()


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _as_listed(get: _Getter, root: str, entries: list[dict[str, Any]]) -> Iterable[ServedModel | None]:
    """Describe models of vLLM and SGLang. Their list has the windows."""
    return [ServedModel(entry["id"], _number(entry.get("max_model_len")), loaded=True) for entry in entries]


def _of_llamacpp(get: _Getter, root: str, entries: list[dict[str, Any]]) -> Iterable[ServedModel | None]:
    """Describe the one model of llama.cpp, from ``/props``."""
    props = get.maybe(f"{root}/props")
    props = props if isinstance(props, dict) else {}
    settings, modalities = props.get("default_generation_settings"), props.get("modalities")
    caps = props.get("chat_template_caps")
    window = _number(settings.get("n_ctx")) if isinstance(settings, dict) else None
    tools = caps.get("supports_tools") if isinstance(caps, dict) else None
    images = modalities.get("vision") if isinstance(modalities, dict) else None
    return [
        ServedModel(
            entry["id"],
            window,
            tools if isinstance(tools, bool) else None,
            images if isinstance(images, bool) else None,
            loaded=True,
        )
        for entry in entries
    ]


def _of_lmstudio(get: _Getter, root: str, entries: list[dict[str, Any]]) -> Iterable[ServedModel | None]:
    """Describe models of LM Studio, from its own list with kinds, windows and the loaded state."""
    listed = get.maybe(f"{root}/api/v0/models")
    data = listed.get("data") if isinstance(listed, dict) else None
    about = {e["id"]: e for e in data if isinstance(e, dict) and "id" in e} if isinstance(data, list) else {}
    for entry in entries:
        more = about.get(entry["id"], {})
        kind = more.get("type")
        if kind == "embeddings":
            continue
        able = more.get("capabilities")
        yield ServedModel(
            entry["id"],
            _number(more.get("loaded_context_length")) or _number(more.get("max_context_length")),
            "tool_use" in able if isinstance(able, list) else None,
            kind == "vlm" if kind is not None else None,
            loaded=more["state"] == "loaded" if "state" in more else None,
        )


def _of_ollama(get: _Getter, root: str, entries: list[dict[str, Any]]) -> Iterable[ServedModel | None]:
    """Describe models of Ollama. It reports the abilities of each model, and the window of each loaded model."""
    listed = get.maybe(f"{root}/api/ps")
    find_running = listed.get("models") if isinstance(listed, dict) else None
    loaded = {m.get("name"): m for m in find_running if isinstance(m, dict)} if isinstance(find_running, list) else {}

    def one(entry: dict[str, Any]) -> ServedModel | None:
        name = entry["id"]
        shown = get.maybe(f"{root}/api/show", {"model": name})
        shown = shown if isinstance(shown, dict) else {}
        able = shown.get("capabilities")
        if isinstance(able, list) and "completion" not in able:
            return None

        def can(what: str) -> bool | None:
            return what in able if isinstance(able, list) else None

        # The window that the model was loaded with counts. The model's own window is only an upper limit.
        window = _number(loaded[name].get("context_length")) if name in loaded else None
        return ServedModel(name, window, can("tools"), can("vision"), can("thinking"), loaded=name in loaded)

    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(one, entries[:MOST_MODELS]))


_DESCRIBERS = {"ollama": _of_ollama, "lmstudio": _of_lmstudio, "llamacpp": _of_llamacpp}
