"""Servers of one's own: Ollama, vLLM, LM Studio, llama.cpp, and whatever else speaks Chat Completions, with a key or without.

Options: ``tools`` (native | text | auto), ``effort``, ``logprobs``. ``base_url`` is ``http://localhost:11434/v1`` where none
is given, or what ``$OLLAMA_HOST`` says.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from cantrip_acp.crystals.chat import ChatCrystal, priced
from cantrip_acp.crystals.chat_messages import Dialect
from cantrip_acp.crystals.chat_stream import ChatAnswer
from cantrip_acp.crystals.contract import Query, Usage
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.openai_sdk import shown
from cantrip_acp.crystals.window import least_tokens
from cantrip_acp.errors import ContextLimitError, CrystalError

OLLAMA_PORT = 11434
_CHARS_PER_TOKEN = 4
_CUT_FROM = 1000
"""Below this many tokens no window is full; such a count is of what an old version had not in its cache."""
_CLEARLY_MORE = 1.25

_STARTS = {
    OLLAMA_PORT: "start it with: ollama serve",
    1234: "start LM Studio's server: lms server start",
    8000: "start it, for example: vllm serve {model}",
    8080: "start it, for example: llama-server --jinja --port 8080 -m MODEL.gguf",
}
"""What usually answers at a port."""


class LocalCrystal(ChatCrystal):
    """A model behind a server of one's own."""

    dialect = Dialect("local", one_system=True, carry=("reasoning_content", "reasoning"))
    limit_key = "max_tokens"
    think_tags = True

    def __init__(self, endpoint: Endpoint) -> None:
        self.base_url = local_address(endpoint)
        super().__init__(endpoint, self.base_url)

    def extend(self, body: dict[str, Any], query: Query) -> None:
        effort = self.endpoint.options.get("effort")
        if effort:
            body["reasoning_effort"] = effort
        if self.endpoint.options.get("logprobs"):
            # vLLM and SGLang tell the tokens' ids, the prompt's too; others do not know the word and pass it over.
            body["return_token_ids"] = True

    def explained(self, error: CrystalError) -> CrystalError:
        text = str(error)
        ollama = self.endpoint.provider == "ollama" or _port(self.base_url) == OLLAMA_PORT
        if error.status is None and "no connection to" in text:
            start = (
                _STARTS[OLLAMA_PORT] if ollama else _STARTS.get(_port(self.base_url) or 0, "start the model's server")
            )
            return CrystalError(
                f"{self.sdk.who}: no server answers at {shown(self.base_url)}; {start.format(model=self.model)}, "
                f"or set crystal.base_url to where it runs ({text.rpartition(': ')[2]})",
                retryable=True,
            )
        if error.status == 404 and ollama:
            return CrystalError(f"{text}; get the model with: ollama pull {self.model}", status=404)
        return error

    def kept(self, chat: ChatAnswer) -> Any:
        # Models that think between calls are to see it again, which DeepSeek and Kimi insist on. Without calls it is spent.
        if not chat.calls or chat.thought_key not in self.dialect.carry:
            return None
        return {"family": self.dialect.family, chat.thought_key: "".join(chat.thoughts)}

    def usage(self, chat: ChatAnswer, query: Query) -> Usage:
        usage = chat.counted()
        if usage is not None and self.endpoint.provider == "ollama":
            self._check_read(usage.prompt_tokens, least_tokens(query))
        if usage is None or not usage.total_tokens:
            # Not told. Folding and the wards on tokens need a number, and this one is near enough.
            read = sum(len(m.content or "") + sum(len(c.args) for c in m.tool_calls) for m in query.messages)
            read += sum(len(t.description) + len(msgspec.json.encode(dict(t.parameters))) for t in query.tools)
            said = sum(map(len, chat.text)) + sum(map(len, chat.thoughts)) + sum(len(c.text) for c in chat.calls)
            usage = Usage(read // _CHARS_PER_TOKEN, -(-said // _CHARS_PER_TOKEN))
        return priced(usage, self.endpoint)

    def _check_read(self, read: int, least: int) -> None:
        """Ollama cuts what does not fit its window and says nothing; its count of what it read gives it away (CRYSTAL-2)."""
        if read >= _CUT_FROM and least > read * _CLEARLY_MORE:
            raise ContextLimitError(
                f"{self.sdk.who}: Ollama read only {read:,} of at least {least:,} tokens: the rest did not fit its context "
                "length and was cut off; start it with a larger one: OLLAMA_CONTEXT_LENGTH=32768 ollama serve",
                tokens=least,
                limit=read,
            )


def local_address(endpoint: Endpoint) -> str:
    """Where the server is: the endpoint's base_url, completed with ``/v1`` where it names a host alone, else Ollama's."""
    if not endpoint.base_url:
        return ollama_address(os.environ.get("OLLAMA_HOST", ""))
    parts = urlsplit(endpoint.base_url)
    return urlunsplit(parts._replace(path="/v1")) if parts.path in ("", "/") else endpoint.base_url


def ollama_address(host: str) -> str:
    """Ollama's address by ``$OLLAMA_HOST``: ``host``, ``host:port``, ``:port`` or a URL; empty is this machine."""
    text = host.strip().strip("\"'")
    if not text:
        return f"http://localhost:{OLLAMA_PORT}/v1"
    scheme, found, rest = text.rpartition("://")
    scheme = scheme if found else "http"
    rest, _, path = rest.partition("/")
    if rest.count(":") > 1 and not rest.startswith("["):
        rest = f"[{rest}]"
    matched = re.fullmatch(r"(\[.*\]|[^:]*)(?::(\d*))?", rest)
    name, port = (matched.group(1), matched.group(2) or "") if matched is not None else (rest, "")
    # What a server listens on with these, a client cannot ask.
    name = "127.0.0.1" if name in ("", "0.0.0.0") else "[::1]" if name == "[::]" else name
    default = OLLAMA_PORT if not found else 443 if scheme == "https" else 80
    base = f"{scheme}://{name}:{port or default}"
    return f"{base}/{path.strip('/')}/v1" if path.strip("/") else f"{base}/v1"


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None
