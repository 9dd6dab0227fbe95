"""Cantrips: the public class, which makes entities of a definition, casts them and forks them (§1.4)."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, overload
from typing import cast as typed

from cantrip_acp.core.casting.result import CastResult, ForkGroup, Value
from cantrip_acp.core.definition.cantrip_definition import ABSENT, CantripDefinition
from cantrip_acp.core.definition.circle import Circle, GateLike
from cantrip_acp.core.entity import Entity, check_new
from cantrip_acp.core.streams import Batch, EventStream, refuse_event_loop, run_sync
from cantrip_acp.gates.contract import NOTHING
from cantrip_acp.gates.wards import Wards
from cantrip_acp.types.call import Call
from cantrip_acp.types.checked_values import check_keys
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from os import PathLike

    from typing_extensions import TypeForm, TypeVar

    from cantrip_acp.core.casting.cast_stream import CastStream
    from cantrip_acp.core.folding.policy import Folding
    from cantrip_acp.core.forking.fork import State
    from cantrip_acp.core.scoring import Scorer
    from cantrip_acp.crystals.contract import Crystal
    from cantrip_acp.crystals.retry import RetryPolicy
    from cantrip_acp.gates.contract import GateSource, Interceptor
    from cantrip_acp.gates.mcp.declaration import McpServer
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.mediums.contract import Medium
    from cantrip_acp.types.context_block import Contributor

    Other = TypeVar("Other", default=Any)

Arguments = ParamSpec("Arguments")

_PARTS = ("gates", "medium", "wards", "max_turns", "workspace", "score", "data")
"""The arguments of `Cantrip` that describe its circle."""

_OF_MODEL = ("base_url", "api_key_env", "price", "tools", "effort", "context_window")
"""The arguments of `Cantrip` that stand beside ``model``."""

_RECIPES = "cantrip_acp.recipes.python_api"
"""Makes cantrips from recipes, crystals from texts, sources from MCP servers. It is above this module: found by its name."""


def _known_arguments(init: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Wrap the constructor so that an unknown argument raises an error with the nearest known name."""
    known = tuple(inspect.signature(init).parameters)[1:]

    @wraps(init)
    def checked(*args: Arguments.args, **given: Arguments.kwargs) -> None:
        check_keys(given, known, "Cantrip", what="argument")
        init(*args, **given)

    return checked


