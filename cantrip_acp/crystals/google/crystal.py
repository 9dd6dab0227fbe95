"""Google crystal: queries Gemini models through Google's SDK (``google-genai``), which is imported at the first query.

`google.messages` renders the body. The SDK sends it unchanged (``extra_body``), so signatures and arguments stay the same
byte for byte. The key is sent in a header. We use our own HTTP client: it follows no redirects (the SDK's client would
send the key to the new address), has our time-outs, and closes the response as soon as a query is cancelled.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import re
import warnings
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import anyio
import msgspec

from cantrip_acp.crystals import provider_errors
from cantrip_acp.crystals.catalog.unsupported_params import ForcedCalls
from cantrip_acp.crystals.contract import Emit, Query, Response, tool_mode
from cantrip_acp.crystals.endpoint import Endpoint, EndpointCrystal, check_window
from cantrip_acp.crystals.google.messages import body_of, signatures
from cantrip_acp.crystals.google.request import check, drop_refused_parameter
from cantrip_acp.crystals.google.response import ResponseReader
from cantrip_acp.crystals.http_clients import TAIL, ClientPerLoop, response_hook, tls_context
from cantrip_acp.crystals.openai.tool_names import original_names
from cantrip_acp.crystals.tool_schemas import ToolSchemas
from cantrip_acp.files.installation import install_command
from cantrip_acp.types.errors import CrystalError, DefinitionError
from cantrip_acp.types.messages import RequestParameters

BASE_URL = "https://generativelanguage.googleapis.com"
API_VERSION = "v1beta"
NO_KEY = "none"
"""Used as the key for a server that needs none. Without any key, the SDK would look for one in the environment."""

_FINISH_MESSAGE = re.compile(rb'"finishMessage"\s*:\s*("(?:[^"\\]|\\.)*")')
_CLOSE_S = 2.0
_LESSONS = 6
"""The most requests that one query may use to find out which parameters a model supports."""
_SIGNATURE = re.compile(r"thought[ _]?signature", re.IGNORECASE)
_REQUEST_ID = "X-ACP-Model-Request-ID"
_VERSION = re.compile(r"^(.*?)/(v\d+(?:alpha|beta)?\d*)/?$")
_PLACE = [{"role": "user", "parts": [{"text": "-"}]}]
"""A placeholder, because the SDK requires contents. The contents of the body replace it."""

_responses: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar("_responses", default=None)
"""The HTTP responses of the running query."""


@dataclass(frozen=True, slots=True)
class _Client:
    sdk: Any
    http: Any


class GoogleCrystal(EndpointCrystal):
    """A Gemini model at an endpoint. ``options``: ``effort``, ``thinking_budget`` (see `google.request`)."""

    name = "google"

    def __init__(self, endpoint: Endpoint) -> None:
        check(endpoint.options)
        if not _sdk_installed():
            raise DefinitionError(
                "the provider google needs google-genai, not installed here; install it with: "
                + install_command("google")
            )
        super().__init__(endpoint)
        self._who = f"{self.name} ({self.model})"
        self._accepted: dict[str, dict[str, Any]] = {}
        """Maps a ``generationConfig`` that the model refused (its repr) to the next one to try."""
        self._refused_signatures: set[str] = set()
        self._choice = ForcedCalls(self._who, endpoint, endpoint.address())
        self._schemas = ToolSchemas(self._who)
        self._clients: ClientPerLoop[_Client] = ClientPerLoop(self._make, _close)

    def __repr__(self) -> str:
        return f"GoogleCrystal({self.model})"

    def prepare(self) -> None:
        """Import the SDK and build its pydantic models, which is slow. Blocks."""
        from google.genai import types

        # Hide the SDK's warnings about new values of the API.
        warnings.filterwarnings("ignore", message=".* is not a valid", module=r"google\.genai")
        types.GenerateContentConfig(http_options=types.HttpOptions(headers={}))
        types.GenerateContentResponse.model_validate({})

    async def aclose(self) -> None:
        await self._clients.aclose()

    async def query(self, query: Query, emit: Emit) -> Response:
        check_window(self.endpoint, query)
        notices: tuple[str, ...] = ()
        known = {call.id for message in query.messages for call in message.tool_calls}
        for _ in range(_LESSONS):
            body = body_of(
                query,
                self.model,
                self.endpoint.info,
                self.endpoint.options,
                self._refused_signatures,
                forced=self._choice.taken,
                schemas=self._schemas,
            )
            asked = body.get("generationConfig", {})
            while (taken := self._accepted.get(repr(asked))) is not None:
                body["generationConfig"] = asked = taken
            reading = ResponseReader(
                self._who,
                self.model,
                known,
                original_names(query.tools),
                emit,
                query.meter,
                self.endpoint.info.price,
            )
            try:
                query.meter.sent()
                await self._read(body, query.request_id, reading)
                break
            except CrystalError as error:
                if not reading.begun and not provider_errors.may_be_billed(error):
                    query.meter.refused()
                if reading.begun:
                    raise
                if error.status == 400 and _SIGNATURE.search(str(error)) and (signed := signatures(body)):
                    # The signature is too old, or belongs to another project's key. Send such messages as plain text and calls.
                    self._refused_signatures |= signed
                    continue
                if self._choice.learn(error, sent=query.tool_choice == "required" and bool(query.tools)):
                    continue
                if self._schemas.learn(error, query.tools):
                    continue
                less = drop_refused_parameter(self._who, asked, error)
                if less is None:
                    raise
                # Remember it for later queries. Otherwise each query would be refused once.
                self._accepted[repr(asked)], notice = less
                notices += (notice,) if notice else ()
        else:
            raise CrystalError(f"{self._who} refuses the parameters of the request in every form", retryable=False)
        sent = body.get("generationConfig", {})
        asked = RequestParameters(
            sent.get("temperature"),
            sent.get("topP"),
            sent.get("seed"),
            sent.get("maxOutputTokens"),
            top_k=sent.get("topK"),
            stop=tuple(sent.get("stopSequences", ())),
            tool_mode=tool_mode(query),
            weights=self.endpoint.weights,
        )
        notices = (*notices, *self._choice.notices(), *self._schemas.notices())
        return msgspec.structs.replace(reading.response(), request=asked, notices=notices)

    async def _read(self, body: dict[str, Any], request_id: str, reading: ResponseReader) -> None:
        """Send one request and process its whole stream."""
        responses: list[Any] = []
        token = _responses.set(responses)
        try:
            async with self._errors_mapped(reading, responses):
                stream = await self._open(body, request_id)
                async for chunk in stream:
                    with _Reader(reading) as taking:
                        await taking.add(chunk)
                if responses and not reading.ended:
                    self._check_error(responses[-1])
                if responses:
                    reading.explain(_finish_message(responses[-1]))
        finally:
            _responses.reset(token)
            # The SDK's generators may still wait for data, so close the connection itself.
            with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_S):
                for response in responses:
                    await response.aclose()

    async def _open(self, body: dict[str, Any], request_id: str) -> AsyncIterator[Any]:
        headers = {_REQUEST_ID: request_id} if request_id else {}
        config = {
            "http_options": {"headers": headers, "extra_body": body},
            # The SDK must neither call tools nor repeat requests. Our loop does both.
            "automatic_function_calling": {"disable": True},
            "automatic_continuation": False,
        }
        models = (await self._clients.get()).sdk.aio.models
        stream: AsyncIterator[Any] = await models.generate_content_stream(
            model=self.model, contents=_PLACE, config=config
        )
        return stream

    def _make(self) -> _Client:
        self.prepare()
        import httpx2
        from google.genai import Client

        endpoint = self.endpoint
        base, version = endpoint.address() or BASE_URL, API_VERSION
        if found := _VERSION.match(base):
            base, version = found[1], found[2]
        tls = tls_context()
        http = httpx2.AsyncClient(
            verify=tls,
            # Ignore HTTP_PROXY: a proxy cannot reach this machine's own ports.
            trust_env=not provider_errors.is_loopback(base),
            follow_redirects=False,
            event_hooks={"request": [self._set_timeouts], "response": [_noted]},
        )
        options: Any = {
            "base_url": base.rstrip("/") + "/",
            "api_version": version,
            "headers": endpoint.plain_headers(),
            "httpx_async_client": http,
            # It is never used, but it prevents that the SDK makes one and loads its own certificates.
            "httpx_client": httpx2.Client(verify=tls),
            # The SDK needs it for its web sockets, which are never used either.
            "async_client_args": {"ssl": tls},
        }
        key = endpoint.api_key.reveal() if endpoint.api_key else NO_KEY
        return _Client(Client(vertexai=False, api_key=key, http_options=options), http)

    async def _set_timeouts(self, request: Any) -> None:
        """Set our time-outs, because the SDK sets either none or one for the whole response."""
        endpoint = self.endpoint
        silence, connect = endpoint.silence_s, endpoint.connect_s
        request.extensions["timeout"] = {"connect": connect, "read": silence, "write": silence, "pool": connect}

    @contextlib.asynccontextmanager
    async def _errors_mapped(self, reading: ResponseReader, responses: list[Any]) -> AsyncIterator[None]:
        """Turn all errors of the SDK and its HTTP client into `CrystalError`."""
        import httpx2
        from google.genai import errors

        who = self._who
        try:
            yield
        except _Ours as ours:
            raise ours.error from None
        except CrystalError:
            raise
        except errors.APIError as error:
            raise self._refused(error) from None
        except httpx2.ConnectTimeout:
            raise provider_errors.timeout_error(who, self.endpoint.connect_s) from None
        except httpx2.TimeoutException:
            raise provider_errors.timeout_error(who, self.endpoint.silence_s) from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            raise provider_errors.connection_error(
                who, error, sent=reading.begun, address=self.endpoint.address()
            ) from None
        except Exception as error:  # noqa: BLE001
            # The SDK parses while it reads. For other content than Gemini's JSON, it may raise any error of its parser.
            status = responses[-1].status_code if responses else None
            if status is None:
                words = provider_errors.error_text(error)
                raise CrystalError(f"{who}: the request cannot be made: {words}", retryable=False) from None
            if status != 200:
                headers = responses[-1].headers
                raise provider_errors.status_error(who, status, "a body that cannot be read", headers=headers) from None
            kind = responses[-1].headers.get("content-type", "")
            if kind.partition(";")[0] != "text/event-stream":
                body = responses[-1].extensions.get(TAIL, b"").decode("utf-8", "replace")
                raise provider_errors.unexpected_content(who, kind, body) from None
            raise provider_errors.invalid_response(who, f"{type(error).__name__}: {error}") from None

    def _check_error(self, response: Any) -> None:
        """Raise the error inside a success response. Servers that imitate Google's API answer like this."""
        try:
            found = msgspec.json.decode(response.extensions.get(TAIL, b"").strip().removeprefix(b"data:"))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return
        error = found.get("error") if isinstance(found, dict) else None
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            code = error.get("code")
            status = code if isinstance(code, int) and 400 <= code <= 599 else 500
            raise provider_errors.status_error(self._who, status, error["message"])

    def _refused(self, error: Any) -> CrystalError:
        headers = dict(error.response.headers) if hasattr(error.response, "headers") else {}
        status = error.code if isinstance(error.code, int) and not isinstance(error.code, bool) else 500
        message = error.message if isinstance(error.message, str) else str(error.details)
        delay, spent = _quota(error.details)
        if delay is not None and provider_errors.retry_after(headers) is None:
            headers["retry-after"] = f"{delay:g}"
        code = "insufficient_quota" if spent else error.status if isinstance(error.status, str) else None
        return provider_errors.status_error(
            self._who,
            status,
            message,
            headers=headers,
            code=code,
            refusal_hint=self.endpoint.refusal_hint,
            name_hint=self.endpoint.name_hint,
        )


