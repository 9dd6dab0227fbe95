"""OpenAI client: sends requests through the official ``openai`` SDK, to OpenAI and to all servers with its protocol.

`chat_stream` and `responses_api` parse the events as plain JSON, because many servers omit fields that the SDK's types
require.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio

from cantrip_acp.crystals import provider_errors
from cantrip_acp.crystals.contract import Query
from cantrip_acp.crystals.endpoint import Endpoint, environment_address
from cantrip_acp.crystals.event_stream import JSON, beginning
from cantrip_acp.crystals.http_clients import ClientPerLoop, response_hook, tls_context
from cantrip_acp.types.errors import CrystalError, MalformedResponse

if TYPE_CHECKING:
    import openai

OWN_ADDRESS = "https://api.openai.com/v1"
REQUEST_ID = "X-ACP-Model-Request-ID"

_CLOSE_S = 2.0
"""The most seconds to wait for a stream to close. After that, the garbage collector closes its connection."""
_AFTERWARDS_S = 5.0
"""The most seconds to wait for the end of a stream after its answer is complete."""
MAX_BYTES = 256_000_000
"""The most bytes of an answer, including the protocol. No real answer has more."""


class OpenAISdk:
    """Sends requests to one endpoint. ``base_url`` is the whole address. The endpoint's own headers override ``headers``.

    ``socket`` is the Unix socket of a server that has no other address.
    """

    def __init__(
        self, endpoint: Endpoint, base_url: str, headers: Mapping[str, str] | None = None, *, socket: str | None = None
    ) -> None:
        self.who = f"{endpoint.provider}:{endpoint.model}"
        self.base_url = base_url
        self._endpoint = endpoint
        self._headers = dict(headers or {})
        self._socket = socket
        self._clients: ClientPerLoop[openai.AsyncOpenAI] = ClientPerLoop(self._client, _close)

    def prepare(self) -> None:
        """Import the SDK, which takes most of a second. Blocks."""
        import openai
        import openai._streaming  # noqa: F401

    async def aclose(self) -> None:
        await self._clients.aclose()

    @asynccontextmanager
    async def events(self, path: str, body: Mapping[str, Any], query: Query) -> AsyncIterator[Events]:
        """Send ``body`` and yield the events of the answer. The HTTP stream is closed at the end. Raises `CrystalError`."""
        import openai

        client = await self._clients.get()
        headers: dict[str, Any] = {REQUEST_ID: query.request_id} if query.request_id else {}
        if not self._authorized():
            headers["Authorization"] = openai.Omit()
        # A redirect could send the request's secret headers to another server.
        options: Any = {"headers": headers, "follow_redirects": False}
        with provider_errors.sending_request(query.meter):
            try:
                try:
                    stream = await self._post(client, path, dict(body), options)
                except UnicodeEncodeError:
                    # Half of a surrogate pair, which JSON in UTF-8 cannot hold. The output of a program may contain it.
                    text = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
                    stream = await self._post(client, path, json.loads(text), options)
            except openai.OpenAIError as error:
                raise self.failure(error) from None
            except (ValueError, TypeError, OSError, RuntimeError) as error:
                # The HTTP library raises these for an invalid address or header.
                raise CrystalError(
                    f"{self.who}: the request cannot be made: {provider_errors.error_text(error)}"
                ) from None
        try:
            yield Events(self, stream)
        finally:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await stream.close()

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request that is not a query, and return its JSON: a GET if there is no ``body``.

        Raises `CrystalError`.
        """
        import openai

        client = await self._clients.get()

        async def send(retries: int) -> Any:
            options: Any = {"follow_redirects": False, "max_retries": retries}
            if body is None:
                return await client.get(path, cast_to=object, options=options)
            return await client.post(path, cast_to=object, body=dict(body), options=options)

        try:
            try:
                return await send(0)
            except (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError):
                # A server may close an idle connection at the moment in which it is used again. Such a request changes
                # nothing, so send it again: at once, and then as the SDK does it, which waits half a second first.
                return await send(2)
        except openai.OpenAIError as error:
            raise self.failure(error) from None

    async def _post(self, client: openai.AsyncOpenAI, path: str, body: Any, options: Any) -> openai.AsyncStream[object]:
        import openai

        return await client.post(
            path, cast_to=object, body=body, options=options, stream=True, stream_cls=openai.AsyncStream[object]
        )

    def _authorized(self) -> bool:
        """Whether the request has an Authorization header. A local server may need none."""
        names = {name.lower() for name in (*self._endpoint.headers, *self._headers)}
        return bool(self._endpoint.api_key) or "authorization" in names

    def failure(self, error: BaseException, *, sent: bool = False) -> CrystalError:
        """Turn an error of the SDK into a `CrystalError`. ``sent``: part of the answer was already received."""
        import openai

        if isinstance(error, openai.APIStatusError):
            message, code = explanation(error.body)
            return provider_errors.status_error(
                self.who,
                error.status_code,
                message or provider_errors.error_text(error),
                headers=error.response.headers,
                code=code,
                refusal_hint=self._endpoint.refusal_hint,
                name_hint=self._endpoint.name_hint,
            )
        if isinstance(error, openai.APITimeoutError):
            connecting = type(error.__cause__).__name__ == "ConnectTimeout"
            return provider_errors.timeout_error(
                self.who, self._endpoint.connect_s if connecting else self._endpoint.silence_s
            )
        if isinstance(error, openai.APIConnectionError):
            cause = error.__cause__ or error
            if isinstance(cause, CrystalError):
                return cause
            if not sent and type(cause).__name__ == "ConnectError":
                local = provider_errors.is_loopback(self.base_url)
                hint = "; start the server there, or change the address" if local else ""
                words = provider_errors.error_text(cause) or "refused"
                return CrystalError(
                    f"{self.who}: no connection to {public_address(self.base_url)}: {words}{hint}",
                    # Waiting does not start a server on this machine.
                    retryable=not local,
                )
            return provider_errors.connection_error(self.who, cause, sent=sent)
        if isinstance(error, openai.APIError):
            return self.refused_midway(error.body, str(error.message))
        # While a stream is read, versions of the SDK before 3 do not wrap errors of the HTTP library.
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "TimeoutException" in kinds:
            return provider_errors.timeout_error(self.who, self._endpoint.silence_s)
        if "TransportError" in kinds:
            return provider_errors.connection_error(self.who, error, sent=sent)
        return provider_errors.invalid_response(self.who, f"{type(error).__name__}: {error}")

    def refused_midway(self, error: Any, message: str = "") -> CrystalError:
        """Make the error for an error inside a stream or a 200 response. Its status is derived from its text."""
        words, code = explanation(error)
        kind = error.get("type") if isinstance(error, Mapping) else None
        return provider_errors.status_error(
            self.who, status_of(code, kind, words or message), words or message or "an error without a text", code=code
        )

    def _client(self) -> openai.AsyncOpenAI:
        import openai

        endpoint = self._endpoint
        # OpenAI's settings in the environment count for OpenAI's own addresses and for the address in the environment, but
        # not for an address in a recipe.
        own = is_own(self.base_url) or (endpoint.provider == "openai" and endpoint.base_url is None)
        headers: dict[str, Any] = {**self._headers}
        _update(headers, endpoint.plain_headers())
        if not own:
            # Headers that the environment sets for OpenAI must not go to another server.
            for line in os.environ.get("OPENAI_CUSTOM_HEADERS", "").split("\n"):
                name = line.partition(":")[0].strip()
                if name and name.lower() not in {n.lower() for n in headers}:
                    headers[name] = openai.Omit()
        key = endpoint.api_key.reveal() if endpoint.api_key else ""
        client = openai.AsyncOpenAI(
            # Never None: the SDK would use OPENAI_API_KEY, and send it to this server.
            api_key=key or "none",
            organization=None if own else "",
            project=None if own else "",
            base_url=self.base_url,
            default_headers=headers,
            max_retries=0,
            timeout=openai.Timeout(endpoint.silence_s, connect=endpoint.connect_s),
            http_client=_http(endpoint, self.base_url, self._socket),
        )
        if not own:
            client.organization = client.project = None
        return client


