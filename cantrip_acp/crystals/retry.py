"""Retry: repeats a failed query of a crystal (PROD-2, D-006), and asks again if a required tool call is missing (CRYSTAL-5).

All attempts together are one query of the loop and at most one turn. A failed attempt adds nothing to the messages.
"""

from __future__ import annotations

import asyncio
import random as _random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

import anyio
import msgspec

from cantrip_acp.crystals.contract import Crystal, CrystalBase, Delta, Emit, Meter, Query, Response, check_response
from cantrip_acp.crystals.logprobs import check_tokens
from cantrip_acp.crystals.mended_answers import WholeCharacters, mended
from cantrip_acp.crystals.refused_media import MediaSearch, is_about_media, without_media
from cantrip_acp.text.defaults import complete
from cantrip_acp.types.checked_values import check_keys, check_mapping, check_number, check_whole, short_repr
from cantrip_acp.types.errors import CrystalError, DefinitionError, MalformedResponse
from cantrip_acp.types.events import seconds_words
from cantrip_acp.types.messages import Message
from cantrip_acp.types.usage import NO_USAGE, UNKNOWN_USAGE, Usage

MAX_RESPONSE_CHARS = 8_000_000
"""The most characters of a response. A longer stream counts as endless."""

LONGEST_WAIT_S = 3600.0
"""Seconds without a piece of text after which a provider counts as dead, even if the connection still gets data."""

