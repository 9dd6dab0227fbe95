"""The sampler's server: Chat Completions over HTTP on this machine's loopback, with token ids and log-probabilities.

It streams what vLLM streams with ``return_token_ids``: the ids of the prompt and of each piece, and the log-probability
of each token. So the crystal that queries it is the ordinary one. A conversation that continues keeps the tokens of its
earlier answers as they were sampled: their text is not tokenized again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec
import uvicorn

from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.local.crystal import LocalCrystal
from cantrip_acp.training.trainer.engine import Engine, Request

_MOST_BYTES = 10_000_000
_MOST_TOKENS = 512
"""Tokens of an answer where the query gives no limit."""
_REFUSED = ("tools", "top_p", "top_k", "min_p", "n")


class SamplerServer:
    """Serves one model. ``weights`` is the label of the present weights, which each answer carries."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.name = name
        self.weights = ""
        self._engine = engine
        self._token = secrets.token_urlsafe(24)
        self._known: dict[str, list[int]] = {}
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="off",
        )
        self._server = _Uvicorn(config)

    async def serve(self) -> None:
        """Serve until `stop` is called."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Accept no more requests, and let `serve` return."""
        self._server.should_exit = True

    def crystal(self) -> LocalCrystal:
        """A crystal that queries this server. The model writes its tool calls as text."""
        options = {"tools": "text", "logprobs": True}
        return LocalCrystal(Endpoint("local", self.name, self.url, Secret(self._token), options=options))

    def forget(self, weights: str) -> None:
        """Use new weights: forget earlier conversations, and label the answers."""
        self._known.clear()
        self.weights = weights

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        allowed = f"Bearer {self._token}".encode()
        if not any(name == b"authorization" and secrets.compare_digest(v, allowed) for name, v in scope["headers"]):
            await _send_json(send, 401, _error("the key is missing or wrong"))
        elif (scope["method"], scope["path"]) == ("GET", "/v1/models"):
            await _send_json(send, 200, {"object": "list", "data": [{"id": self.name, "object": "model"}]})
        elif (scope["method"], scope["path"]) != ("POST", "/v1/chat/completions"):
            await _send_json(send, 404, _error(f"nothing is served at {scope['path']}"))
        else:
            try:
                body = msgspec.json.decode(await _body(receive))
                request, changed = self._request(body)
            except (ValueError, TypeError, KeyError) as error:
                await _send_json(send, 400, _error(f"{type(error).__name__}: {error}"))
                return
            prompt_text = body["_prompt_text"]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_watch, receive, request, changed)
                self._engine.submit(request)
                await self._stream(request, changed, send, whole=not body.get("stream"))
                tasks.cancel_scope.cancel()
            if request.finish in ("stop", "length") and request.error is None:
                end = self._engine.piece(request.ids[-1]) if request.finish == "stop" else ""
                self._known[prompt_text + request.text + end] = request.prompt + request.ids

    def _request(self, body: dict[str, Any]) -> tuple[Request, asyncio.Event]:
        for name in _REFUSED:
            if body.get(name) not in (None, 1, []):
                raise ValueError(f"this server does not support {name}")
        messages = [{"role": str(m["role"]), "content": _text(m.get("content"))} for m in body["messages"]]
        tokenizer = self._engine.tokenizer
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        known = max((begun for begun in self._known if text.startswith(begun)), key=len, default="")
        ids = self._known.get(known, []) + tokenizer(text[len(known) :], add_special_tokens=False).input_ids
        body["_prompt_text"] = text
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or _MOST_TOKENS
        window = self._engine.window
        if len(ids) >= window:
            raise ValueError(
                f"the prompt has {len(ids)} tokens; this model's maximum context length is {window} tokens"
            )
        stop = body.get("stop") or ()
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        given = body.get("temperature")

        def report() -> None:
            loop.call_soon_threadsafe(changed.set)

        request = Request(
            ids,
            min(int(limit), window - len(ids)),
            1.0 if given is None else float(given),
            report,
            (stop,) if isinstance(stop, str) else tuple(stop),
            body.get("seed"),
        )
        return request, changed

    async def _stream(self, request: Request, changed: asyncio.Event, send: Any, *, whole: bool) -> None:
        sent_text = sent_ids = 0
        started = False
        head: dict[str, Any] = {"id": f"chatcmpl-{secrets.token_hex(8)}", "created": 0, "model": self.name}
        head["object"] = "chat.completion" if whole else "chat.completion.chunk"
        # The form in which SGLang reports the version of its weights.
        head |= {"system_fingerprint": self.weights, "metadata": {"weight_version": self.weights}}
        while True:
            await changed.wait()
            changed.clear()
            if request.cancelled:
                return
            if request.error is not None:
                if not started:
                    await _send_json(send, 500, _error(request.error))
                return
            finish, ids, logprobs = request.finish, request.ids[sent_ids:], request.logprobs[sent_ids:]
            if finish is None and whole:
                continue
            text = request.text
            # A character may consist of several tokens.
            shown = text if finish is not None else text.rstrip("\ufffd")
            entries: list[dict[str, Any]] = [
                {"token": self._engine.piece(token), "logprob": logprob, "bytes": None, "top_logprobs": []}
                for token, logprob in zip(ids, logprobs, strict=False)
            ]
            choice: dict[str, Any] = {
                "index": 0,
                ("message" if whole else "delta"): {"role": "assistant", "content": shown[sent_text:]},
                "logprobs": {"content": entries},
                "token_ids": ids[: len(entries)],
                "finish_reason": None if finish is None else "length" if finish == "length" else "stop",
            }
            chunk: dict[str, Any] = {**head, "choices": [choice]}
            if sent_ids == 0:
                chunk["prompt_token_ids"] = request.prompt
            sent_text, sent_ids = max(sent_text, len(shown)), sent_ids + len(entries)
            usage = {"prompt_tokens": len(request.prompt), "completion_tokens": sent_ids}
            usage["total_tokens"] = sum(usage.values())
            if whole:
                await _send_json(send, 200, {**chunk, "usage": usage})
                return
            if not started:
                started = True
                headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            data = b"data: " + msgspec.json.encode(chunk) + b"\n\n"
            if finish is not None:
                last = msgspec.json.encode({**head, "choices": [], "usage": usage})
                data += b"data: " + last + b"\n\ndata: [DONE]\n\n"
            await send({"type": "http.response.body", "body": data, "more_body": finish is None})
            if finish is not None:
                return


class _Uvicorn(uvicorn.Server):
    """A server that leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _watch(receive: Any, request: Request, changed: asyncio.Event) -> None:
    """Cancel a query whose client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
    request.cancelled = True
    changed.set()


async def _body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if len(body) > _MOST_BYTES:
            raise ValueError("the query is too large")
        if not message.get("more_body"):
            return body


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def _error(why: str) -> dict[str, Any]:
    return {"error": {"message": why, "type": "invalid_request_error"}}


async def _send_json(send: Any, status: int, data: dict[str, Any]) -> None:
    body = msgspec.json.encode(data)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
