"""Shaped rewards: calls a scoring function that belongs to the circle (§6.4).

The function is the host's own code and sees what the loom has, also the expected answer, which the entity must not see.
Its answer becomes a `RewardRecord` of the kind
``shaped``, ``by`` its name. It can slow a cast but not stop it: if it raises, answers no number or takes too long, a
record without a reward says so, and the cast continues.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.to_thread
import msgspec

from cantrip_acp.loom.query.thread import Endings, Thread
from cantrip_acp.text.defaults import name_of
from cantrip_acp.text.logs import logger
from cantrip_acp.text.redaction import beginning
from cantrip_acp.types.errors import DefinitionError, describe, interrupts
from cantrip_acp.types.records import RewardRecord, now

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.records import Turn

log = logger(__name__)

_NOTE = 2_000


@dataclass(frozen=True, slots=True)
class Scorer:
    """A scoring function and when it is called.

    ``at="turn"``: ``function(turn)`` after each `Turn`; the answer rewards that turn. ``at="cast"``:
    ``function(thread)`` after a cast has ended; the answer grades the `Thread` up to its last turn.
    If it has parameters ``intent`` and ``reference``, it also gets those of the cast (`Entity.cast`); ``reference`` is None
    if the cast has none.
    It returns a finite number, ``(number, note)``, or None for no reward. It may be a coroutine function; other
    functions run in a thread. ``timeout_s`` is its time limit in seconds.

    A cast that an outer cancellation ends is not scored.
    """

    function: Callable[[Any], Any]
    name: str = ""
    at: Literal["turn", "cast"] = "turn"
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise DefinitionError(
                f"a scorer takes a function of a turn or a thread, not {type(self.function).__name__}"
            )
        if self.at not in ("turn", "cast"):
            raise DefinitionError(f"a scorer is asked at a turn or at a cast's end, not at {self.at!r}")
        if not self.name:
            object.__setattr__(self, "name", name_of(self.function))

    @classmethod
    def of(cls, score: Scorer | Callable[[Any], Any] | None) -> Scorer | None:
        """Make a scorer; a plain function is called after each turn. Raises `DefinitionError` for anything else."""
        return score if score is None or isinstance(score, Scorer) else cls(score)

    def record(self) -> dict[str, Any]:
        """The scorer as the loom stores it, as part of the circle."""
        return {"name": self.name, "at": self.at}


class Scoring:
    """The scoring of one cast. After one timeout the scorer is not called again in that cast."""

    def __init__(self, scorer: Scorer | None, loom: Loom, intent: str, reference: Any = None) -> None:
        self._scorer = scorer
        self._about = {"intent": intent, "reference": reference}
        self._loom = loom
        self._last: str | None = None

    async def turn(self, turn: Turn) -> None:
        """Score a turn that was just written."""
        if self._scorer is not None and self._scorer.at == "turn":
            self._last = turn.id
            await self._score(turn, turn.id, grade=False)

    async def end(self, leaf: str) -> None:
        """Score the cast that ended with the turn ``leaf``, or that turn if the end came before it was scored."""
        if self._scorer is None:
            return
        if self._scorer.at == "cast":
            await self._score(own_thread(self._loom, leaf), leaf, grade=True)
        elif self._last != leaf:
            await self.turn(self._loom.turn(leaf))

    async def _score(self, subject: Turn | Thread, turn_id: str, *, grade: bool) -> None:
        scorer = self._scorer
        if scorer is None:
            return
        note: str | None = None
        reward: float | None = None
        try:
            with anyio.fail_after(scorer.timeout_s):
                answer = await _call_scorer(scorer.function, subject, self._about)
            if answer is None:
                return
            reward, note = _read_answer(answer)
        except TimeoutError:
            note = f"took longer than {scorer.timeout_s:g} s, and is asked no more in this cast"
            self._scorer = None
        except BaseException as error:
            # The host's function may raise anything; the cast that it scores must not fail because of it.
            if interrupts(error):
                raise
            note = describe(error)
        if reward is None:
            note = note or ""
            log.warning("scorer %s gave %s no reward: %s", scorer.name, turn_id, note)
        note = None if note is None else beginning(note, _NOTE)
        graded = True if grade else msgspec.UNSET
        self._loom.append(RewardRecord(turn_id, reward, scorer.name, note, now(), "shaped", grade=graded))


async def score_of(scorer: Scorer, subject: Turn | Thread, about: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """Ask a scorer outside of a cast: the score and the note. None and the reason if it fails, takes too long or gives none.

    ``about`` are the values for parameters of the function with these names.
    """
    try:
        with anyio.fail_after(scorer.timeout_s):
            answer = await _call_scorer(scorer.function, subject, about)
        return (None, None) if answer is None else _read_answer(answer)
    except TimeoutError:
        return None, f"took longer than {scorer.timeout_s:g} s"
    except BaseException as error:
        # The function belongs to somebody else and may raise anything.
        if interrupts(error):
            raise
        return None, describe(error)


async def _call_scorer(function: Callable[..., Any], subject: Turn | Thread, about: Mapping[str, Any]) -> Any:
    more = {name: about[name] for name in _named_parameters(function) if name in about}
    if inspect.iscoroutinefunction(function):
        return await function(subject, **more)
    answer = await anyio.to_thread.run_sync(partial(function, subject, **more), abandon_on_cancel=True)
    return await answer if inspect.isawaitable(answer) else answer


def _named_parameters(function: Callable[..., Any]) -> Iterator[str]:
    """The parameters after the first that can be given by name. None of a function that has no signature."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return
    for parameter in parameters[1:]:
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            yield parameter.name


def _read_answer(answer: Any) -> tuple[float, str | None]:
    """The reward and the note in a scorer's answer. Raises ValueError."""
    note = None
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], str | None):
        answer, note = answer
    # Other number types (a NumPy scalar, a Fraction) have __float__. Texts and booleans are refused.
    if isinstance(answer, bool | str | bytes) or not hasattr(answer, "__float__"):
        raise ValueError(f"a scoring function must return a number, not {type(answer).__name__}")
    reward = float(answer)
    if not abs(reward) <= sys.float_info.max:
        raise ValueError(f"a scoring function must return a finite number, not {reward}")
    return reward, note


def own_thread(loom: Loom, leaf_id: str) -> Thread:
    """The thread that ends in a turn. For a child it leaves out its parents' turns."""
    path = loom.path(leaf_id)
    first = max((n for n, i in enumerate(path) if loom.places[i].role == "call"), default=0)
    turns = tuple(loom.bodies(path[first:]))
    return Thread(turns, Endings(loom).thread(turns[-1]))
