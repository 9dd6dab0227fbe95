"""Loaded modules: checks the modules of one entity, loads them into a worker process, and makes their functions gates.

If the worker is lost, the next call starts a new one and loads the modules again from the checked text. The gates stay, but
the values of the modules' variables are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.gates.loaded.policy import Module, check_module
from cantrip_acp.gates.loaded.worker_process import ModuleWorker, WorkerAnswer, WorkerLost
from cantrip_acp.sandbox import clean, messages
from cantrip_acp.types.errors import DefinitionError, GateError, SandboxError

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView, GateRegistrar

MOST_MODULES = 32
_LARGEST_SCHEMA = 20_000
_DEEPEST = 10
_LOST = "The variables of the loaded modules are lost. The next call of one of their gates loads the modules again"


@dataclass(frozen=True, slots=True)
class _Loaded:
    module: Module
    gates: Mapping[str, Gate]


class LoadedModules:
    """The session of `compile_and_load` for one entity."""

    def __init__(self, registrar: GateRegistrar, circle: CircleView) -> None:
        self._registrar = registrar
        self._circle = circle
        self._process = ModuleWorker(circle)
        self._lock = anyio.Lock()
        self._loaded: dict[str, _Loaded] = {}
        self._closed = False

    async def call(self, args: Mapping[str, Any], context: GateContext) -> GateReply:
        """Load a module. Raises `GateError` if a ward refuses it (the text names the ward) or if the module fails."""
        module = check_module(args, context.wards, context.workspace)
        async with self._lock:
            before = self._loaded.get(module.name)
            if before is None and len(self._loaded) >= MOST_MODULES:
                raise GateError(
                    f"{MOST_MODULES} modules are loaded, which is the limit", "load one of them again to replace it"
                )
            notes = await self._ensure_worker(without=module.name)
            try:
                gates = await self._load(module)
            except GateError:
                if before is not None and not self._process.alive:
                    raise
                if before is not None:
                    # The worker may run without the old module. End it, so that the next call starts one with it.
                    self._process.close()
                raise
            self._loaded.pop(module.name, None)
            self._loaded[module.name] = _Loaded(module, gates)
            lost = set(before.gates) - set(gates) if before is not None else set[str]()
            self._registrar.change(gates, lost)
        described = [{"name": g.name, "signature": g.signature(), "description": _first(g)} for g in gates.values()]
        result: dict[str, Any] = {**module.record(), "gates": described, "how": self._how()}
        if before is not None:
            result["replaced"] = before.module.sha256
        if lost:
            result["removed"] = sorted(lost)
        if notes:
            result["notes"] = notes
        return GateReply(result, title=f"Load {module.name}")

    def _how(self) -> str:
        tool = self._circle.medium.tool
        if tool is None:
            return "the gates are tools from the next query on"
        if tool == "bash":
            return "the gates are commands now, each also as cantrip_NAME"
        return "the gates are functions now"

    # The worker

    async def _ensure_worker(self, without: str | None = None) -> list[str]:
        """Start a worker with all loaded modules if none runs. Leave out the module ``without``, which is loaded next.

        Modules that cannot be loaded again are removed. Returns a note for each of them.
        """
        if self._closed:
            raise GateError("the entity has ended")
        if self._process.alive:
            return []
        try:
            await self._process.start()
        except (SandboxError, DefinitionError) as error:
            raise GateError(f"cannot start the worker process for modules: {error}") from error
        notes: list[str] = []
        for name, loaded in list(self._loaded.items()):
            if name == without:
                continue
            try:
                if not self._process.alive:
                    await self._process.start()
                await self._load(loaded.module)
            except (GateError, SandboxError) as error:
                del self._loaded[name]
                self._registrar.change({}, set(loaded.gates))
                notes.append(f"{name} could not be loaded again, and its gates are gone: {error}")
                if not self._process.alive:
                    # The worker ended, and with it the modules that were already loaded. Start again.
                    return notes + await self._ensure_worker(without)
        return notes

    async def _load(self, module: Module) -> dict[str, Gate]:
        """Load one module into the worker, and return its gates. If it raises `GateError`, the older version stays."""
        taken = dict(self._registrar.reserved)
        for name, other in self._loaded.items():
            if name != module.name:
                taken.update(dict.fromkeys(other.gates, f"{name} offers a gate of that name"))
        command = {"t": "load", "module": module.name, "source": module.source, "taken": taken}
        try:
            said = await self._process.ask(command)
        except WorkerLost as error:
            raise GateError(f"{module.name} ended its worker while it was loaded: {error}. {_LOST}") from None
        answer = said.answer
        if answer.error is not None or not isinstance(answer, messages.ModuleLoaded):
            raise GateError(f"{module.name} could not be loaded:\n{_failure(said, self._circle)}")
        gates: dict[str, Gate] = {}
        for offer in answer.gates:
            why = taken.get(offer.name) or self._registrar.name_problem(offer.name)
            if why is None and offer.name in gates:
                why = "it is offered twice"
            if why is None:
                why = _argument_problem(offer)
            if why is not None:
                # A correct worker never offers such a function, so the module has manipulated the worker.
                self._process.close()
                raise GateError(f"{module.name} cannot offer {offer.name[:80]!r}: {why}")
            gates[offer.name] = self._gate(module, offer)
        if not gates:
            self._process.close()
            raise GateError(f"{module.name} offers no function")
        return gates

    def _gate(self, module: Module, offer: messages.OfferedFunction) -> Gate:
        properties: dict[str, Any] = {}
        for each in offer.parameters:
            properties[each.name] = msgspec.to_builtins(each.schema)
            if each.default is not msgspec.UNSET:
                properties[each.name]["default"] = each.default
        texts = [n for n, s in properties.items() if s.get("type") == "string"]
        return Gate(
            name=offer.name,
            description=clean(offer.doc).strip() or f"A function of {module.name}.",
            parameters={
                "type": "object",
                "properties": properties,
                "required": [each.name for each in offer.parameters if each.required],
                "additionalProperties": False,
            },
            handler=partial(self._call, module.name, offer.name),
            kind="execute",
            main_text=texts[0] if len(texts) == 1 else None,
        )

    async def _call(self, name: str, gate: str, args: Mapping[str, Any], context: GateContext) -> GateReply:
        """Call a function of a loaded module."""
        try:
            msgspec.json.encode(args)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise GateError(f"the arguments are not JSON data: {error}") from None
        async with self._lock:
            notes = await self._ensure_worker()
            loaded = self._loaded.get(name)
            if loaded is None or gate not in loaded.gates:
                raise GateError("\n".join([f"{gate} does not exist any more", *notes]))
            try:
                said = await self._process.ask({"t": "call", "module": name, "gate": gate, "args": dict(args)})
            except WorkerLost as error:
                raise GateError(f"{gate} ended the worker of {name}: {error}. {_LOST}") from None
        if said.answer.error is not None or not isinstance(said.answer, messages.FunctionAnswer):
            raise GateError(_failure(said, self._circle))
        return GateReply(said.answer.result, annotations={"module": name, "sha256": loaded.module.sha256})

    async def close(self) -> None:
        """End the worker. Safe to call twice."""
        self._closed = True
        self._process.close()


def _argument_problem(offer: messages.OfferedFunction) -> str | None:
    """Say what is wrong with a function's arguments; None if they can be used as a gate's arguments."""
    names = [each.name for each in offer.parameters]
    if len(set(names)) < len(names) or not all(n.isidentifier() and n.isascii() for n in names):
        return "its arguments must have different names of ASCII letters, digits and _"
    if any(_depth(each.schema) > _DEEPEST for each in offer.parameters):
        return "the types of its arguments are nested too deeply"
    if len(msgspec.json.encode(offer.parameters)) > _LARGEST_SCHEMA:
        return "the schema of its arguments is too long"
    return None


def _depth(schema: messages.Schema) -> int:
    inside = [*(schema.anyOf or ()), *((schema.items,) if schema.items else ())]
    deepest, level = 0, inside
    while level and deepest <= _DEEPEST:
        deepest += 1
        level = [s for each in level for s in [*(each.anyOf or ()), *((each.items,) if each.items else ())]]
    return deepest


def _failure(said: WorkerAnswer, circle: CircleView) -> str:
    """Format an error or a time-out, with the text that was printed before it."""
    parts = [clean(said.answer.error or "it answered another call")]
    if said.timed_out:
        parts.append(f"timed out after {circle.wards.code_timeout_ms} ms (code_timeout_ms)")
    if said.printed.strip():
        parts.append(f"[printed]\n{said.printed.rstrip()}")
    return "\n".join(parts)


def _first(gate: Gate) -> str:
    return gate.description.split("\n")[0].strip()
