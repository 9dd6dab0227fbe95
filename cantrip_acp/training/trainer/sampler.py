"""The sampler: decodes many queries at once, each with its own stop texts, and reports each token's log-probability.

One thread does everything that uses the model: it decodes while there are queries, and runs the jobs of `Sampler.run`
(such as a training step) in between. Two threads that both compute with torch would compete for the processor.
Queries join and leave the running batch at any token. Those that begin with the same tokens share them (`model`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from cantrip_acp.training.trainer.engine import Request
from cantrip_acp.training.trainer.model import KeysAndValues, Model, Recorder, common_start

_T = TypeVar("_T")

_GATHER_S = 0.03
"""An idle sampler starts after so many seconds without a new query, because queries that begin together can share a prompt."""
_MOST_ROWS = 64
_REPORT_EVERY = 8
"""Tokens after which the pieces of an answer are reported."""
_ROOM = 32
"""Tokens by which the room for keys and values grows."""


class _Rows:
    """The keys and values of the running queries after their shared prompt; a cache of transformers."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.lengths: list[int] = []
        self.layers: KeysAndValues = []

    def join(self, requests: list[Request], lengths: list[int], layers: KeysAndValues) -> None:
        room = max([*lengths, *self.lengths]) + _ROOM
        self.layers = [
            (torch.cat(keys), torch.cat(values))
            for keys, values in zip(self._fitted(0, layers, room), self._fitted(1, layers, room), strict=True)
        ]
        self.requests += requests
        self.lengths += lengths

    def _fitted(self, which: int, new: KeysAndValues, room: int) -> list[list[Tensor]]:
        """The present and the new tensors of each layer, with room for ``room`` tokens."""
        both = [(self.layers[n] if self.layers else None, pair) for n, pair in enumerate(new)]
        return [[_resized(pair[which], room) for pair in pairs if pair is not None] for pairs in both]

    def keep(self, places: list[int]) -> None:
        chosen = torch.tensor(places, dtype=torch.long, device=self.layers[0][0].device)
        self.layers = [(keys[chosen], values[chosen]) for keys, values in self.layers] if places else []
        self.requests = [self.requests[place] for place in places]
        self.lengths = [self.lengths[place] for place in places]

    def extend(self) -> None:
        """Make room for one more token of each query."""
        if max(self.lengths) >= self.layers[0][0].shape[2]:
            room = max(self.lengths) + _ROOM
            self.layers = [(_resized(keys, room), _resized(values, room)) for keys, values in self.layers]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        own_keys, own_values = self.layers[layer]
        rows, slots = (
            torch.arange(len(self.lengths), device=keys.device),
            torch.tensor(self.lengths, device=keys.device),
        )
        own_keys[rows, :, slots] = keys[:, :, 0]
        own_values[rows, :, slots] = values[:, :, 0]
        used = max(self.lengths) + 1
        return own_keys[:, :, :used], own_values[:, :, :used]


def _resized(tensor: Tensor, room: int) -> Tensor:
    more = room - tensor.shape[2]
    return torch.nn.functional.pad(tensor, (0, 0, 0, more)) if more > 0 else tensor[:, :, :room]


