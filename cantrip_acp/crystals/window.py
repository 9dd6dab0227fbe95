"""Whether messages can fit a model's window at all, told before they are sent (CRYSTAL-2).

Only what is far too much is refused here: how a model counts is known to its provider alone, which says so itself where it is
close.
"""

from __future__ import annotations

import re

from cantrip_acp.crystals.contract import Query
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.errors import ContextLimitError

BYTES_PER_TOKEN = 6
"""More bytes of text than any tokenizer in use gets into a token on average: prose has about 4.5, code 3, Chinese 4."""

_RUN = re.compile(rb"(.)\1{7,}", re.DOTALL)
"""The same byte over and over (indentation, rules): tokenizers take dozens of them as one."""


def check_window(endpoint: Endpoint, query: Query) -> None:
    """Refuse a query that cannot fit. Raises `ContextLimitError` with the tokens it has at the least and the limit."""
    limit = endpoint.info.input_limit
    if limit is None or _bytes(query) <= limit * BYTES_PER_TOKEN:
        return
    tokens = least_tokens(query)
    if tokens > limit:
        raise ContextLimitError(
            f"{endpoint.provider}:{endpoint.model}: the messages have at least {tokens:,} tokens and do not fit "
            f"the model's context window of {limit:,}; nothing was sent",
            tokens=tokens,
            limit=limit,
        )


def least_tokens(query: Query) -> int:
    """Fewer tokens than any model would count in the query's texts; attachments are not counted."""
    total = 0
    for text in _texts(query):
        data = text.encode("utf-8", "surrogatepass")
        total += len(_RUN.sub(b"\\1", data))
    return total // BYTES_PER_TOKEN


def _bytes(query: Query) -> int:
    # The usual case, each query: no copy is made of a text that is ASCII.
    return sum(len(t) if t.isascii() else len(t.encode("utf-8", "surrogatepass")) for t in _texts(query))


def _texts(query: Query) -> list[str]:
    texts: list[str] = []
    for message in query.messages:
        if message.content:
            texts.append(message.content)
        for call in message.tool_calls:
            texts.append(call.args)
    texts.extend(tool.description for tool in query.tools)
    return texts