_REASKS = 2
_INSIST = "Your last answer called no tool. Answer with at least one tool call."


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to retry, and how long to wait.

    ``max_retries`` is the number of attempts after the first one. Before retry n (from 0) it waits ``base_s`` × 2ⁿ
    seconds plus up to a quarter at random, at most ``max_wait_s``. If the provider sends ``Retry-After``, that time is
    used instead, but if it is longer than ``max_retry_after_s``, there is no retry. ``statuses`` replaces the HTTP
    statuses that are retried (429 and 5xx). Other 4xx are never retried. Tests replace ``sleep`` and ``chance``.
    """

    max_retries: int = 3
    base_s: float = 1.0
    max_wait_s: float = 60.0
    max_retry_after_s: float = 300.0
    statuses: frozenset[int] | None = None
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    chance: Callable[[], float] = _random.random

    def __post_init__(self) -> None:
        check_whole(self.max_retries, "retry.max_retries", 0)
        for name in ("base_s", "max_wait_s", "max_retry_after_s"):
            check_number(getattr(self, name), f"retry.{name}", 0)
        if self.statuses is not None:
            if isinstance(self.statuses, str | Mapping) or not isinstance(self.statuses, Iterable):
                raise DefinitionError(
                    f"retry.statuses must be a list of HTTP statuses, not {short_repr(self.statuses)}"
                )
            held = frozenset(check_whole(each, "retry.statuses", 100, 599) for each in self.statuses)
            object.__setattr__(self, "statuses", held)
        for name in ("sleep", "chance"):
            if not callable(getattr(self, name)):
                raise DefinitionError(f"retry.{name} must be a function, not {short_repr(getattr(self, name))}")

    @classmethod
    def of(cls, value: RetryPolicy | Mapping[str, Any] | None) -> RetryPolicy:
        """Make a policy from the mapping in a recipe. ``retryable_status_codes`` is another name of ``statuses``."""
        if value is None or isinstance(value, RetryPolicy):
            return value or cls()
        given = dict(check_mapping(value, "retry"))
        known = tuple(f.name for f in fields(cls))
        check_keys(given, (*known, "retryable_status_codes"), "retry")
        if "retryable_status_codes" in given:
            if "statuses" in given:
                raise DefinitionError(
                    "retry: statuses and retryable_status_codes mean the same; keep one of them", rule="exclusive-keys"
                )
            given["statuses"] = given.pop("retryable_status_codes")
        return cls(**given)

    def delay(self, retry: int, error: CrystalError) -> float | None:
        """Return the seconds to wait before retry number ``retry`` (0, 1, …); None if there is no retry."""
        if retry >= self.max_retries or not error.may_retry(self.statuses):
            return None
        if error.retry_after is not None:
            wait = max(0.0, error.retry_after)
            return wait if wait <= self.max_retry_after_s else None
        wait = self.base_s * float(2**retry) * (1 + self.chance() / 4)
        return min(wait, self.max_wait_s)


def _add_wait(error: CrystalError, policy: RetryPolicy) -> None:
    """Add to the text of the final error how long the provider asks to wait, and until what time."""
    wait = error.retry_after
    if wait is None or not 1 <= wait < 1e9 or not error.may_retry(policy.statuses):
        return
    until = (datetime.now().astimezone() + timedelta(seconds=wait)).strftime("%Y-%m-%d %H:%M:%S %Z").strip()
    limit = policy.max_retry_after_s
    longer = f", longer than retry.max_retry_after_s: {limit:g}" if wait > limit else ""
    error.args = (f"{error}; the provider asks to wait {seconds_words(wait)}{longer}: try again after {until}",)


Notice = Callable[[float, CrystalError], Awaitable[None]]
"""Called before each new attempt, with the seconds to wait and the error of the last attempt."""


Spend = Callable[[Usage], None]
"""Called with usage that the returned response does not include: the usage of failed attempts and of rejected answers."""


class _Guard:
    """Passes pieces to ``emit``, and raises if a response is endless. Cancels ``wait`` if no piece comes for a long time."""

    __slots__ = ("_emit", "_last", "_left", "_loop", "_sending", "_timer", "_wait", "begun")

    def __init__(self, emit: Emit, wait: anyio.CancelScope) -> None:
        self._emit = emit
        self._wait = wait
        self.begun = False
        self._left = MAX_RESPONSE_CHARS
        self._sending = False
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        # One timer for all pieces: to restart one at each piece costs as much as the piece.
        self._timer = self._loop.call_later(LONGEST_WAIT_S, self._look)

    def _look(self) -> None:
        # The time that the reader needs does not count.
        left = LONGEST_WAIT_S if self._sending else self._last + LONGEST_WAIT_S - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._wait.cancel()

    def close(self) -> None:
        """Stop watching the time."""
        self._timer.cancel()

    async def __call__(self, delta: Delta) -> None:
        self.begun = True
        self._left -= len(delta.text)
        if self._left < 0:
            raise MalformedResponse(
                f"the response was stopped, because it has more than {MAX_RESPONSE_CHARS:,} characters"
            )
        self._sending = True
        await self._emit(delta)
        self._sending = False
        self._last = self._loop.time()


async def query_with_retries(
    crystal: Crystal,
    query: Query,
    emit: Emit,
    policy: RetryPolicy,
    notice: Notice,
    read: Callable[[Response], Response] | None = None,
    spend: Spend = lambda usage: None,
) -> Response:
    """Get one valid response. Raises `CrystalError` if all retries failed or a retry cannot help.

    ``read`` finds the tool calls in a response's text. Such a call satisfies ``tool_choice: required``. ``spend``: see
    `Spend`.
    """
    response = await _attempt(crystal, query, emit, policy, notice, spend)
    if read is not None:
        response = read(response)
    if query.tool_choice != "required" or response.tool_calls or response.refused:
        return response
    messages: Sequence[Message] = query.messages
    for _ in range(_REASKS):
        # The provider did not force a tool call. CRYSTAL-5 allows to simulate that by asking again.
        messages = [
            *messages,
            Message("assistant", response.content),
            Message("user", response.problem or _INSIST, kind="nudge"),
        ]
        spend(response.usage.counted())
        asked = messages[-1].content
        await notice(
            0.0,
            MalformedResponse("the answer called no tool, and tool_choice is required").with_answer(response, asked),
        )
        again = msgspec.structs.replace(query, messages=messages, meter=Meter())
        told = response.notices
        response = await _attempt(crystal, again, emit, policy, notice, spend)
        if told:
            response = msgspec.structs.replace(response, notices=(*told, *response.notices))
        if read is not None:
            response = read(response)
        if response.tool_calls or response.refused:
            return response
    spend(response.usage.counted())
    raise MalformedResponse(
        f"tool_choice is required, but {crystal.model} called no tool in {_REASKS + 1} answers (CRYSTAL-5)"
    ).with_answer(response)


async def _attempt(
    crystal: Crystal, query: Query, emit: Emit, policy: RetryPolicy, notice: Notice, spend: Spend
) -> Response:
    retry = 0
    whole = query
    search: MediaSearch | None = None
    left_out: frozenset[str] = frozenset()
    while True:
        try:
            response = await metered(crystal, query, emit, spend)
            return response if search is None or not left_out else _without_media(response, search, left_out)
        except CrystalError as error:
            error.about_media = is_about_media(error) and any(each.attachments for each in query.messages)
            if error.about_media and search is None:
                search = MediaSearch(query.messages, error)
            if search is not None and error.refuses_content:
                found = search.next(error)
                if found is None:
                    raise search.final_error() from None
                left_out = found
                messages = [without_media(each, left_out) for each in whole.messages]
                query = msgspec.structs.replace(whole, messages=messages, meter=Meter())
                continue
            delay = policy.delay(retry, error)
            if delay is None:
                if retry and not isinstance(error, MalformedResponse):
                    error.add_note(f"after {retry + 1} attempts")
                _add_wait(error, policy)
                raise
            retry += 1
            await notice(delay, error)
            await policy.sleep(delay)
            query = msgspec.structs.replace(query, meter=Meter())


def _without_media(response: Response, search: MediaSearch, left_out: frozenset[str]) -> Response:
    """Query without the media that the provider refused, and return the response."""
    notices = (search.notice(left_out), *response.notices)
    return msgspec.structs.replace(response, notices=notices, refused_media=tuple(sorted(left_out)))


async def metered(crystal: Crystal, query: Query, emit: Emit, spend: Spend) -> Response:
    """Run one attempt. If it gives no valid response, report its usage to ``spend``. The query's meter must be new."""
    wait = anyio.CancelScope()
    characters = WholeCharacters(emit)
    guard = _Guard(characters, wait)
    if complete(crystal, CrystalBase).patient:
        # A person has no time limit.
        guard.close()
    try:
        with wait:
            response = mended(await crystal.query(query, guard))
            await characters.close()
        if wait.cancelled_caught:
            raise CrystalError(
                f"{crystal.name} ({crystal.model}): no answer for {LONGEST_WAIT_S:g} seconds, although the connection is open",
                retryable=True,
            )
    except BaseException:
        # Also after a cancel: the provider bills the text that it has streamed so far.
        used = query.meter.used
        if used == NO_USAGE and guard.begun:
            used = UNKNOWN_USAGE
        if used != NO_USAGE:
            spend(used)
        raise
    finally:
        guard.close()
    try:
        try:
            check_response(response, query.messages)
        except MalformedResponse as error:
            raise error.with_answer(response) from None
        if response.sampled is not None:
            check_tokens(response.sampled, f"{crystal.name}:{crystal.model}")
    except CrystalError:
        spend(response.usage.counted())
        raise
    return response
