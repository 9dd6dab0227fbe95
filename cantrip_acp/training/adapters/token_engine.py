"""Token engines: what makes tokens in another trainer, as an engine of our Chat Completions server (`trainer.server`).

So the crystal that queries it is the ordinary one, the loom has the token ids and log-probabilities that the trainer's own
function gave, and a conversation that continues keeps the tokens of its earlier answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio.to_thread

from cantrip_acp.training.trainer.engine import Request

Answer = tuple[list[int], list[float]]
"""The ids of an answer, with the token that ended it, and the log-probability of each."""
Generate = Callable[[Request], Awaitable[Answer]]
"""Answers one query: it reads ``prompt``, ``max_tokens``, ``temperature`` and ``stop``."""

_GATHER_S = 0.03
"""Queries that come within so many seconds are one batch."""


class TokenEngine:
    """Answers the queries of a server with ``generate``. It belongs to one event loop."""

    def __init__(self, tokenizer: Any, generate: Generate, window: int, max_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.window = window
        self._generate = generate
        self._max_tokens = max_tokens
        self._tasks: set[asyncio.Task[None]] = set()
        self._pieces: dict[int, str] = {}
        self._ends = {tokenizer.eos_token_id, *tokenizer.all_special_ids}

    def submit(self, request: Request) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self.tokenizer.decode([token])
        return self._pieces[token]

    def close(self) -> None:
        """Cancel the unanswered queries."""
        for task in self._tasks:
            task.cancel()

    async def _answer(self, request: Request) -> None:
        request.max_tokens = min(request.max_tokens, self._max_tokens)
        try:
            request.ids, request.logprobs = await self._generate(request)
            if not request.ids or len(request.ids) != len(request.logprobs):
                raise ValueError(
                    f"the trainer gave {len(request.ids)} ids and {len(request.logprobs)} log-probabilities"
                )
        except Exception as error:  # noqa: BLE001 - the cast that asked gets the reason
            request.error = f"{type(error).__name__}: {error}"
        else:
            request.text = self.tokenizer.decode(request.ids, skip_special_tokens=True)
            found = [at for stop in request.stop if (at := request.text.find(stop)) >= 0]
            if found:
                request.text, request.finish = request.text[: min(found)], "stop_text"
            elif request.ids[-1] in self._ends:
                request.finish = "stop"
            else:
                request.finish = "length" if len(request.ids) >= request.max_tokens else "stop_text"
        request.report()


def batched(generate: Callable[[Sequence[Request]], list[Answer]]) -> Generate:
    """Make a function for one query from a blocking one for many: simultaneous queries become one batch, in a thread."""
    waiting: list[tuple[Request, asyncio.Future[Answer]]] = []
    working: list[asyncio.Task[None]] = []

    async def work() -> None:
        try:
            while waiting:
                known = -1
                while known != len(waiting):
                    known = len(waiting)
                    await asyncio.sleep(_GATHER_S)
                batch = waiting.copy()
                waiting.clear()
                await answer(batch)
        finally:
            working.clear()

    async def answer(batch: list[tuple[Request, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await anyio.to_thread.run_sync(generate, [request for request, _ in batch])
        except Exception as error:  # noqa: BLE001 - each query gets the reason
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), each in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(each)

    async def one(request: Request) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting.append((request, future))
        if not working:
            working.append(asyncio.create_task(work()))
        return await future

    return one