class _Ours(Exception):
    """Wraps an error of our own code, so that it does not look like an error of the SDK."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(str(error))


class _Reader:
    """Wraps errors of our own code in `_Ours` while a chunk is processed."""

    __slots__ = ("_reading",)

    def __init__(self, reading: ResponseReader) -> None:
        self._reading = reading

    def __enter__(self) -> ResponseReader:
        return self._reading

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            raise _Ours(error) from error


async def _close(client: _Client) -> None:
    await client.http.aclose()
    client.sdk.close()


_limited = response_hook("google")


async def _noted(response: Any) -> None:
    """Register the response for the running query, and limit its size."""
    responses = _responses.get()
    if responses is not None:
        responses.append(response)
    await _limited(response)


def _sdk_installed() -> bool:
    # Asking for google.genai itself would import the package google.
    found = find_spec("google")
    places = (found.submodule_search_locations if found is not None else None) or ()
    return any(os.path.isdir(os.path.join(place, "genai")) for place in places)


def _finish_message(response: Any) -> str | None:
    """Read ``finishMessage`` (the reason of the end, in words) from the end of the stream, because the SDK drops it."""
    found = _FINISH_MESSAGE.findall(response.extensions.get(TAIL, b""))
    try:
        return str(msgspec.json.decode(found[-1])) if found else None
    except (msgspec.DecodeError, UnicodeError):
        return None


def _quota(details: Any) -> tuple[float | None, bool]:
    """Read from an error's details the seconds to wait (``RetryInfo``), and whether a daily quota is used up
    (``QuotaFailure``)."""
    delay: float | None = None
    spent = False
    inner = details.get("error", details) if isinstance(details, Mapping) else {}
    found = inner.get("details") if isinstance(inner, Mapping) else None
    for each in found if isinstance(found, list) else ():
        if not isinstance(each, Mapping):
            continue
        kind = str(each.get("@type", ""))
        if kind.endswith("RetryInfo"):
            with contextlib.suppress(ValueError):
                delay = float(str(each.get("retryDelay", "")).removesuffix("s"))
        elif kind.endswith("QuotaFailure"):
            violations = each.get("violations")
            spent = isinstance(violations, list) and "PerDay" in str(violations)
    return delay, spent
