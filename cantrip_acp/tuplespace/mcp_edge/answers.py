"""Answers of the five tools, without any protocol. Clients name work; the operator of the server decides what is allowed."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from cantrip_acp.text.json_data import thaw
from cantrip_acp.text.json_schema import Schema
from cantrip_acp.text.logs import logger
from cantrip_acp.tuplespace.authority import refusal
from cantrip_acp.tuplespace.batch import cast_yool
from cantrip_acp.tuplespace.canonical_json import content_id
from cantrip_acp.tuplespace.catalog.capabilities import Capability, Catalog, UnknownCapability
from cantrip_acp.tuplespace.errors import SpaceError, SpaceFull, TupleError
from cantrip_acp.tuplespace.events import Story, sentence
from cantrip_acp.tuplespace.mcp_edge.tools import DEFAULT_WAIT_S, TOOLS
from cantrip_acp.tuplespace.receipts import add_costs, is_genuine
from cantrip_acp.tuplespace.retention import read_result
from cantrip_acp.tuplespace.space import run_in_thread
from cantrip_acp.tuplespace.stores.base import StoredReceipt, StoredTuple
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple, new_tuple

log = logger(__name__)

_LOOK_S = 2.0
"""How often to look at a tuple, also if the store reports no change."""
_PAUSE_S = 0.05
"""The shortest time between two looks."""
_SIGN_S = 10.0
"""How often to report progress if nothing changes, so that a client does not give up."""
_FINAL = ("done", "failed", "taken")

Progress = Callable[[str], Awaitable[None]]
"""Called with a sentence for each thing that happens."""


class ToolError(Exception):
    """The call cannot be answered. The text tells the client what is wrong and what to do."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on a client's requests. None: no limit."""

    max_usd: float | None = None
    """US dollars of one tuple."""
    max_tokens: int | None = None
    """Tokens of one tuple."""
    max_retries: int | None = None
    max_waiting: int
    """Waiting tuples of a lane."""