class Events:
    """Iterates over the events of an answer as decoded JSON. Raises `CrystalError` if the stream is cut off or cannot be
    parsed."""

    def __init__(self, sdk: OpenAISdk, stream: openai.AsyncStream[object]) -> None:
        self._sdk = sdk
        self._stream = stream
        self._any = False
        self._until: float | None = None

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> dict[str, Any]:
        while True:
            try:
                event = await self._stream.__anext__()
            except (StopAsyncIteration, CrystalError):
                raise
            except Exception as error:  # noqa: BLE001 - any error while reading the stream is the server's failure
                raise self._sdk.failure(error, sent=self._any) from None
            self._any = True
            if self._stream.response.num_bytes_downloaded > MAX_BYTES:
                # This also limits data that is not shown (arguments, comments, empty pieces).
                raise MalformedResponse(
                    f"{self._sdk.who}: the answer was stopped, because it has more than {MAX_BYTES:,} bytes"
                )
            if isinstance(event, dict):
                return event
            if event is not None:
                raise provider_errors.invalid_response(
                    self._sdk.who, f"an event that is not an object: {event!r}"[:200]
                )

    async def afterwards(self) -> dict[str, Any] | None:
        """Read the next event after the end of an answer (for example its usage). None if no event comes soon.

        Reading to the end keeps the connection usable for the next query. If this fails, the answer is still complete.
        """
        if self._until is None:
            self._until = anyio.current_time() + _AFTERWARDS_S
        with anyio.CancelScope(deadline=self._until):
            try:
                return await self.__anext__()
            except (StopAsyncIteration, CrystalError):
                return None
        return None

    async def whole(self) -> Any:
        """Return the body if the server sent one JSON value instead of a stream; None if it streams."""
        response = self._stream.response
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            start = await beginning(response)
        except CrystalError:
            raise
        except Exception as error:  # noqa: BLE001 - any error while reading the body is the server's failure
            raise self._sdk.failure(error, sent=True) from None
        if start.startswith((b"data:", b"event:")):
            return None
        if not start.startswith(JSON) and kind not in ("application/json", "text/html", "application/problem+json"):
            return None
        body = bytearray()
        try:
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MAX_BYTES:
                    break
        except Exception as error:  # noqa: BLE001 - any error while reading the body is the server's failure
            import openai

            wrapped = openai.APIConnectionError(request=response.request)
            wrapped.__cause__ = error
            raise self._sdk.failure(wrapped, sent=True) from None
        text = body.decode("utf-8", "replace")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise provider_errors.unexpected_content(self._sdk.who, kind, text) from None
        if isinstance(value, dict) and value.get("error") and not value.get("choices"):
            raise self._sdk.refused_midway(value["error"])
        return value


