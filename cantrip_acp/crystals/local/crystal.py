"""Local crystal: queries any Chat Completions server: a server of `presets`, or any address (provider ``local``).

Options: ``tools`` (native | text | auto), ``effort``, ``logprobs``, ``token_prompts``. Provider ``local`` without a
``base_url`` is Ollama.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from cantrip_acp.crystals import keys
from cantrip_acp.crystals.catalog.types import priced
from cantrip_acp.crystals.contract import Emit, Query, Response, template_label
from cantrip_acp.crystals.endpoint import Endpoint, least_tokens
from cantrip_acp.crystals.local import missing_tokens, token_prompts
from cantrip_acp.crystals.local.presets import LOCAL, PRESETS, Preset, ollama_address
from cantrip_acp.crystals.local.token_prompts import TokenPrompts
from cantrip_acp.crystals.openai import chat_messages
from cantrip_acp.crystals.openai.chat_completions import ChatCrystal
from cantrip_acp.crystals.openai.chat_stream import ChatAnswer
from cantrip_acp.crystals.openai.client import public_address
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import ContextLimitError, CrystalError, DefinitionError
from cantrip_acp.types.messages import SampledTokens
from cantrip_acp.types.usage import UNKNOWN_USAGE, Usage

_CUT_FROM = 1000
"""Ignore smaller token counts, because old versions of Ollama do not count tokens in their cache."""
_CLEARLY_MORE = 1.25


_log = logger(__name__)


class LocalCrystal(ChatCrystal):
    """A model on a Chat Completions server."""

    dialect = chat_messages.LOCAL
    limit_key = "max_tokens"
    more_sampling = True
    think_tags = True

    def __init__(self, endpoint: Endpoint) -> None:
        self.base_url = local_address(endpoint)
        self._template: str | None = None
        self._like_llama_cpp = False
        if endpoint.options.get("token_prompts"):
            given = {name: endpoint.options.get(name) for name in ("tools", "logprobs")}
            if given != {"tools": "text", "logprobs": True}:
                raise DefinitionError(
                    "needs tools: text and logprobs: true, because a prompt of tokens has no tools",
                    where="crystal.token_prompts",
                )
        super().__init__(endpoint, self.base_url)
        self._token_prompts: TokenPrompts | None = None
        self._asked_for_tools = False

    async def query(self, query: Query, emit: Emit) -> Response:
        if self.llama_cpp and self._finds_out and not self._by_text and query.tools and not self._asked_for_tools:
            await self._find_whether_tools()
        return await super().query(query, emit)

    async def _find_whether_tools(self) -> None:
        """Find out whether the model's template has a place for tool definitions: without one llama.cpp drops them silently."""
        try:
            found = await self.sdk.ask(f"{self.base_url.removesuffix('/v1')}/props")
        except CrystalError:
            # The query itself says what is wrong.
            return
        self._asked_for_tools = True
        able = found.get("chat_template_caps") if isinstance(found, dict) else None
        self._by_text = isinstance(able, dict) and able.get("supports_tools") is False

    def extend(self, body: dict[str, Any], query: Query) -> None:
        effort = self.endpoint.options.get("effort")
        if effort:
            body["reasoning_effort"] = effort
        if self.endpoint.options.get("logprobs"):
            # vLLM and SGLang then report token ids, also of the prompt. Other servers ignore the key.
            body["return_token_ids"] = True
            if self.llama_cpp:
                # llama.cpp reports the text of the prompt instead (`ended`), and ids of twenty other tokens for each one.
                body |= {"verbose": True, "top_logprobs": 1}

    @property
    def llama_cpp(self) -> bool:
        """Whether the server is llama.cpp, judged by the provider's name or the server's answers."""
        return self.endpoint.provider == "llamacpp" or self._like_llama_cpp

    async def request(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if not self.endpoint.options.get("token_prompts"):
            return await super().request(body)
        if self._token_prompts is None:
            self._token_prompts = TokenPrompts(
                self._ask, self.sdk.who, self.model, llama_cpp=self.llama_cpp, window=self.context_window
            )
        return token_prompts.PATH, await self._token_prompts.request(body)

    async def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        return await self.sdk.ask(f"{self.base_url.removesuffix('/v1')}{path}", body)

    async def ended(self, chat: ChatAnswer, body: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
        if self._token_prompts is not None:
            chat.tokens.prompt(sent["prompt"])
        self._like_llama_cpp = self._like_llama_cpp or chat.tokens.like_llama_cpp
        if self.llama_cpp and self.endpoint.options.get("logprobs"):
            await self._find_tokens(chat)
        if self._token_prompts is not None and (sampled := chat.tokens.whole()) is not None:
            self._token_prompts.remember(body["messages"], sent["prompt"], "".join(chat.text), sampled)

    async def _find_tokens(self, chat: ChatAnswer) -> None:
        """Find data that llama.cpp does not report: the label of its template, and the tokens of prompt and answer."""
        try:
            if self._template is None:
                found = await self.sdk.ask(f"{self.base_url.removesuffix('/v1')}/props")
                text = found.get("chat_template") if isinstance(found, dict) else None
                self._template = template_label(text) if isinstance(text, str) else None
            chat.server.template = self._template
            if self._token_prompts is None:
                await self._find_prompt(chat)
        except CrystalError as error:
            # The answer counts all the same.
            _log.warning("%s: the tokens of a prompt are not recorded: %s", self.sdk.who, error)
        sampled, usage = chat.tokens.whole(), chat.server.counted()
        try:
            if sampled is not None:
                counted = usage.completion_tokens if usage is not None and not chat.server.stopped_by_text else None
                chat.tokens.corrected = await missing_tokens.complete(self._ask, sampled, counted)
        except CrystalError as error:
            chat.tokens.corrected = SampledTokens()
            _log.warning("%s: the tokens of an answer are not recorded: %s", self.sdk.who, error)

    async def _find_prompt(self, chat: ChatAnswer) -> None:
        """Find the ids of the prompt's tokens from its text, which llama.cpp reports."""
        text, count = chat.server.prompt or ("", 0)
        found = await self._ask("/tokenize", {"content": text, "add_special": False, "parse_special": True})
        ids = found.get("tokens") if isinstance(found, dict) else None
        many = len(ids) if isinstance(ids, list) else 0
        if not isinstance(ids, list) or many != count:
            # These are not the tokens that the model read.
            raise CrystalError(f"the server read a prompt of {count} tokens, but its text has {many}")
        chat.tokens.prompt(ids)

    def explained(self, error: CrystalError) -> CrystalError:
        text = str(error)
        server = _server(self.endpoint.provider, self.base_url)
        if error.status is None and "no connection to" in text:
            if server is None or not server.local:
                start = "start the model's server"
            else:
                start = f"start it with: {server.start.format(model=self.model)}"
            return CrystalError(
                f"{self.sdk.who}: no server answers at {public_address(self.base_url)}; {start}; or set crystal.base_url to its "
                f"address ({text.rpartition(': ')[2].partition(';')[0]})",
                retryable=error.may_retry(None),
            )
        if error.status == 404 and server is PRESETS["ollama"]:
            return CrystalError(f"{text}; get the model with: ollama pull {self.model}", status=404)
        return error

    def kept(self, chat: ChatAnswer) -> Any:
        # A model that thinks between calls needs its thinking back. DeepSeek and Kimi require it. Without calls, the
        # thinking is not needed.
        if not chat.calls or chat.thought_key not in self.dialect.carry:
            return None
        return {"family": self.dialect.family, chat.thought_key: "".join(chat.thoughts)}

    def check_usage(self, usage: Usage, query: Query) -> None:
        if usage.prompt_tokens is not None and self.endpoint.provider == "ollama":
            self._check_read(usage.prompt_tokens, least_tokens(query))

    def usage(self, chat: ChatAnswer) -> Usage:
        usage = chat.server.counted()
        if usage is None or not usage.total_tokens:
            # Some servers report zero for counts that they do not know.
            return UNKNOWN_USAGE
        return priced(usage, self.endpoint.info.price)

    def _check_read(self, read: int, least: int) -> None:
        """Check that Ollama read the whole query. It cuts a query that is too long for its window without an error, and
        only its token count shows that (CRYSTAL-2)."""
        if read >= _CUT_FROM and least > read * _CLEARLY_MORE:
            raise ContextLimitError(
                f"{self.sdk.who}: Ollama read only {read:,} of at least {least:,} tokens, because the rest did not fit its "
                "context length; start it with a larger one: OLLAMA_CONTEXT_LENGTH=32768 ollama serve",
                tokens=least,
                limit=read,
            )


def local_address(endpoint: Endpoint) -> str:
    """The server's address: the endpoint's base_url (``/v1`` is added if it has no path), else Ollama's address."""
    if not endpoint.base_url:
        return ollama_address(keys.setting("OLLAMA_HOST"))
    parts = urlsplit(endpoint.base_url)
    return urlunsplit(parts._replace(path="/v1")) if parts.path in ("", "/") else endpoint.base_url


def _server(provider: str, url: str) -> Preset | None:
    """The preset of a provider. For ``local``, it is the preset with the same port, or None."""
    if provider in PRESETS:
        return PRESETS[provider]
    try:
        port = urlsplit(url).port
    except ValueError:
        return None
    return next((PRESETS[name] for name in LOCAL if port == urlsplit(PRESETS[name].base_url).port), None)
