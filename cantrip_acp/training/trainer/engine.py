"""A query to a model as token ids, and what answers it: our own sampler, or the generation of another trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(eq=False)
class Request:
    """One query, and its answer as far as it is sampled. ``report`` says that there is more; any thread may call it.

    ``text`` is the decoded answer without special tokens, and without the stop text. ``finish`` is ``stop`` (the model
    ended it), ``stop_text`` or ``length``. ``error`` is why there is no answer. ``generator`` is for the engine.
    """

    prompt: list[int]
    max_tokens: int
    temperature: float
    report: Callable[[], None]
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    error: str | None = None
    cancelled: bool = False
    generator: Any = None


class Engine(Protocol):
    """Answers queries. ``tokenizer`` is one of transformers, with a chat template; ``window`` is in tokens."""

    @property
    def tokenizer(self) -> Any: ...

    @property
    def window(self) -> int: ...

    def submit(self, request: Request) -> None:
        """Begin to answer a query, and return at once."""
        ...

    def piece(self, token: int) -> str: ...