class Answers:
    """Answers calls of the tools. `run` must run meanwhile: it watches the store for all calls that wait.

    Clients see and put tuples of ``lanes`` only. If there are ``recipes`` (by name), clients may only have these cast. If there
    are none, the workers of the lanes decide what they run. ``authority`` is written into each tuple. ``budget`` is the
    name of a budget that all tuples share, ``project`` the id of the project in which recipes are cast. ``files`` gives for each
    recipe, by name, the digest of the files on which its casts depend. ``catalog`` returns the catalog of the project. These are
    called in a thread, for each answer.
    """

    def __init__(
        self,
        store: TupleStore,
        *,
        lanes: Sequence[str],
        recipes: Mapping[str, Capability],
        authority: Mapping[str, Any],
        limits: Limits,
        budget: str | None = None,
        catalog: Callable[[], Catalog],
        project: str = "",
        files: Mapping[str, Callable[[], str]] = {},
    ) -> None:
        self._project = project
        self._files = files
        self._store = store
        self._lanes = tuple(lanes)
        self._recipes = {capability.name: (name, capability) for name, capability in recipes.items()}
        self._authority = dict(authority)
        self._limits = limits
        self._budget = budget
        self._catalog = catalog
        self._known: tuple[Catalog | None, Catalog] = (None, Catalog(()))
        self._changed = anyio.Event()
        self._watchers = 0
        self._someone_watches = anyio.Event()
        self._stopped = False
        self._tools = {tool["name"]: (Schema(thaw(tool["input"])), tool["input"]) for tool in TOOLS}
        self._calls: dict[str, Callable[[dict[str, Any], Progress], Awaitable[dict[str, Any]]]] = {
            "catalog.lookup": self._lookup,
            "catalog.list_by_lane": self._list_by_lane,
            "tuple.dispatch": self._dispatch,
            "tuple.observe": self._observe,
            "receipt.get": self._receipt,
        }

    async def run(self) -> None:
        """Watch the store while a call waits. Runs until it is cancelled."""
        stop = threading.Event()
        try:
            while True:
                if not self._watchers:
                    self._someone_watches = anyio.Event()
                    await self._someone_watches.wait()
                await anyio.to_thread.run_sync(self._store.wait, _LOOK_S, stop, abandon_on_cancel=True)
                self._wake()
                await anyio.sleep(_PAUSE_S)
        finally:
            stop.set()

    def stop(self) -> None:
        """Let waiting calls return at once with the present state."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def call(self, name: str, arguments: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        """Answer one call. Raises `ToolError`. KeyError if there is no such tool."""
        validator, schema = self._tools[name]
        given = dict(arguments)
        for key in given.keys() - schema["properties"].keys():
            raise ToolError(f"{name} has no argument {key!r}{_similar(key, schema['properties'])}")
        for problem in [] if validator.is_valid(given) else validator.problems(given, 1):
            raise ToolError(f"{name}: {problem}")
        try:
            answer = await self._calls[name](given, progress)
        except SpaceError as error:
            # The text names the operator's files and hosts.
            log.error("%s", error)
            raise ToolError(
                "the tuple-space cannot be used now; the log of this server says why. Try again later"
            ) from None
        etag = answer.setdefault("etag", content_id(answer)[7:39])
        return {"etag": etag, "not_modified": True} if given.get("if_none_match") == etag else answer

    # --- The catalog.

    async def _capabilities(self) -> Catalog:
        """The catalog of the project, with the recipes in the form that this server has loaded."""

        def read() -> Catalog:
            project = self._catalog()
            before, known = self._known
            if before is not project:
                own = [self._as_in(project, capability) for _, capability in self._recipes.values()]
                known = Catalog([*(each for each in project if each.name not in self._recipes), *own])
                self._known = (project, known)
            return known

        return await run_in_thread(read)

    def _as_in(self, project: Catalog, recipe: Capability) -> Capability:
        """A recipe with the lane and the terms that the project's catalog has for its name."""
        with suppress(UnknownCapability):
            listed = project.lookup(recipe.name)
            return msgspec.structs.replace(
                recipe, lane=listed.lane, authority=listed.authority, agent_terms=listed.agent_terms
            )
        return recipe

    def _shown(self, capability: Capability) -> dict[str, Any]:
        shown: dict[str, Any] = msgspec.to_builtins(capability)
        accepted = not self._recipes or capability.name in self._recipes
        return {**shown, "dispatchable": accepted, "dispatch_lanes": list(self._lanes) if accepted else []}

    async def _lookup(self, args: dict[str, Any], _: Progress) -> dict[str, Any]:
        catalog = await self._capabilities()
        try:
            found = catalog.lookup(args["name"])
        except UnknownCapability as error:
            raise ToolError(str(error)) from None
        return {"capability": self._shown(found), "catalog_id": catalog.catalog_id}

    async def _list_by_lane(self, args: dict[str, Any], _: Progress) -> dict[str, Any]:
        catalog = await self._capabilities()
        found, lane = [*catalog], args.get("lane")
        if lane is not None:
            lanes = {each.lane for each in found if each.lane is not None} | set(self._lanes)
            if lane not in lanes:
                raise ToolError(f"no capability is in lane {lane!r}{_similar(lane, lanes)}")
            found = [e for e in found if e.lane == lane or (lane in self._lanes and e.name in self._recipes)]
        shown = [self._shown(each) for each in found]
        for each in shown:
            each.pop("input_schema", None)
        return {"catalog_id": catalog.catalog_id, "lanes": list(self._lanes), "capabilities": shown}

    # --- Tuples.

    async def _dispatch(self, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
        lane = args.get("lane", self._lanes[0])
        if lane not in self._lanes:
            raise ToolError(f"this server puts no tuples into lane {lane!r}{_similar(lane, self._lanes)}")
        payload = self._payload(args)
        terms = self._terms({**await self._usual_terms(payload), **args.get("agent_terms", {})})
        named = sorted({self._recipes[step["yool"]][0] for step in payload}) if self._recipes else []

        def make(payload: Sequence[Mapping[str, Any]]) -> WorkTuple:
            return new_tuple(
                lane,
                payload,
                map_pos=args.get("map_pos"),
                authority=self._authority | ({"recipes": named} if named else {}),
                agent_terms=terms,
                src_ptr=args.get("src_ptr", ()),
                flags=args.get("flags") or None,
            )

        try:
            work = await run_in_thread(lambda: self._with_files(payload, make))
        except TupleError as error:
            raise ToolError(str(error)) from None
        catalog = await self._capabilities()
        for step in work.payload:
            with suppress(UnknownCapability):
                if (why := refusal(step.yool, catalog.lookup(step.yool).authority, work)) is not None:
                    raise ToolError(f"{why}. Nothing was put")

        def put() -> list[bool]:
            if self._budget_is_spent() and self._store.get(work.id) is None:
                raise ToolError(
                    "the budget that all tuples of this server share is spent. Nothing was put. Its operator can raise it"
                )
            return self._store.put([work], max_waiting=self._limits.max_waiting, budget=self._budget)

        try:
            [new] = await run_in_thread(put)
        except SpaceFull:
            raise ToolError(
                f"lane {lane!r} is full: {self._limits.max_waiting} tuples wait in it. Nothing was put into it. Try again "
                "when workers have taken some"
            ) from None
        await progress(f"put into lane {lane}" if new else f"known in lane {lane}: the same work was dispatched before")
        wait_s = args.get("wait_s", 0)
        state = await self._wait(work.id, progress if wait_s else _silent, until="end", timeout_s=wait_s)
        return {**state, "new": new, "agent_terms": terms, "hint": _hint(state, new)}

    def _with_files(
        self, payload: Sequence[Mapping[str, Any]], make: Callable[[Sequence[Mapping[str, Any]]], WorkTuple]
    ) -> WorkTuple:
        """The tuple with the digests of the files on which its casts depend. While the same work waits or runs, it is reused,
        because its own writes do not make new work. Raises `TupleError`."""
        work = make(payload)
        digests = {name: find() for name, find in self._files.items() if any(s["yool"] == name for s in payload)}
        if not any(digests.values()):
            return work

        def with_inputs(inputs: Sequence[str]) -> WorkTuple:
            pairs = zip(payload, inputs, strict=True)
            return make([{**s, "args": {**s["args"], **({"inputs": each} if each else {})}} for s, each in pairs])

        given = {key: value for key, value in work.document.items() if key in ("lane", "payload", "map_pos")}
        running = self._store.read(Pattern(given))
        if running is not None and len(running.payload) == len(payload):
            same = with_inputs([(step.args or {}).get("inputs", "") for step in running.payload])
            if same.id == running.id:
                return same
        return with_inputs([digests.get(step["yool"], "") for step in payload])

    def _budget_is_spent(self) -> bool:
        return self._budget is not None and any(each.is_spent for each in self._store.budgets(self._budget))

    def _payload(self, args: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The steps, with the recipes of this server. Raises `ToolError`."""
        recipe, intent, payload = args.get("recipe"), args.get("intent"), args.get("payload")
        if payload is None:
            if recipe is None or intent is None:
                raise ToolError("tuple.dispatch needs recipe and intent, or payload")
            if not self._recipes:
                raise ToolError("this server was started without recipes; give payload")
            return [self._checked({"yool": cast_yool(recipe), "args": {"intent": intent}}, recipe)]
        if recipe is not None or intent is not None:
            raise ToolError("give recipe and intent, or payload, not both")
        if not self._recipes:
            return [dict(step) for step in payload]
        return [self._checked(step, step["yool"]) for step in payload]

    def _checked(self, step: Mapping[str, Any], name: str) -> dict[str, Any]:
        """A step that casts a recipe of this server, with the digest of its text."""
        if step["yool"] not in self._recipes:
            known = [short for short, _ in self._recipes.values()] if name != step["yool"] else list(self._recipes)
            raise ToolError(f"this server does not dispatch {name!r}{_similar(name, known)}")
        _, recipe = self._recipes[step["yool"]]
        args = step.get("args", {})
        for key in args.keys() - {"intent", "recipe", "project"}:
            raise ToolError(f"{recipe.name} has no argument {key!r}; it has intent")
        intent = args.get("intent")
        if not isinstance(intent, str) or not intent.strip():
            raise ToolError(f"{recipe.name} needs the argument intent, a text that is not empty")
        if args.get("recipe", recipe.version) != recipe.version:
            raise ToolError(f"{recipe.name} has another text now; leave out the argument recipe")
        if args.get("project", self._project) != self._project:
            raise ToolError(f"this server works in another project; leave out the argument project of {recipe.name}")
        own = {"project": self._project} if self._project else {}
        return {**step, "args": {"intent": intent, "recipe": recipe.version, **own}}

    async def _usual_terms(self, payload: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The terms in the catalog for the first of these yools that has some."""
        catalog = await self._capabilities()
        for step in payload:
            with suppress(UnknownCapability):
                terms: dict[str, Any] = msgspec.to_builtins(catalog.lookup(step["yool"]).agent_terms)
                if terms:
                    return terms
        return {}

    def _terms(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The terms that the client wants, limited to those that the operator allows."""
        terms = dict(wanted)
        for name, most in (
            ("budget_usd", self._limits.max_usd),
            ("budget_tokens", self._limits.max_tokens),
            ("max_retries", self._limits.max_retries),
        ):
            if most is not None:
                terms[name] = min(terms.get(name, most), most)
        return terms

    async def _observe(self, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
        return await self._wait(
            args["tuple_id"],
            progress,
            until=args.get("until", "end"),
            timeout_s=args.get("timeout_s", DEFAULT_WAIT_S),
            known=args.get("if_none_match"),
        )

    async def _wait(
        self, tuple_id: str, progress: Progress, *, until: str, timeout_s: float, known: str | None = None
    ) -> dict[str, Any]:
        """Wait until a tuple has ended or changed, or the time is over. Returns its state."""
        begun = anyio.current_time()
        end, told, before = begun + timeout_s, begun, None
        story, events = Story(), list[dict[str, Any]]()
        with self._watching():
            while True:
                changed = self._changed
                state, new = await self._state(tuple_id, story)
                now = anyio.current_time()
                if before is not None:
                    # What was before the call is in the answer itself.
                    events += new
                    for each in new:
                        if each["event"] == "step" and state["steps"] > 1:
                            await progress(sentence(each))
                if before is None or state["etag"] != before["etag"]:
                    before, told = state, now
                    await progress(_sentence(state))
                elif now - told >= _SIGN_S:
                    told = now
                    await progress(f"{_sentence(state)}, for {now - begun:.0f} s")
                known = known or state["etag"]
                if state["ended"] or (until == "change" and state["etag"] != known) or now >= end or self._stopped:
                    return {**state, "events": events} if events else state
                with anyio.move_on_after(min(end - now, _SIGN_S)):
                    await changed.wait()

    @contextmanager
    def _watching(self) -> Iterator[None]:
        self._watchers += 1
        self._someone_watches.set()
        try:
            yield
        finally:
            self._watchers -= 1

    async def _state(self, tuple_id: str, story: Story) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The state of a tuple, with its events since the last look."""

        def read() -> tuple[StoredTuple | None, list[StoredReceipt], bool]:
            # First the state: when it is final, all receipts are there.
            stored = self._store.get(tuple_id)
            if stored is None:
                return None, [], False
            return stored, self._store.receipts(tuple_id), stored.state == "waiting" and self._budget_is_spent()

        stored, receipts, budget_is_spent = await run_in_thread(read)
        if stored is None or stored.work.lane not in self._lanes:
            raise ToolError(
                f"no tuple {tuple_id} is in {self._named_lanes()}; tuple.dispatch returns the id of a tuple"
            )
        return _state(stored.work, stored, receipts, budget_is_spent), story.told(stored, receipts)

    async def _receipt(self, args: dict[str, Any], _: Progress) -> dict[str, Any]:
        identity = args["receipt_id"]

        def read() -> tuple[StoredReceipt | None, StoredTuple | None]:
            receipt = self._store.receipt(identity)
            return receipt, self._store.get(identity if receipt is None else receipt.document["tuple_id"])

        receipt, stored = await run_in_thread(read)
        if stored is None or stored.work.lane not in self._lanes:
            raise ToolError(
                f"no receipt {identity} is in {self._named_lanes()}; tuple.observe names the receipts of a tuple"
            )
        if receipt is None:
            raise ToolError(f"{identity} is the id of a tuple; tuple.observe names its receipts")
        if not is_genuine(receipt.document):
            log.error("receipt %s is damaged: its content does not have this id", identity)
            raise ToolError(f"receipt {identity} is damaged: its content does not have this id")
        document, answer = receipt.document, {"etag": identity[7:39], "receipt": receipt.document}
        if document["artifacts"]:
            result = await run_in_thread(lambda: read_result(self._store, document))
            if result != document.get("result"):
                answer |= {"etag": f"{identity[7:39]}+", "result": result}
        return answer

    def _named_lanes(self) -> str:
        return f"lane{'s' if len(self._lanes) > 1 else ''} {', '.join(self._lanes)}"


def _state(
    work: WorkTuple, stored: StoredTuple, receipts: Sequence[StoredReceipt], budget_is_spent: bool
) -> dict[str, Any]:
    """The state of a tuple as clients see it, with its etag."""
    steps = [each for each in receipts if each.step is not None]
    last = next((each.document for each in receipts if each.step is None), None)
    running = (stored.progress or {}).get("cost")
    costs = [each.document["cost"] for each in steps] + ([running] if isinstance(running, Mapping) else [])
    state: dict[str, Any] = {
        "tuple_id": work.id,
        "lane": work.lane,
        "state": stored.state,
        "ended": stored.state in _FINAL,
        "attempts": stored.attempts,
        "steps": len(work.payload),
        "cost": last["cost"] if last is not None else add_costs(costs),
        "receipts": [
            {
                "receipt_id": each.document["id"],
                "step": each.step,
                "yool": each.document["yool"],
                "exit": each.document["exit"],
                **({"reused": each.document["reused"]} if "reused" in each.document else {}),
            }
            for each in receipts
        ],
    }
    if stored.error is not None:
        state["error"] = stored.error
    if budget_is_spent:
        state["budget_spent"] = True
    if last is not None:
        state["receipt_id"] = last["id"]
    return {"etag": content_id(state)[7:39], **state}


def _sentence(state: Mapping[str, Any]) -> str:
    """Describe a state for somebody who waits."""
    lane, attempts, error = state["lane"], state["attempts"], state.get("error")
    done = sum(each["step"] is not None for each in state["receipts"])
    if state["state"] == "waiting":
        if "budget_spent" in state:
            return f"waits in lane {lane}: the budget that all tuples of this server share is spent"
        again = f"; attempt {attempts} failed: {error}" if error and attempts else ""
        return f"waits in lane {lane} for a worker{again}"
    if state["state"] == "claimed":
        steps = f", {done} of {state['steps']} steps are done" if state["steps"] > 1 else ""
        usd = state["cost"]["usd"]
        cost = f", ${usd:.4f} so far" if usd is not None else ""
        return f"a worker runs it{steps}{cost}" + (f" (attempt {attempts})" if attempts > 1 else "")
    return f"failed: {error}" if state["state"] == "failed" else str(state["state"])


def _hint(state: Mapping[str, Any], new: bool) -> str:
    if state["ended"]:
        again = "" if new else ' To do it again, give another number in map_pos, such as {"sample": 1}.'
        return f"receipt.get with receipt_id returns the result.{again}" if "receipt_id" in state else again.strip()
    return "tuple.observe with tuple_id waits for the end."


def _similar(name: str, known: Any) -> str:
    """The end of an error text: similar names, or all names if there are few."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 3, 0.5)
    if near:
        return f"; similar: {', '.join(near)}"
    if names and len(names) <= 10:
        return f"; known: {', '.join(names)}"
    return "; catalog.list_by_lane lists what is known" if names else ""


async def _silent(_: str) -> None:
    """Report nothing."""