class Cantrip(CantripDefinition, Generic[Value]):
    """A crystal, a call and a circle together. It is a value that can be cast any number of times.

    The crystal is a text as in a recipe (``"anthropic:claude-sonnet-5-5"``, ``"ollama:qwen3"``, ``"embedded"``,
    ``"gguf:FILE"``, ``"scripted:FILE"``), a mapping with the keys of a recipe's ``crystal:``, or a `Crystal`.
    ``model`` takes its place, with these options beside it:

    - ``base_url``: the address of a server that speaks Chat Completions, such as ``http://127.0.0.1:8000/v1``. The name of the
      model then needs no provider.
    - ``api_key_env``: the name of the environment variable with the key for ``base_url``.
    - ``price``: ``{"input": 0.5, "output": 1.5}``, US dollars for a million tokens, also ``cached``, ``cache_write``,
      ``above`` and ``long``. The ward ``max_cost_usd`` needs it for a model that the catalog does not have.
    - ``tools``: ``"native"``, or ``"text"`` for a model that writes its calls as text.
    - ``effort``: how much the model thinks (``"none"`` to ``"max"``).
    - ``context_window``: its size in tokens.

    The circle is a `Circle`, or it is made of ``gates``, ``medium``,
    ``wards``, ``max_turns``, ``workspace``, ``data`` and ``score``; the gate ``done`` is then added. ``system_prompt`` stands for a
    `Call` with nothing else. ``result_type`` is the type of results. ``sources`` may have `McpServer`s. The other
    arguments are those of `CantripDefinition`.

        >>> from cantrip_acp import Cantrip, ScriptedCrystal
        >>> def add(a: int, b: int) -> int:
        ...     "Add two numbers."
        ...     return a + b
        >>> crystal = ScriptedCrystal(
        ...     [
        ...         {"tool_calls": [{"gate": "add", "args": {"a": 2, "b": 3}}]},
        ...         {"tool_calls": [{"gate": "done", "args": {"answer": 5}}]},
        ...     ]
        ... )
        >>> Cantrip(crystal, gates=[add], max_turns=10, result_type=int).cast_sync("What is 2 + 3?").result
        5

    Raises `DefinitionError`, and `MissingKey` if the crystal needs a key that is not set.
    """

    __slots__ = ()

    @_known_arguments
    def __init__(
        self,
        crystal: Crystal | str | Mapping[str, Any] | None = None,
        call: Call | Mapping[str, Any] | None = ABSENT,
        circle: Circle | None = None,
        *,
        model: str | None = None,
        base_url: str | None = None,
        api_key_env: str | None = None,
        price: Mapping[str, Any] | None = None,
        tools: Literal["auto", "native", "text"] | None = None,
        effort: str | None = None,
        context_window: int | None = None,
        gates: Iterable[GateLike] | None = None,
        medium: str | Medium | None = None,
        wards: Wards | Mapping[str, Any] | Iterable[Mapping[str, Any]] | None = None,
        max_turns: int | None = None,
        workspace: str | PathLike[str] | None = None,
        data: Any = NOTHING,
        score: Scorer | Callable[[Any], Any] | None = None,
        system_prompt: str | None = None,
        result_type: TypeForm[Value] | None = ABSENT,
        loom: Loom | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        interceptors: Sequence[Interceptor] = (),
        contributors: Sequence[Contributor] = (),
        name: str | None = None,
        loom_settings: Mapping[str, Any] | None = None,
        folding: Folding | Mapping[str, Any] | None = None,
        crystals: Mapping[str, Crystal | str | Mapping[str, Any]] | None = None,
        sources: Sequence[GateSource | McpServer] = (),
        scores: bool = True,
        inputs: Sequence[str] = (),
    ) -> None:
        values = (gates, medium, wards, max_turns, workspace, score)
        parts = {key: value for key, value in zip(_PARTS, values, strict=False) if value is not None}
        if data is not NOTHING:
            parts["data"] = data
        if system_prompt is not None:
            if call is not ABSENT:
                raise DefinitionError("cantrip got a call and also system_prompt: put it into the call")
            call = Call(system_prompt=system_prompt)
        circle = _circle(None, parts, circle)
        options = (base_url, api_key_env, price, tools, effort, context_window)
        of_model = {key: value for key, value in zip(_OF_MODEL, options, strict=True) if value is not None}
        named: Mapping[str, Any] | None = crystals
        if isinstance(named, dict):
            named = {key: _crystal(each, f"cantrip.crystals[{key!r}]", circle) for key, each in named.items()}
        super().__init__(
            _chosen(crystal, model, of_model, circle),
            call,
            circle,
            loom=loom,
            retry=retry,
            interceptors=interceptors,
            contributors=contributors,
            name=name,
            loom_settings=loom_settings,
            folding=folding,
            crystals=named,
            sources=_sources(sources),
            scores=scores,
            inputs=inputs,
            result_type=None if result_type is ABSENT else result_type,
        )

    @classmethod
    def load(
        cls,
        recipe: str | PathLike[str],
        *,
        workspace: str | PathLike[str] = ".",
        crystal: Crystal | str | Mapping[str, Any] | None = None,
        result_type: TypeForm[Other] | None = ABSENT,
        loom: Loom | None = None,
    ) -> Cantrip[Other]:
        """The cantrip of a recipe: a file, or a name as `cantrip cast` takes it.

        ``workspace`` is the folder in which its entities work. ``crystal`` takes the place of the recipe's own. Without
        ``loom``, casts are recorded in memory, whatever the recipe says of its loom.

        A file that you name is trusted. A recipe of the workspace that is named without a path needs ``cantrip trust``.
        Raises `RecipeError` with file, line and column, `UntrustedRecipe`, and `MissingKey`.
        """
        found: Cantrip[Any] = _recipes().load(recipe, workspace, _crystal(crystal, "Cantrip.load"), loom)
        return found if result_type is ABSENT or result_type is None else found.replace(result_type=result_type)

    def replace(self, **changes: Any) -> Self:
        """A new cantrip with these arguments changed. It is validated.

        ``gates``, ``medium``, ``wards``, ``max_turns``, ``workspace``, ``data`` and ``score`` change the circle,
        ``system_prompt`` the call.
        """
        check_keys(changes, (*self._arguments, *_PARTS, "system_prompt"), "Cantrip.replace", what="field")
        parts = {key: changes.pop(key) for key in _PARTS if key in changes}
        if parts:
            changes["circle"] = _circle(self.circle, parts, changes.get("circle"))
        if "system_prompt" in changes:
            changes["call"] = Call.of(changes.get("call", self.call)).replace(
                system_prompt=changes.pop("system_prompt")
            )
        return super().replace(**changes)

    __replace__ = replace

    def with_result_type(self, result_type: TypeForm[Other]) -> Cantrip[Other]:
        """The same cantrip with results of another type."""
        return typed("Cantrip[Other]", self.replace(result_type=result_type))

    def invoke(self, *, loom: Loom | None = None, entity_id: str | None = None) -> Entity[Value]:
        """Make a persistent entity, independent of all others (ENTITY-6). It acts when it gets its first intent.

        ``entity_id`` must be new to the loom. Raises `EntityExists` if the loom has it or a live entity uses it.
        """
        where = loom if loom is not None else self.loom
        check_new(where, entity_id)
        return Entity(self, where, entity_id=entity_id)

    async def fork(
        self,
        turn_id: str,
        *,
        loom: Loom | None = None,
        state: State = "snapshot",
        entity_id: str | None = None,
        worktree: bool | str | PathLike[str] = False,
        resume: bool | str = False,
        live: Entity[Any] | None = None,
    ) -> Entity[Value]:
        """Make an entity that continues from any turn of a loom, with the whole history up to it (LOOM-4).

        The original does not change.

        ``loom`` defaults to the cantrip's own.
        ``state`` says how to restore a code medium's variables: ``snapshot`` (raises `SandboxError` if there is
        none), ``replay``, ``auto`` (a snapshot, otherwise replay) or ``none``.
        With ``worktree`` the fork works in its own git worktree, with the files as they were recorded at that turn
        (unless ``loom: {files: false}``). True puts the worktree in the state folder; a path names a folder that does not
        exist yet.
        ``live`` is the entity that the turn belongs to, if it still exists: the state of its last turn is then its own.
        ``resume`` makes a fork for `Entity.resume`, which continues without a new intent. The method `resume` does
        both steps.
        Any number of forks of one turn can exist at once. Close the fork like any other entity; its worktree stays.

        Raises `TurnNotFound`, `LoomError` if the path to the turn is damaged, `SandboxError` where ``state``
        cannot be restored, `GitError` if the worktree cannot be made.
        """
        from cantrip_acp.core.forking.fork import fork

        where = loom if loom is not None else self.loom
        return await fork(
            self, turn_id, loom=where, state=state, live=live, entity_id=entity_id, worktree=worktree, resume=resume
        )

    async def resume(
        self,
        turn_id: str,
        *,
        cast: str | None = None,
        loom: Loom | None = None,
        state: State = "snapshot",
        entity_id: str | None = None,
        worktree: bool | str | PathLike[str] = False,
        **options: Any,
    ) -> CastResult[Value]:
        """Fork a turn and continue its cast to the end without a new message. The original does not change.

        Its first query has the messages that the original entity sent after that turn (`core.history.continuation` says
        what follows which turn). ``cast`` names the cast if there are several. See `fork` for the other arguments;
        ``options`` are those of `Entity.resume`.
        """
        entity = await self.fork(
            turn_id, loom=loom, state=state, entity_id=entity_id, worktree=worktree, resume=cast or True
        )
        async with entity:
            return await entity.resume(**options)

    async def resample(
        self,
        turn_id: str,
        samples: int | None = None,
        *,
        cast: str | None = None,
        concurrency: int = 4,
        loom: Loom | None = None,
        state: State = "snapshot",
        worktree: bool | str | PathLike[str] = False,
    ) -> ForkGroup[Value]:
        """Several samples of one state: each fork continues the cast of the turn without a new message.

        Makes 4 by default.

        The result is a group, as from `fork_group`. See `resume` and `fork_group`.
        """
        from cantrip_acp.core.forking.group import SAMPLES, fork_group

        return await fork_group(
            [self] * (SAMPLES if samples is None else samples),
            turn_id,
            None,
            loom=loom if loom is not None else self.loom,
            concurrency=concurrency,
            state=state,
            worktree=worktree,
            resume=cast or True,
        )

    async def fork_group(
        self,
        turn_id: str,
        intent: str | Sequence[str],
        *,
        samples: int | None = None,
        concurrency: int = 4,
        loom: Loom | None = None,
        state: State = "snapshot",
        worktree: bool | str | PathLike[str] = False,
        reference: Any = None,
    ) -> ForkGroup[Value]:
        """Fork one turn several times and cast the forks concurrently.

        Methods that compare answers judge such a group (LOOM-4).

        One ``intent`` goes to every fork; a sequence gives each fork its own. ``samples`` is the number of forks, by
        default 4 for one intent. ``reference`` is that of each cast (`Entity.cast`).
        Results are in order. A failure affects only its own fork. All forks have the group's id in the loom.
        If ``worktree`` is a path, each fork gets a numbered folder in it. See `fork` for the other arguments and
        errors.
        """
        from cantrip_acp.core.forking.group import SAMPLES, fork_group

        intents = [intent] * (SAMPLES if samples is None else samples) if isinstance(intent, str) else list(intent)
        if samples is not None and samples != len(intents):
            raise DefinitionError(
                f"{samples} samples and {len(intents)} intents: leave samples out, or give one intent"
            )
        where = loom if loom is not None else self.loom
        return await fork_group(
            [self] * len(intents),
            turn_id,
            intents,
            loom=where,
            concurrency=concurrency,
            state=state,
            worktree=worktree,
            reference=reference,
        )

    @overload
    async def cast(self, intent: str, *, result_type: TypeForm[Other], **options: Any) -> CastResult[Other]: ...
    @overload
    async def cast(self, intent: str, **options: Any) -> CastResult[Value]: ...
    async def cast(self, intent: str, *, result_type: Any = None, **options: Any) -> CastResult[Any]:
        """Cast one intent with a new entity, then close the entity. Its thread stays in the loom (ENTITY-4).

        ``result_type`` is for this cast. ``options`` are those of `Entity.cast`.
        """
        if result_type is not None:
            return await self.with_result_type(result_type).cast(intent, **options)
        async with self.invoke() as entity:
            return await entity.cast(intent, **options)

    @overload
    def cast_sync(self, intent: str, *, result_type: TypeForm[Other], **options: Any) -> CastResult[Other]: ...
    @overload
    def cast_sync(self, intent: str, **options: Any) -> CastResult[Value]: ...
    def cast_sync(self, intent: str, **options: Any) -> CastResult[Any]:
        """Run one cast to its end and return its `CastResult`. This is `cast` for scripts.

        ``options`` are those of `Entity.cast`, and ``result_type``. In a coroutine or a notebook, use ``await cast(…)``: here it
        raises RuntimeError.
        """
        refuse_event_loop("cast_sync", "await cantrip.cast(…)")
        return run_sync(partial(self.cast, intent, **options))

    def cast_stream(self, intent: str, **options: Any) -> EventStream[Value]:
        """Run one cast as a stream of events. ``options`` are those of `Entity.stream`.

        ``async for event in cantrip.cast_stream(intent)`` reads it. Leaving the loop early cancels the cast. With ``async
        with cantrip.cast_stream(intent) as stream``, the cast has ended when the block is left, and ``stream.result`` is its
        result.
        """
        return EventStream(partial(self._stream, intent, **options))

    @asynccontextmanager
    async def _stream(self, intent: str, **options: Any) -> AsyncIterator[CastStream[Value]]:
        async with self.invoke() as entity, entity.stream(intent, **options) as stream:
            yield stream

    def cast_batch(
        self,
        intents: Sequence[str],
        *,
        references: Sequence[Any] = (),
        concurrency: int = 8,
        progress: bool = False,
        resume: bool | Literal["failed"] = False,
        result_type: Any = None,
        **options: Any,
    ) -> Batch[Value]:
        """Many casts, at most ``concurrency`` at once. Await the batch, or iterate over it (`Batch`).

        Awaited, it gives the results in the order of the intents. A cast that fails puts its exception in its place; the
        others go on. Iterated with ``async for``, or in a script with ``for``, it gives each cast as it finishes.
        ``progress`` shows a line while they run: on stderr if that is a terminal, and in a notebook.

        ``resume=True`` takes what the cantrip's loom has of an earlier run: casts that ended are not cast again, also those that
        a ward ended, and those that were interrupted or failed go on from their last turn. ``resume="failed"`` casts again what
        ended without a result. Earlier casts are those with the same call, circle, crystal, intent, reference and, if the cantrip
        or its recipe has ``inputs``, the same content of these files. Other files do not count: what a program itself writes
        would make new work each time. Give the cantrip a loom that lasts: ``loom=Loom.open("batch.loom.jsonl")``.

        Every cast has its own entity (CANTRIP-2). ``references`` are the expected answers, one for each intent, or none.
        ``options`` are those of `Entity.cast`. Casts of a recipe with ``memory`` neither read nor fill the memory of sessions,
        unless it has ``batches: true``.
        """
        if references and len(references) != len(intents):
            raise DefinitionError(
                f"{len(references)} references for {len(intents)} intents: give one for each, or none"
            )
        if result_type is not None:
            return self.with_result_type(result_type).cast_batch(
                intents,
                references=references,
                concurrency=concurrency,
                progress=progress,
                resume=resume,
                **options,
            )
        alone = self._for_batch()
        if alone is not self:
            return alone.cast_batch(
                intents, references=references, concurrency=concurrency, progress=progress, resume=resume, **options
            )
        if resume not in (True, False, "failed"):
            raise DefinitionError(f'cast_batch: resume must be True, False or "failed", not {resume!r}')
        own = [{**options, "reference": each} for each in references] or [options] * len(intents)
        from cantrip_acp.core.forking.earlier_casts import casts_of_batch

        casts = casts_of_batch(self, self.cast, list(zip(intents, own, strict=True)), resume)
        return Batch(casts, concurrency, progress)

    def _for_batch(self) -> Self:
        """The cantrip for casts that have nothing to do with each other: without what connects sessions."""
        parts = {name: [_alone(each) for each in getattr(self, name)] for name in ("contributors", "sources")}
        changed = {
            name: tuple(each for each in found if each is not None)
            for name, found in parts.items()
            if any(new is not old for new, old in zip(found, getattr(self, name), strict=True))
        }
        return self.replace(**changed) if changed else self


