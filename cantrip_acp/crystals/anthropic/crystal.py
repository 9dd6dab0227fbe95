"""Anthropic crystal: queries Claude models through Anthropic's SDK (``anthropic``), which is imported at the first query.

`anthropic.request` builds the requests, and `anthropic.response` parses the responses. This module has the client, its
errors and the closing of connections.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import anyio
import msgspec

from cantrip_acp.crystals import provider_errors
from cantrip_acp.crystals.anthropic.messages import FAMILY, tools_of, with_cache_points
from cantrip_acp.crystals.anthropic.request import check, request
from cantrip_acp.crystals.anthropic.response import InvalidEvent, ResponseReader, events_of
from cantrip_acp.crystals.catalog.types import priced
from cantrip_acp.crystals.catalog.unsupported_params import (
    EffortFallback,
    ForcedCalls,
    RefusedReplay,
    drop_parameters,
    unsupported_parameter,
)
from cantrip_acp.crystals.contract import Emit, Meter, Query, Response, tool_mode
from cantrip_acp.crystals.endpoint import Endpoint, EndpointCrystal, check_window
from cantrip_acp.crystals.event_stream import begins_with_json
from cantrip_acp.crystals.http_clients import TAIL, ClientPerLoop, response_hook, tls_context
from cantrip_acp.crystals.openai.tool_names import original_names
from cantrip_acp.crystals.refused_media import named_part
from cantrip_acp.crystals.tool_schemas import ToolSchemas
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import RequestParameters

_CLOSE_S = 2.0
_REST_S = 0.25
_END: Any = object()
_PAUSES = 8
_REQUEST_ID = "X-ACP-Model-Request-ID"
_BETA = "anthropic-beta"
_INTERLEAVED = "interleaved-thinking-2025-05-14"
"""The beta that lets models with a thinking budget think between tool calls. Other models do so without it."""

_SAMPLING = ("temperature", "top_p", "top_k")
"""Parameters that newer models refuse."""

_UNSIGNED = re.compile(
    r"signature\W.{0,60}(?:invalid|verif|valid)|invalid.{0,10}signature|thinking\W{0,3} blocks? .{0,80}(?:modified|original)",
    re.IGNORECASE | re.DOTALL,
)
"""Matches the error text for a thinking block that the server did not sign."""

_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": provider_errors.OVERLOADED,
}
"""Maps the type of an error inside a stream to an HTTP status, because the stream itself has status 200."""


class AnthropicCrystal(EndpointCrystal):
    """A Claude model at an endpoint. ``options``: ``effort``, ``thinking_budget`` (see `anthropic.request.thinking`)."""

    name = "anthropic"

    def __init__(self, endpoint: Endpoint) -> None:
        check(endpoint.options)
        super().__init__(endpoint)
        self._who = f"{self.name}:{self.model}"
        self._clients: ClientPerLoop[Any] = ClientPerLoop(self._make, _close)
        self._ready = False
        self._refused_thinking = RefusedReplay(FAMILY)
        self._effort = EffortFallback(self._who)
        self._choice = ForcedCalls(self._who, endpoint, endpoint.address())
        self._schemas = ToolSchemas(self._who)
        self._dropped: set[str] = set()
        """Names of parameters that the model refused."""

    def __repr__(self) -> str:
        return f"AnthropicCrystal({self.model})"

    def prepare(self) -> None:
        """Import the SDK and load the trusted certificates. Blocks."""
        import anthropic  # noqa: F401

        tls_context()
        self._ready = True

    async def _prepared(self) -> None:
        # The import takes a second or more, so it must not run in the event loop.
        try:
            await anyio.to_thread.run_sync(self.prepare, abandon_on_cancel=True)
        except Exception as error:
            words = provider_errors.error_text(f"{type(error).__name__}: {error}")
            raise CrystalError(f"{self._who}: Anthropic's SDK cannot be loaded: {words}", retryable=False) from error

    async def aclose(self) -> None:
        await self._clients.aclose()

    async def query(self, query: Query, emit: Emit) -> Response:
        check_window(self.endpoint, query)
        if not self._ready:
            await self._prepared()
        messages = self._refused_thinking.without(query.messages)
        try:
            return await self._answer(msgspec.structs.replace(query, messages=messages), emit)
        except CrystalError as error:
            unsigned = error.status == 400 and _UNSIGNED.search(str(error))
            if not unsigned or not self._refused_thinking.refuse(messages):
                raise
        messages = self._refused_thinking.without(messages)
        return await self._answer(msgspec.structs.replace(query, messages=messages), emit)

    async def _answer(self, query: Query, emit: Emit) -> Response:
        info = self.endpoint.info
        body = request(query, self.model, info, self.endpoint.options, forced=self._choice.taken, schemas=self._schemas)
        headers = self._headers(query, body)
        reading = ResponseReader()
        for _ in range(_PAUSES):
            sent = await self._ask(body, headers, reading, emit, query)
            if not reading.paused:
                break
            # The response was paused: send back the output so far, and let the model continue.
            said = reading.resume()
            messages = body["messages"]
            if messages[-1]["role"] == "assistant":
                messages = messages[:-1]
            body = {**body, "messages": [*messages, {"role": "assistant", "content": said}]}
        asked = RequestParameters(
            sent.get("temperature"),
            sent.get("top_p"),
            max_tokens=sent["max_tokens"],
            top_k=sent.get("top_k"),
            stop=tuple(sent.get("stop_sequences", ())),
            tool_mode=tool_mode(query),
            weights=self.endpoint.weights,
        )
        response = reading.response(original_names(query.tools), self.model, info.price, asked)
        notices = (*self._effort.notices(), *self._choice.notices(), *self._schemas.notices())
        return msgspec.structs.replace(response, notices=notices) if notices else response

    def _headers(self, query: Query, body: Mapping[str, Any]) -> dict[str, str]:
        headers = {_REQUEST_ID: query.request_id} if query.request_id else {}
        thought = body.get("thinking") or {}
        if self.endpoint.info.thinking == "budget" and thought.get("type") == "enabled" and "tools" in body:
            theirs = [v for k, v in self.endpoint.plain_headers().items() if k.lower() == _BETA]
            headers[_BETA] = ",".join([*theirs, _INTERLEAVED])
        return headers

    async def _ask(
        self, body: dict[str, Any], headers: Mapping[str, str], reading: ResponseReader, emit: Emit, query: Query
    ) -> dict[str, Any]:
        """Send one request until it is accepted, and return the accepted body.

        A sampling or thinking parameter that the model refuses is left out in all later requests. A refused effort is
        replaced.
        """
        while True:
            sent = self._effort.applied(drop_parameters(body, self._dropped))
            if _forces(sent) and not self._choice.taken:
                del sent["tool_choice"]
            try:
                await self._stream(sent, headers, reading, emit, query.meter)
                return sent
            except CrystalError as error:
                error.part = named_part(sent, error)
                if reading.events:
                    raise
                name = self._refused_parameter(error, sent)
                if name is not None:
                    self._dropped.add(name)
                elif self._choice.learn(error, sent=_forces(sent)):
                    pass
                elif self._schemas.learn(error, query.tools):
                    body = {**body, "tools": tools_of(query.tools, self._schemas)}
                elif not self._effort.learn(error, sent):
                    raise

    def _refused_parameter(self, error: CrystalError, sent: Mapping[str, Any]) -> str | None:
        name = unsupported_parameter(error, {key: sent[key] for key in _SAMPLING if key in sent})
        if name is not None or error.status not in (400, 422) or "thinking" not in sent:
            return name
        asked = {"effort", "thinking_budget"} & set(self.endpoint.options)
        return "thinking" if not asked and "thinking" in str(error) and not _UNSIGNED.search(str(error)) else None

    async def _stream(
        self, body: dict[str, Any], headers: Mapping[str, str], reading: ResponseReader, emit: Emit, meter: Meter
    ) -> None:
        before = reading.events
        with provider_errors.sending_request(meter):
            stream = await self._sdk(self._post({**with_cache_points(body), "stream": True}, headers))
        try:
            if await self._sdk(begins_with_json(stream.response), sent=True):
                # The server ignores ``stream`` and sends the whole message.
                await self._whole(stream.response, reading, emit)
            while not reading.done:
                event = await self._sdk(anext(stream, _END), sent=True)
                if event is _END:
                    break
                await reading.add_event(event, emit)
                if event.get("type") in ("message_start", "message_delta"):
                    # Report the counts now, because a query that is cancelled later is billed for them.
                    used = priced(reading.used(), self.endpoint.info.price)
                    meter.report(used, complete=reading.stopped is not None)
            else:
                # Read to the end of the body, so that the connection can serve the next query.
                with anyio.move_on_after(_REST_S), contextlib.suppress(CrystalError):
                    await self._sdk(anext(stream, _END), sent=True)
        except CrystalError as error:
            if error.status is not None and reading.events == before:
                # The error came before any content, for example because the service is overloaded.
                meter.refused()
            raise
        except InvalidEvent as problem:
            raise provider_errors.invalid_response(self._who, str(problem)) from None
        finally:
            # Also after a cancel: do not leave a connection open whose response nobody reads.
            with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_S):
                await stream.response.aclose()
        if not reading.done:
            if reading.events == before:
                raise self._no_event(stream.response)
            raise provider_errors.connection_error(self._who, EOFError("it ended without message_stop"), sent=True)

    async def _whole(self, response: Any, reading: ResponseReader, emit: Emit) -> None:
        """Read a message that was not streamed. Other JSON is left to `_no_event`."""

        async def read() -> bytes:
            return b"".join([piece async for piece in response.aiter_bytes()])

        try:
            message = json.loads(await self._sdk(read(), sent=True))
        except (ValueError, RecursionError):
            return
        if isinstance(message, dict) and isinstance(message.get("content"), list) and message["content"]:
            for event in events_of(message):
                await reading.add_event(event, emit)

    def _no_event(self, response: Any) -> CrystalError:
        """Make the error for a response with status 200 without events: an API error in the body, or other content."""
        body = response.extensions.get(TAIL, b"").decode("utf-8", "replace")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        error = found.get("error") if isinstance(found, dict) else None
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            kind = str(error.get("type"))
            return provider_errors.status_error(self._who, _STATUSES.get(kind, 500), error["message"], code=kind)
        kind = response.headers.get("content-type", "nothing")
        if not body.strip():
            return provider_errors.invalid_response(self._who, f"no event of the Messages API ({kind})")
        return provider_errors.unexpected_content(self._who, kind, body)

    async def _post(self, body: Any, headers: Mapping[str, str]) -> Any:
        """Send a request and return its stream of events as plain JSON. The SDK's own types are slower, and they drop
        unknown fields."""
        import anthropic

        client = await self._clients.get()

        def post(body: Any) -> Any:
            kind = anthropic.AsyncStream[object]
            options: Any = {"headers": headers}
            return client.post("/v1/messages", cast_to=object, body=body, options=options, stream=True, stream_cls=kind)

        try:
            return await post(body)
        except UnicodeEncodeError:
            # Half of a surrogate pair, which JSON in UTF-8 cannot hold. The output of a program may contain it.
            text = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
            return await post(json.loads(text))

    async def _sdk(self, step: Any, *, sent: bool = False) -> Any:
        """Await one call of the SDK, and turn its errors into `CrystalError`."""
        import anthropic
        import httpx2

        who, endpoint = self._who, self.endpoint
        try:
            return await step
        except CrystalError:
            raise
        except anthropic.APIStatusError as error:
            raise self._refused(error) from None
        except (anthropic.APITimeoutError, httpx2.TimeoutException) as error:
            connecting = isinstance(error.__cause__ or error, httpx2.ConnectTimeout | httpx2.PoolTimeout)
            raise provider_errors.timeout_error(who, endpoint.connect_s if connecting else endpoint.silence_s) from None
        except anthropic.APIConnectionError as error:
            if isinstance(error.__cause__, CrystalError):
                raise error.__cause__ from None
            raise provider_errors.connection_error(
                who, error.__cause__ or error, sent=sent, address=endpoint.address()
            ) from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            raise provider_errors.connection_error(who, error, sent=sent) from None
        except Exception as error:  # noqa: BLE001
            # The SDK parses while it reads. For other content than the API's JSON, it may raise any error of its parser.
            words = f"{type(error).__name__}: {error}"
            if sent:
                raise provider_errors.invalid_response(who, words) from None
            raise CrystalError(
                f"{who}: the request cannot be made: {provider_errors.error_text(words)}", retryable=False
            ) from None

    def _refused(self, error: Any) -> CrystalError:
        status = error.status_code
        kind = error.type if isinstance(error.type, str) else None
        if status < 300:
            status = _STATUSES.get(kind or "", 500)
        message = error.api_message if isinstance(error.api_message, str) else error.message
        code = kind
        if "spend_limit" in (error.error_code or "") or "credit balance is too low" in message:
            # Its status is 429 (or 400), but waiting does not help.
            code = "insufficient_quota"
        return provider_errors.status_error(
            self._who,
            status,
            message,
            headers=error.response.headers,
            code=code,
            refusal_hint=self.endpoint.refusal_hint,
            name_hint=self.endpoint.name_hint,
        )

    def _make(self) -> Any:
        import anthropic
        import httpx2

        endpoint = self.endpoint
        address = endpoint.address()
        headers: dict[str, Any] = {}
        if endpoint.base_url is not None:
            # The address comes from a recipe. Do not send headers there that the environment sets for Anthropic.
            for line in os.environ.get("ANTHROPIC_CUSTOM_HEADERS", "").split("\n"):
                if name := line.partition(":")[0].strip():
                    headers[name] = anthropic.Omit()
        for name, value in endpoint.plain_headers().items():
            headers[{"authorization": "Authorization", "user-agent": "User-Agent"}.get(name.lower(), name)] = value
        if endpoint.api_key:
            if address is not None and not any(name.lower() == "x-api-key" for name in headers):
                # Other servers with this API expect the key in the older header.
                headers["X-Api-Key"] = endpoint.api_key.reveal()
        elif "Authorization" not in headers:
            # The server needs no key. The SDK must not find another key and send it there.
            headers["Authorization"] = anthropic.Omit()
        silence, connect = endpoint.silence_s, endpoint.connect_s
        straight: dict[str, Any] = {}
        if provider_errors.is_loopback(address or ""):
            # Ignore HTTP_PROXY: a proxy cannot reach this machine's own ports.
            straight = {"trust_env": False, "transport": httpx2.AsyncHTTPTransport(verify=tls_context())}
        return anthropic.AsyncAnthropic(
            api_key=endpoint.api_key.reveal() if endpoint.api_key else "",
            base_url=address,
            default_headers=headers,
            max_retries=0,
            timeout=httpx2.Timeout(silence, connect=connect, pool=connect),
            # The loop already makes telemetry spans for a query.
            open_telemetry=False,
            http_client=anthropic.DefaultAsyncHttpxClient(
                # A redirect could send the conversation, and keys in headers, to another server.
                follow_redirects=False,
                verify=tls_context(),
                event_hooks={"response": [response_hook("anthropic")]},
                **straight,
            ),
        )


def _forces(sent: Mapping[str, Any]) -> bool:
    return (sent.get("tool_choice") or {}).get("type") == "any"


async def _close(client: Any) -> None:
    await client.close()