class Sampler:
    """Answers queries with a model, in a thread of its own. Stop it with `close`."""

    def __init__(self, load: Callable[[], Model]) -> None:
        """``load`` makes the model, in the sampler's thread. `run` waits for it and raises its error."""
        self.model: Model = None  # type: ignore[assignment]
        self.busy_s = 0.0
        """Seconds in which queries were decoded."""
        self.tokens = 0
        """Tokens sampled."""
        self._load = load
        self._waiting: deque[Request] = deque()
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._failure: BaseException | None = None
        self._rows = _Rows()
        self._prefix_ids: list[int] = []
        self._prefix: KeysAndValues = []
        self._generator: torch.Generator | None = None
        self._pieces: dict[int, str] = {}
        self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)
        self._thread.start()

    @property
    def tokenizer(self) -> Any:
        return self.model.tokenizer

    @property
    def window(self) -> int:
        return int(self.model.causal.config.max_position_embeddings)

    def submit(self, request: Request) -> None:
        """Add a query. Any thread may call it."""
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()

    async def run(self, job: Callable[[Model], _T]) -> _T:
        """Run ``job`` with the model in the sampler's thread when no query is decoded, and return its result.

        Afterwards nothing is remembered of earlier queries, because the job may have changed the weights.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_T] = loop.create_future()

        def answer(put: Callable[[Any], None], value: Any) -> None:
            if not done.done():
                put(value)

        def work() -> None:
            try:
                if self._failure is not None:
                    raise self._failure
                result = job(self.model)
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
                loop.call_soon_threadsafe(answer, done.set_exception, error)
            else:
                loop.call_soon_threadsafe(answer, done.set_result, result)
            self._prefix_ids, self._prefix = [], []

        with self._changed:
            self._jobs.append(work)
            self._changed.notify()
        return await done

    def seed(self, seed: int) -> None:
        """Restart the random numbers for the next queries. Call it in a job."""
        self._generator = torch.Generator(device=self.model.device).manual_seed(seed)

    def piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self.model.tokenizer.decode([token])
        return self._pieces[token]

    def close(self) -> None:
        """End the thread. Blocks until its present token or job is done."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        try:
            self.model = self._load()
            self.seed(0)
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self._failure = error
        while True:
            with self._changed:
                while not (self._closed or self._jobs or self._waiting or self._rows.requests):
                    self._changed.wait()
                if self._closed:
                    return
                job = self._jobs.popleft() if self._jobs and not (self._rows.requests or self._waiting) else None
            if job is not None:
                job()
                continue
            start = time.perf_counter()
            try:
                if self._failure is not None:
                    raise self._failure
                with torch.inference_mode():
                    self._admit()
                    self._decode()
            except Exception as error:  # noqa: BLE001 - whoever waits for an answer gets the reason
                self._fail(f"{type(error).__name__}: {error}")
            self.busy_s += time.perf_counter() - start

    def _fail(self, why: str) -> None:
        with self._changed:
            lost = [*self._rows.requests, *self._waiting]
            self._waiting.clear()
        self._rows = _Rows()
        for request in lost:
            request.error = why
            request.report()

    def _admit(self) -> None:
        """Add waiting queries with the same beginning of the prompt. If nothing runs, choose a new beginning."""
        idle = not self._rows.requests
        if idle:
            known = -1
            while known != len(self._waiting):
                known = len(self._waiting)
                time.sleep(_GATHER_S)
        with self._changed:
            waiting = list(self._waiting)
        if not waiting:
            return
        if idle:
            self._choose_prefix([request.prompt for request in waiting])
        start = len(self._prefix_ids)
        joining: list[Request] = []
        for request in waiting[: _MOST_ROWS - len(self._rows.requests)]:
            if len(request.prompt) <= start or request.prompt[:start] != self._prefix_ids:
                # It begins otherwise. It waits until the running queries are answered, and those behind it wait too.
                break
            joining.append(request)
        # If that fails, they still wait, and so get the reason.
        self._prefill([request for request in joining if not request.cancelled], start)
        with self._changed:
            for _ in joining:
                self._waiting.popleft()

    def _choose_prefix(self, prompts: list[list[int]]) -> None:
        # At least one token is left, whose hidden state predicts the first sampled token.
        best = min(common_start(prompts), min(map(len, prompts)) - 1)
        kept = min(common_start([self._prefix_ids, *prompts]), best)
        if kept + 64 >= best and kept > 0:
            self._prefix_ids = self._prefix_ids[:kept]
            self._prefix = [(keys[:, :, :kept], values[:, :, :kept]) for keys, values in self._prefix]
        else:
            self._prefix_ids = prompts[0][:best]
            self._prefix = self.model.prefix(self._prefix_ids) if best else []

    def _prefill(self, joining: list[Request], start: int) -> None:
        if not joining:
            return
        # Samples of one prompt compute it once.
        distinct = list(dict.fromkeys(tuple(request.prompt[start:]) for request in joining))
        recorder = Recorder()
        ids, positions, mask = self.model.padded(distinct, start)
        hidden = self.model.hidden(ids, positions, mask, cache=recorder, shared=self._prefix or None)
        place = {prompt: number for number, prompt in enumerate(distinct)}
        chosen = [place[tuple(request.prompt[start:])] for request in joining]
        lengths = [len(request.prompt) - start for request in joining]
        at = torch.tensor(chosen, device=self.model.device)
        last = hidden[at, torch.tensor(lengths, device=self.model.device) - 1]
        self._rows.join(joining, lengths, [(keys[at], values[at]) for keys, values in recorder.layers])
        self._sample(joining, self.model.logits(last))
        self._leave()

    def _decode(self) -> None:
        rows = self._rows
        if not rows.requests:
            return
        rows.extend()
        device, start = self.model.device, len(self._prefix_ids)
        ids = torch.tensor([[request.ids[-1]] for request in rows.requests], device=device)
        lengths = torch.tensor(rows.lengths, device=device)
        hidden_slots = torch.arange(max(rows.lengths) + 1, device=device)[None] > lengths[:, None]
        mask = torch.zeros(hidden_slots.shape, dtype=self.model.dtype, device=device)
        mask = mask.masked_fill(hidden_slots, float("-inf"))[:, None, None]
        hidden = self.model.hidden(ids, lengths[:, None] + start, mask, cache=rows, shared=self._prefix or None)
        rows.lengths = [length + 1 for length in rows.lengths]
        self._sample(rows.requests, self.model.logits(hidden[:, 0]))
        self._leave()

    def _sample(self, requests: list[Request], logits: Tensor) -> None:
        logprobs = logits.log_softmax(dim=-1)
        warm = torch.tensor([request.temperature for request in requests], device=logits.device)
        scaled = (logits / warm.clamp(min=1e-6)[:, None]).softmax(dim=-1)
        chosen = torch.multinomial(scaled, 1, generator=self._generator)[:, 0]
        chosen = torch.where(warm > 0, chosen, logits.argmax(dim=-1))
        for number, request in enumerate(requests):
            if request.seed is not None and request.temperature > 0:
                if request.generator is None:
                    request.generator = torch.Generator(device=logits.device).manual_seed(request.seed)
                chosen[number] = torch.multinomial(scaled[number], 1, generator=request.generator)[0]
        sampled = logprobs.gather(1, chosen[:, None])[:, 0]
        self.tokens += len(requests)
        for request, token, logprob in zip(requests, chosen.tolist(), sampled.tolist(), strict=True):
            request.ids.append(token)
            request.logprobs.append(logprob)
            self._judge(request, token)

    def _judge(self, request: Request, token: int) -> None:
        """Decide whether an answer ends with this token, and report new text."""
        text: str = self.model.tokenizer.decode(request.ids, skip_special_tokens=True)
        found = [at for stop in request.stop if (at := text.find(stop)) >= 0]
        if found:
            text, request.finish = text[: min(found)], "stop_text"
        elif token in self.model.ends:
            request.finish = "stop"
        elif len(request.ids) >= request.max_tokens:
            request.finish = "length"
        elif len(request.ids) % _REPORT_EVERY:
            return
        request.text = text
        request.report()

    def _leave(self) -> None:
        kept = [n for n, each in enumerate(self._rows.requests) if each.finish is None and not each.cancelled]
        if len(kept) < len(self._rows.requests):
            self._rows.keep(kept)