def _alone(part: Any) -> Any:
    """What stands in for a contributor or a gate source in a batch, where casts must not share anything. None removes it."""
    return part.for_batch() if hasattr(part, "for_batch") else part


def _crystal(
    given: Crystal | str | Mapping[str, Any] | None, where: str, circle: Circle | None = None
) -> Crystal | None:
    """Make a crystal from a text or a mapping, written as in a recipe."""
    if not isinstance(given, str | Mapping):
        return given
    made: Crystal = _recipes().crystal(given, where, _limits_cost(circle))
    return made


def _chosen(
    crystal: Crystal | str | Mapping[str, Any] | None,
    model: str | None,
    options: Mapping[str, Any],
    circle: Circle | None,
) -> Crystal | None:
    """The crystal that the arguments name: ``crystal``, or ``model`` with its options."""
    if model is None:
        if options:
            raise DefinitionError(f'cantrip got {", ".join(options)} without model: give model="PROVIDER:NAME" too')
        return _crystal(crystal, "cantrip.crystal", circle)
    if crystal is not None:
        raise DefinitionError("cantrip got a crystal and also model: give one of them")
    made: Crystal = _recipes().model(model, options, "cantrip", _limits_cost(circle))
    return made


def _limits_cost(circle: Circle | None) -> bool:
    return isinstance(circle, Circle) and circle.wards.max_cost_usd is not None


