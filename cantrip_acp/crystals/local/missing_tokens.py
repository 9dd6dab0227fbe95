"""Missing tokens: finds the tokens that llama.cpp does not report.

llama.cpp holds text back until a character is complete (an emoji can be three tokens), or until it is sure that no stop
sequence begins. Then it reports the id and the log-probability of the last token only. The others are those of the server's
own tokenizer, if they end with the same token, and if the model gives this token the log-probability that it reported. Their
log-probabilities come from the same model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from cantrip_acp.crystals.logprobs import UNLIKELY
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import SampledTokens

_WHOLE_VOCABULARY = 10_000_000
_ROUNDING = 0.1
"""The maximum difference between two computations of one log-probability. A token after different tokens usually differs by
more."""
_MOST = 64
"""The maximum number of tokens to find for one answer. Each takes a request whose reply has the whole vocabulary: some tenths
of a second."""
Ask = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


async def complete(ask: Ask, sampled: SampledTokens, counted: int | None) -> SampledTokens:
    """Return all tokens of an answer of llama.cpp. ``ask`` sends a request to its server. ``counted`` is the number of tokens
    that the server counted; None if it is unknown, or if the answer ended with a stop sequence, which is counted too.

    Raises `CrystalError` if they cannot be found.
    """
    if len({len(sampled.ids), len(sampled.texts), len(sampled.logprobs)}) > 1:
        return sampled
    last = max((place for place, text in enumerate(sampled.texts) if text), default=-1)
    if await _text(ask, sampled.ids[: last + 1]) == "".join(sampled.texts):
        return sampled
    if not sampled.prompt_ids:
        raise CrystalError("the tokens of the prompt are not known")
    ids: list[int] = []
    pieces: list[bytes] = []
    logprobs: list[float] = []
    held = ""
    for place, (token, text, logprob) in enumerate(zip(sampled.ids, sampled.texts, sampled.logprobs, strict=True)):
        own = await _text(ask, [token])
        piece = own.encode()
        if not text or text == held + own:
            # The text of a token that is held back comes with a later one.
            held = "" if text else held + own
        else:
            missing = await _tokens(ask, text.removeprefix(held))
            held = ""
            if missing[-1][0] == token:
                _, piece = missing.pop()
            elif place == last:
                # The end of the answer has no text. It came with the tokens that were held back.
                piece = b""
            else:
                raise CrystalError(f"the model wrote {text!r} with other tokens than the tokenizer makes")
            if len(ids) - place + len(missing) > _MOST:
                raise CrystalError(f"the server left out more than {_MOST} of them")
            for each, its in missing:
                logprobs.append(await _logprob(ask, [*sampled.prompt_ids, *ids], each))
                ids.append(each)
                pieces.append(its)
            if abs(await _logprob(ask, [*sampled.prompt_ids, *ids], token) - logprob) > _ROUNDING:
                raise CrystalError(f"the model wrote {text!r} with other tokens than the tokenizer makes")
        ids.append(token)
        pieces.append(piece)
        logprobs.append(logprob)
    # llama.cpp also counts the end of the answer.
    if counted is not None and counted - len(ids) not in (0, 1):
        raise CrystalError(f"the server counted {counted:,} tokens, and {len(ids):,} are known")
    texts = [piece.decode("utf-8", "replace") for piece in pieces]
    raw = {str(n): tuple(p) for n, (p, t) in enumerate(zip(pieces, texts, strict=True)) if t.encode() != p}
    return msgspec.structs.replace(sampled, ids=tuple(ids), texts=tuple(texts), logprobs=tuple(logprobs), raw=raw)


async def _text(ask: Ask, tokens: Sequence[int]) -> str:
    found = await ask("/detokenize", {"tokens": list(tokens)})
    text = found.get("content") if isinstance(found, dict) else None
    if not isinstance(text, str):
        raise CrystalError("/detokenize gave no text")
    return text


async def _tokens(ask: Ask, text: str) -> list[tuple[int, bytes]]:
    """The tokens of a text, at least one, with their bytes."""
    found = await ask("/tokenize", {"content": text, "add_special": False, "with_pieces": True})
    try:
        tokens = [(int(each["id"]), _bytes(each["piece"])) for each in found["tokens"]]
    except (TypeError, KeyError, ValueError):
        raise CrystalError("/tokenize gave no tokens with their pieces") from None
    if not tokens or b"".join(piece for _, piece in tokens) != text.encode():
        raise CrystalError(f"the tokenizer adds something to {text!r}")
    return tokens


def _bytes(piece: Any) -> bytes:
    return piece.encode() if isinstance(piece, str) else bytes(piece)


async def _logprob(ask: Ask, prompt: Sequence[int], token: int) -> float:
    # The grammar is not part of the probabilities. Without it, the server could answer with another part of a character,
    # and then reports nothing.
    body = {"prompt": list(prompt), "n_predict": 1, "n_probs": _WHOLE_VOCABULARY, "grammar": 'root ::= "a"'}
    found = await ask("/completion", body)
    try:
        (first, *_) = found["completion_probabilities"]
        value = next(each["logprob"] for each in first["top_logprobs"] if each["id"] == token)
    except (TypeError, KeyError, ValueError, StopIteration):
        raise CrystalError("/completion gave no log-probability of a token") from None
    return float(value) if isinstance(value, int | float) else UNLIKELY