def address(endpoint: Endpoint) -> str:
    """The address for provider ``openai``: the endpoint's base_url, else ``$OPENAI_BASE_URL``, else OpenAI's own address."""
    return endpoint.base_url or environment_address("openai") or OWN_ADDRESS


def is_own(url: str) -> bool:
    """Whether an address is one of OpenAI's, including the regional ones."""
    host = urlsplit(url).hostname or ""
    return host == "api.openai.com" or host.endswith(".api.openai.com")


def explanation(body: Any) -> tuple[str, str | None]:
    """Read the message and the code from an error body in any of the usual forms."""
    if isinstance(body, str):
        return body, None
    if isinstance(body, list) and len(body) == 1:
        # Gemini's address for this protocol.
        return explanation(body[0])
    if not isinstance(body, Mapping):
        return "", None
    inner = body.get("error")
    if isinstance(inner, Mapping):
        return explanation(inner)
    message = body.get("message") or body.get("detail") or inner or ""
    code = body.get("code") or body.get("type")
    metadata = body.get("metadata")
    if isinstance(metadata, Mapping) and metadata.get("raw"):
        # OpenRouter's message is only "Provider returned error". The cause is in the metadata.
        name = metadata.get("provider_name")
        message = f"{message}{f' ({name})' if name else ''}: {metadata['raw']}"
    if not isinstance(message, str):
        message = json.dumps(message, default=str)
    return message, str(code) if code is not None else None


def status_of(code: str | None, kind: Any, message: str) -> int:
    """Choose the HTTP status for an error inside a stream, from its code, type and text."""
    if code is not None and code.isdigit() and 400 <= int(code) <= 599:
        return int(code)
    words = f"{code or ''} {kind or ''}".lower()
    for status, pattern in _KINDS:
        if pattern.search(words):
            return status
    # Without a known code, check the text for a full context window. Any other error counts as a server error.
    return 400 if "context" in message.lower() and "length" in message.lower() else 500


_KINDS = tuple(
    (status, re.compile(pattern))
    for status, pattern in (
        (429, "rate_limit|insufficient_quota|too_many"),
        (529, "overloaded"),
        (401, "authentication|invalid_api_key"),
        (403, "permission"),
        (404, "not_found"),
        (400, "context_length|context_size|invalid_request|invalid_prompt|invalid_image|bad_request|_policy|image_"),
    )
)


def public_address(url: str) -> str:
    """Return the address without parts that may be secret (user, password, query)."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}".rstrip("/")


def _http(endpoint: Endpoint, url: str, socket: str | None) -> Any:
    """Make an HTTP client that limits the size of responses. It connects to the Unix socket ``socket``, if there is one.

    For a server on this machine it ignores HTTP_PROXY, because a proxy cannot reach this machine's own ports.
    """
    import ssl

    import openai

    if url.startswith("http:") and provider_errors.is_loopback(url):
        # Plain HTTP needs no certificates, and loading them is slow.
        options: dict[str, Any] = {"trust_env": False, "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}
        if socket is not None:
            # The SDK's HTTP library: httpx or its successor.
            library = importlib.import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])
            options["transport"] = library.AsyncHTTPTransport(uds=socket, verify=options["verify"])
    else:
        options = {"verify": tls_context()}
    return openai.DefaultAsyncHttpxClient(
        timeout=openai.Timeout(endpoint.silence_s, connect=endpoint.connect_s),
        follow_redirects=False,
        event_hooks={"response": [response_hook("openai")]},
        **options,
    )


def _update(headers: dict[str, Any], more: Mapping[str, str]) -> None:
    """Override ``headers`` with ``more``. The case of header names does not matter."""
    for name, value in more.items():
        for old in [n for n in headers if n.lower() == name.lower()]:
            del headers[old]
        headers[name] = value


async def _close(client: openai.AsyncOpenAI) -> None:
    await client.close()