def _sources(given: Any) -> Any:
    """The gate sources, with all MCP servers joined into one source."""
    if not isinstance(given, list | tuple) or all(hasattr(each, "open") for each in given):
        return given
    return _recipes().sources(given)


def _recipes() -> Any:
    return importlib.import_module(_RECIPES)


def _circle(base: Circle | None, parts: Mapping[str, Any], circle: Circle | None) -> Circle | None:
    """Build the circle from the arguments in `_PARTS`; ``base`` supplies those that are missing. Returns ``circle`` if there
    are none."""
    if not parts:
        return circle
    if circle is not None:
        them = "it" if len(parts) == 1 else "them"
        raise DefinitionError(f"cantrip got a circle and also {', '.join(parts)}: put {them} into the circle")
    given = dict(parts)
    if "max_turns" in given:
        wards = given.get("wards", () if base is None else base._init_arguments()["wards"])
        given["wards"] = _limited(wards, given.pop("max_turns"))
    made = Circle(**given) if base is None else base.replace(**given)
    return (
        made if any(gate.name == "done" for gate in made.own_gates) else made.replace(gates=(*made.own_gates, "done"))
    )


def _limited(wards: Any, max_turns: int) -> Any:
    """Replace the turn limit in some wards by ``max_turns``."""
    if isinstance(wards, Wards):
        return replace(wards, max_turns=Wards.of({"max_turns": max_turns}).max_turns)
    items = [wards] if isinstance(wards, Mapping) else list(wards or ())
    others = [
        {name: value for name, value in item.items() if name != "max_turns"} if isinstance(item, Mapping) else item
        for item in items
    ]
    return [*others, {"max_turns": max_turns}]
