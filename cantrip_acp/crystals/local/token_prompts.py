"""Token prompts: sends a server the token ids of a prompt in place of messages (`crystal.token_prompts`), for training.

A server that gets messages tokenizes the model's earlier answers again, perhaps with other tokens than the model sampled.
Then a thread is no single token sequence. Here, a prompt that continues an earlier query consists of the tokens of that
query, those of its answer as they were sampled, and the tokens of what came after. The server's own chat template and
tokenizer make the tokens: ``/apply-template`` and ``/tokenize`` of llama.cpp, ``/tokenize`` of vLLM and SGLang.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import SampledTokens

PATH = "/completions"
"""The path at which a server takes token ids."""
_MOST_KNOWN = 512
"""The number of answers whose tokens are cached. A forgotten one is tokenized again."""
_OF_CHAT = ("messages", "logprobs", "top_logprobs", "verbose", "tool_choice", "reasoning_effort")
"""The keys of a Chat Completions request that a request with token ids does not have, or has in another form."""

Ask = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Sends a JSON object to a path of the server, and returns its JSON."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The tokens of a query and its answer, and their text where the server reports it."""

    ids: tuple[int, ...]
    text: str

    def continued(self, rest: list[int]) -> list[int]:
        # The answer may include the token that ends it, which the template writes too.
        return [*self.ids, *(rest[1:] if rest[:1] == [self.ids[-1]] else rest)]


class TokenPrompts:
    """Makes the token prompts of one crystal. ``who`` names the crystal in errors; ``model`` is the server's name of its
    model. ``window`` is the crystal's window in tokens, if known."""

    def __init__(self, ask: Ask, who: str, model: str, *, llama_cpp: bool, window: int | None = None) -> None:
        self._ask = ask
        self._who = who
        self._model = model
        self._llama_cpp = llama_cpp
        self._sglang = False
        self._windows = [] if window is None else [window]
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._texts: dict[bytes, str] = {}

    async def request(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The request with token ids in place of the messages of a Chat Completions request. Raises `CrystalError`."""
        sent = {key: value for key, value in body.items() if key not in _OF_CHAT}
        sent["prompt"] = await self._prompt(json.loads(_bytes(body["messages"])))
        sent["logprobs"] = 1
        if self._llama_cpp:
            sent["n_probs"] = 1
        elif "max_tokens" not in sent and self._windows:
            # Without a limit, vLLM and SGLang end an answer to a prompt of tokens after 16 tokens.
            sent["max_tokens"] = max(1, min(self._windows) - len(sent["prompt"]))
        return sent

    def remember(self, messages: Sequence[Any], prompt: Sequence[int], content: str, sampled: SampledTokens) -> None:
        """Keep the tokens of an answer, for the queries that continue it."""
        said = b"".join(bytes(sampled.bytes_of(place)) for place in range(len(sampled.texts)))
        last = len(b"".join(bytes(sampled.bytes_of(place)) for place in range(len(sampled.texts) - 1)))
        if content.encode("utf-8", "replace") not in (said, said[:last]) or len(sampled.ids) != len(sampled.texts):
            # The tokens hold more than the message, such as a stop text. What follows must not continue them.
            return
        text = self._texts.pop(_key(messages), "")
        whole = [*messages, {"role": "assistant", "content": content}]
        self._known[_key(whole)] = _Known((*prompt, *sampled.ids), text + content)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    async def _prompt(self, messages: Sequence[Any]) -> list[int]:
        begun: _Known | None = None
        at = len(messages)
        while begun is None and at > 0:
            at -= 1
            if messages[at]["role"] == "assistant":
                begun = self._known.get(_key(messages[: at + 1]))
        if self._llama_cpp:
            return await self._by_text(messages, begun)
        whole = await self._tokens({"messages": messages, "add_generation_prompt": True})
        if begun is None:
            return whole
        again = await self._tokens_until_end_of(messages[: at + 1])
        if whole[: len(again)] != again:
            # The template writes the earlier messages otherwise, so this prompt does not continue the earlier one.
            return whole
        return begun.continued(whole[len(again) :])

    async def _tokens_until_end_of(self, messages: Sequence[Any]) -> list[int]:
        """The tokens of messages, without those that end the last one."""
        wanted = {"messages": messages, "continue_final_message": True}
        try:
            return await self._tokens({**wanted, "add_generation_prompt": self._sglang})
        except CrystalError as error:
            # SGLang refuses what vLLM requires.
            if self._sglang or "continue_final_message needs add_generation_prompt" not in str(error):
                raise
        self._sglang = True
        return await self._tokens({**wanted, "add_generation_prompt": True})

    async def _by_text(self, messages: Sequence[Any], begun: _Known | None) -> list[int]:
        found = await self._ask("/apply-template", {"messages": messages})
        text = found.get("prompt") if isinstance(found, dict) else None
        if not isinstance(text, str):
            raise CrystalError(
                f"{self._who}: /apply-template gave no prompt; crystal.token_prompts needs llama.cpp, vLLM or SGLang"
            )
        if len(self._texts) > _MOST_KNOWN:
            # Queries that failed are never answered.
            self._texts.clear()
        self._texts[_key(messages)] = text
        if begun is None or not text.startswith(begun.text):
            return await self._tokens({"content": text, "add_special": False, "parse_special": True})
        rest = {"content": text[len(begun.text) :], "add_special": False, "parse_special": True}
        return begun.continued(await self._tokens(rest))

    async def _tokens(self, what: Mapping[str, Any]) -> list[int]:
        try:
            found = await self._ask("/tokenize", what if self._llama_cpp else {"model": self._model, **what})
        except CrystalError as error:
            if error.status != 404:
                raise
            found = None
        ids = found.get("tokens") if isinstance(found, dict) else None
        if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
            raise CrystalError(
                f"{self._who}: /tokenize gave no token ids; crystal.token_prompts needs a server that does, such as vLLM, "
                "SGLang or llama.cpp (provider llamacpp)"
            )
        window = found.get("max_model_len")
        if isinstance(window, int) and window > 0:
            self._windows = [*self._windows[:1], window]
        return ids


def _key(messages: Sequence[Any]) -> bytes:
    return _bytes([(each["role"], each.get("content")) for each in messages])


def _bytes(value: Any) -> bytes:
    # Half of a surrogate pair, which the output of a program may contain, has no form in UTF-8.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
