"""Gate executor: runs every gate call of every medium (CIRCLE-3..7, CIRCLE-10).

A call has these steps: find the gate, parse and validate the arguments, run the chain of interceptors, run the handler with
its bound dependencies, redact secrets. Every failure becomes an observation, not an exception. Only cancellation and a loom
that cannot be written raise.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import logging
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec

from cantrip_acp.core.running_calls import STOPPED_BY_USER, RunningCalls
from cantrip_acp.gates import registry
from cantrip_acp.gates.contract import (
    EditInterceptor,
    Gate,
    GateContext,
    GateInvocation,
    GateReply,
    Interceptor,
    InterceptorBase,
    Proceed,
    ProgramInterceptor,
)
from cantrip_acp.gates.dynamic_gates import DynamicGates
from cantrip_acp.gates.known_texts import KnownTexts
from cantrip_acp.telemetry import genai_spans, tracing
from cantrip_acp.text.defaults import complete
from cantrip_acp.text.json_data import NotJson, encodable, freeze, plain, thaw
from cantrip_acp.text.json_fit import fit, has_float
from cantrip_acp.text.json_schema import Schema
from cantrip_acp.text.logs import logger
from cantrip_acp.text.redaction import shared
from cantrip_acp.types import events
from cantrip_acp.types.errors import GateError, GateFault, describe, interrupts, own_frame
from cantrip_acp.types.file_changes import changes_of
from cantrip_acp.types.messages import Attachment
from cantrip_acp.types.records import GateRecord

if TYPE_CHECKING:
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.core.event_hub import EventHub
    from cantrip_acp.core.state import FileCheckpoints
    from cantrip_acp.gates.contract import CircleView, GateRegistrar, GateSession, ProgramCall
    from cantrip_acp.gates.ports import Network, TurnContext
    from cantrip_acp.gates.services import Services

_log = logger(__name__)
_decode = msgspec.json.Decoder().decode
_SHOWN_ERRORS = 5
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_STOPPED = freeze({"stopped": True})
_TITLE = 1_000
"""The most characters of a title."""


class GateExecutor:
    """Calls the gates of one circle for one entity, and the gates that the entity added (`dynamic_gates`)."""

    def __init__(
        self,
        circle: Circle,
        *,
        hub: EventHub,
        interceptors: Sequence[Interceptor] = (),
        depth: int = 0,
        running: RunningCalls | None = None,
        services: Services | None = None,
    ) -> None:
        self.services = services
        self._running = running or RunningCalls()
        self.checkpoints: FileCheckpoints | None = None
        """The keeper of the files, which must know about every change of them."""
        self._circle = circle
        self._gates = circle.gates
        self.dynamic_gates = DynamicGates(circle)
        self.known_texts = KnownTexts()
        self.faults: list[str] = []
        """Errors in the code of gates, each with its file and line, for people."""
        self.source_problems: Sequence[str] = ()
        """The problems of gate sources, such as MCP servers, that cannot be used."""
        self._sessions: dict[str, GateSession] = {}
        self._hub = hub
        self._depth = depth
        self._validators: dict[str, tuple[Gate, Any]] = {}
        found: list[Any] = sorted(interceptors, key=lambda each: complete(each, InterceptorBase).innermost)
        self._program_interceptors = [each for each in found if isinstance(each, ProgramInterceptor)]
        self._edit_interceptors = [each for each in found if isinstance(each, EditInterceptor)]
        self._chain: Proceed = self._start
        for interceptor in reversed(found):
            self._chain = _link(interceptor, self._chain)

    async def execute(
        self,
        name: str,
        args: Mapping[str, Any] | str,
        *,
        call_id: str,
        entity_id: str,
        cast_id: str,
        trace: tracing.Trace,
        tool_call_id: str | None = None,
        via: str | None = None,
        program: int | msgspec.UnsetType = msgspec.UNSET,
        turn: TurnContext | None = None,
        own: Gate | None = None,
        cut: Callable[[GateRecord], None] = lambda record: None,
    ) -> GateRecord:
        """Make one gate call. ``call_id`` is its id in events, ``tool_call_id`` the crystal's id for it, ``via`` the id of
        the command that makes it and ``program`` the index of that command (`GateRecord.via`). If a cancel interrupts the
        call, ``cut`` receives its record without a result. ``own``: a gate that the circle does not have."""
        gate = own or self._gates.get(name) or self._added(name) or registry.child_function(self._circle, name)
        parsed, problem = _parse(args)
        if type(parsed) is list and gate is not None and gate.json_input:
            # Code may pass the list of a batch directly, without a mapping.
            parsed, problem = {gate.main_text: parsed}, None
        refusal = None
        if gate is None:
            text, short = map(encodable, self._unavailable_message(name))
            refusal = GateReply(text, is_error=True, annotations={"error": short})
        else:
            if problem is None:
                parsed, problem = self._fitted(gate, parsed)
            if problem is not None:
                problem = encodable(problem)
                why = problem.removeprefix("arguments do not fit ")
                for_people = {"error": f"the model sent arguments that do not fit this tool: {why}"}
                refusal = GateReply(problem, is_error=True, annotations=for_people)
        context = self._context(gate, entity_id, cast_id, trace.trace_id, call_id, turn)
        kept = self._recorded_args(gate, parsed)  # A copy, because the handler may change its arguments.
        called = self._call_event(gate, name, parsed, kept, context, via)
        record = _running_record(called, tool_call_id, program)
        try:
            return await self._finish(record, called, gate, parsed, refusal, kept, context, trace)
        except anyio.get_cancelled_exc_class():
            cut(record)
            raise

    def _context(
        self, gate: Gate | None, entity_id: str, cast_id: str, trace_id: str, call_id: str, turn: TurnContext | None
    ) -> GateContext:
        return GateContext(
            gate.dependencies if gate is not None else {},
            self._circle.wards,
            self._circle.workspace,
            entity_id,
            cast_id,
            trace_id,
            call_id,
            self._circle.folders,
            turn,
            self.known_texts,
            self.services,
        )

    def shared_network(self) -> Network | None:
        """The sandbox whose network the entity's programs join; None while it has no services."""
        return self.services.shared if self.services is not None else None

    async def _finish(
        self,
        record: GateRecord,
        called: events.GateCalled,
        gate: Gate | None,
        args: Mapping[str, Any],
        refusal: GateReply | None,
        kept: Any,
        context: GateContext,
        trace: tracing.Trace,
    ) -> GateRecord:
        """Run a call that has no ``refusal``, and send its events. Returns its record with the result."""
        hub = self._hub
        if hub.active:
            await hub.send(called)
        if refusal is not None or gate is None:
            reply = refusal or GateReply(None, is_error=True)
        else:
            invocation = GateInvocation(gate, args, called.call_id, called.via, context, called.locations)
            with genai_spans.execute_tool(
                record.gate,
                trace,
                call_id=record.tool_call_id or called.call_id,
                args=kept,
                entity_id=context.entity_id,
                description=gate.description,
            ) as span:
                with self._running.stoppable(called.call_id) as scope:
                    reply = await self._run_chain(invocation)
                if scope.cancelled_caught:
                    reply = GateReply(STOPPED_BY_USER, is_error=True, annotations={"stopped": True})
                if span is not None:
                    span.ended(reply.result, "gate_error" if reply.is_error else None)
        # Here, because a secret that is divided between what a change keeps and what it adds cannot be seen in the record.
        reply = shared().masked(reply)
        changes = changes_of(reply.diffs, called.args) if reply.diffs else ()
        title, unset = reply.title or None, msgspec.UNSET
        record = msgspec.structs.replace(
            record,
            result=reply.result,
            is_error=reply.is_error,
            annotations=reply.annotations or unset,
            title=record.title if title is None else unset if title == record.gate else title,
            locations=reply.locations or record.locations,
            diffs=changes or unset,
            attachments=reply.attachments or unset,
        )
        if hub.active:
            finished = events.GateFinished(
                entity_id=context.entity_id,
                cast_id=context.cast_id,
                depth=self._depth,
                call_id=called.call_id,
                record=record,
                diffs=reply.diffs,
            )
            await hub.send(finished)
            if reply.plan is not None and not reply.is_error:
                await hub.send(
                    events.PlanChanged(
                        entity_id=context.entity_id, cast_id=context.cast_id, depth=self._depth, entries=reply.plan
                    )
                )
        return record

    def set_circle(self, circle: Circle) -> None:
        """Use the gates and wards of this circle for later calls. Gates that the entity added stay."""
        if self.services is not None:
            self.services.wards_changed(self._circle.wards, circle.wards)
        self._circle = circle
        self._gates = circle.gates

    @property
    def asks_about_programs(self) -> bool:
        """Whether an interceptor must be asked before each program."""
        return bool(self._program_interceptors)

    async def program_refusal(self, program: ProgramCall) -> GateReply | None:
        """Ask the interceptors about a program. Returns the first refusal; None if the program may run."""
        for interceptor in self._program_interceptors:
            try:
                reply = await interceptor.program(program)
            except BaseException as error:
                # If an interceptor fails, the program has no permission.
                if interrupts(error):
                    raise
                text = f"the program was not run: nobody could be asked for permission ({describe(error)})"
                return GateReply(text, annotations={"permission": "unasked", "error": "you could not be asked"})
            if reply is not None:
                return reply
        return None

    def announce(
        self, calls: Iterable[tuple[str, str]], *, entity_id: str, cast_id: str, trace_id: str, turn: TurnContext
    ) -> None:
        """Tell the interceptors which edits of files an utterance will make, by the names and arguments of its calls. Calls
        that would fail are left out."""
        if not self._edit_interceptors:
            return
        found = []
        for name, args in calls:
            gate = self._gates.get(name)
            if gate is None or gate.kind != "edit" or gate.proposes is None or gate.opens is not None:
                continue
            parsed, problem = _parse(args)
            if problem is None:
                parsed, problem = self._fitted(gate, parsed)
            if problem is not None:
                continue
            context = self._context(gate, entity_id, cast_id, trace_id, "", turn)
            found.append(GateInvocation(gate, parsed, "", None, context))
        for interceptor in self._edit_interceptors:
            interceptor.coming(found, entity_id, self._depth)

    async def _start(self, invocation: GateInvocation) -> GateReply:
        """Run the handler, after every interceptor has allowed the call."""
        if self._hub.active:
            context = invocation.context
            started = events.GateStarted(
                entity_id=context.entity_id,
                cast_id=context.cast_id,
                depth=self._depth,
                call_id=invocation.call_id,
                gate=invocation.gate.name,
            )
            await self._hub.send(started)
        if self.checkpoints is None:
            return await _run(invocation)
        async with self.checkpoints.call(invocation.gate, self._circle, invocation.locations) as wrote:
            reply = await _run(invocation)
            wrote(os.fspath(each.path) for each in reply.diffs)
        return reply

    def _with_session(self, gate: Gate, opens: Callable[[GateRegistrar, CircleView], GateSession]) -> Gate:
        """The gate with the handler of the session that it has for this entity."""
        session = self._sessions.get(gate.name)
        if session is None:
            session = self._sessions[gate.name] = opens(self.dynamic_gates, self._circle)
        return replace(gate, handler=session.call)

    async def close(self) -> None:
        """End the services and close the gates' sessions. Safe to call twice."""
        if self.services is not None:
            await self.services.close()
        while self._sessions:
            name, session = self._sessions.popitem()
            try:
                await session.close()
            except BaseException as error:
                # Close the other sessions even if one fails.
                if interrupts(error):
                    raise
                self._log_failure(f"cannot close the session of gate {name}")

    async def _run_chain(self, invocation: GateInvocation) -> GateReply:
        """Run the chain of interceptors. Every failure becomes an error reply (CIRCLE-5, D-011)."""
        gate = invocation.gate
        try:
            if gate.opens is not None:
                invocation = replace(invocation, gate=self._with_session(gate, gate.opens))
            reply = await self._chain(invocation)
            if not isinstance(reply, GateReply):
                raise TypeError(f"an interceptor must return a GateReply, not {type(reply).__name__}")
            return _check_reply(reply)
        except GateError as error:
            said = describe(error)
            return GateReply(said, is_error=True, annotations={} if error.what == said else {"error": error.what})
        except NotJson as error:
            return GateReply(f"gate {gate.name!r} returned a value that cannot be recorded: {error}", is_error=True)
        except Exception as error:
            # A handler of another package may raise any error. The entity gets its message, and the debug log its
            # traceback.
            if interrupts(error):
                raise
            self._log_failure(f"gate {gate.name} failed")
            self._report_fault(gate, error)
            return GateReply(str(error) if isinstance(error, _Failed) else describe(error), is_error=True)

    def _report_fault(self, gate: Gate, error: Exception) -> None:
        """Tell the person who wrote a gate where it failed. The entity reads only the kind and the text of the error."""
        place = own_frame(error)
        if place is None:
            return
        file, line, function = place
        text = f"gate {gate.name} failed: {describe(error)} ({file}:{line}, in {function})"
        if text not in self.faults and len(self.faults) < _MOST_FAULTS:
            self.faults.append(text)
            with contextlib.suppress(Warning):
                # A program that makes errors of warnings has the one in the result.
                # Its text may hold a secret, and warnings pass no door. It is in the result.
                warnings.warn_explicit(f"gate {gate.name} failed: {type(error).__name__}", GateFault, file, line)

    def _log_failure(self, what: str) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s\n%s", what, traceback.format_exc())

    def _recorded_args(self, gate: Gate | None, args: Any) -> Any:
        try:
            if gate is not None and gate.recorded is not None and isinstance(args, dict):
                args = gate.recorded(args)
            return plain(args)
        except NotJson as error:
            return f"[arguments that cannot be recorded: {error}]"
        except Exception as error:  # noqa: BLE001
            self._log_failure("arguments could not be recorded")
            return f"[arguments that cannot be recorded: {type(error).__name__}]"

    def _added(self, name: str) -> Gate | None:
        """Find a gate that the entity added and no ward removes."""
        return None if name in self._circle.wards.remove_gate else self.dynamic_gates.gates.get(name)

    def _unavailable_message(self, name: str) -> tuple[str, str]:
        """Why a gate cannot be called: a text for the crystal, and a shorter one for people."""
        short = f"there is no gate {name!r} here."
        if name in registry.DELEGATION | registry.CHILD_FUNCTIONS and self._circle.wards.max_depth == 0:
            why = "max_depth is 0 here, so no child can be spawned."
            has = f"Do the work with what this circle has: {', '.join(self._gates)} (COMP-6)."
            return f"gate not available: {name!r}. {why} {has}", f"{short} {why}"
        present = [*self._gates, *(each for each in self.dynamic_gates.gates if self._added(each) is not None)]
        available = ", ".join(present)
        bare = _bare_name(name)
        near = [bare] if bare in present else difflib.get_close_matches(bare, present, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        server = f"MCP server {name.partition('.')[0]!r} "
        why = next((f" {problem}." for problem in self.source_problems if problem.startswith(server)), "")
        removed = " The ward remove_gate removes it." if name in self._circle.wards.remove_gate else hint
        # People have read already why the server cannot be used.
        lost = " Its server cannot be used." if why else removed
        return f"gate not available: {name!r}. This circle has: {available}.{hint}{why}", f"{short}{lost}"

    def _fitted(self, gate: Gate, args: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
        """Convert the arguments to the types in the gate's schema. The second value says why they still do not fit; None if
        they do."""
        with contextlib.suppress(RecursionError):
            if has_float(args):
                # For JSON Schema 3.0 is an integer, and for the gate's code it is not.
                args = fit(args, gate.parameters, nulls=False)
        problem = self._schema_error(gate, args)
        if problem is None:
            return args, None
        # Some models, and commands in a shell, give data as a text of JSON.
        decoded = _decode_texts(args)
        with contextlib.suppress(RecursionError):
            for texts in (False, True):
                for tried in (args, decoded):
                    if tried is not None:
                        made = fit(tried, gate.parameters, texts=texts)
                        if made is not args and self._schema_error(gate, made) is None:
                            return made, None
        return args, problem

    def _schema_error(self, gate: Gate, args: Mapping[str, Any]) -> str | None:
        """Say why the arguments do not fit the gate's schema; None if they fit."""
        known, validator = self._validators.get(gate.name, (None, None))
        try:
            if validator is None or known is not gate:
                validator = _validator(gate.parameters)
                self._validators[gate.name] = (gate, validator)
        except Exception as bad:  # noqa: BLE001
            return f"gate {gate.name!r} cannot be called: its parameters are not a valid JSON Schema ({describe(bad)})"
        try:
            if validator.is_valid(args):
                return None
        except (ValueError, TypeError, OverflowError, RecursionError) as unfit:
            return f"arguments do not fit gate {gate.signature()}: they are not JSON data ({unfit})"
        missing = [name for name in gate.required if name not in args]
        if missing:
            plural = "s" if len(missing) > 1 else ""
            return f"missing required argument{plural} {', '.join(map(repr, missing))} of gate {gate.signature()}"
        problems = validator.problems(args, _SHOWN_ERRORS)
        return f"arguments do not fit gate {gate.signature()}: " + "; ".join(p[:500] for p in problems)

    def _call_event(
        self, gate: Gate | None, name: str, args: Any, kept: Any, context: GateContext, via: str | None
    ) -> events.GateCalled:
        title, locations = name, ()
        if gate is not None and gate.preview is not None:
            try:
                seen = _check_reply(gate.preview(args, context))
                title, locations = seen.title or name, seen.locations  # type: ignore[assignment]
            except BaseException as error:
                # Invalid arguments have no preview. The call itself reports the error.
                if interrupts(error):
                    raise
                self._log_failure(f"no preview of {name}")
        return events.GateCalled(
            entity_id=context.entity_id,
            cast_id=context.cast_id,
            depth=self._depth,
            call_id=context.call_id,
            gate=name,
            args=kept,
            kind=gate.kind if gate is not None else "other",
            title=title,
            locations=locations,
            via=via,
        )


def _running_record(
    called: events.GateCalled, tool_call_id: str | None, program: int | msgspec.UnsetType
) -> GateRecord:
    """The record of a running call, as the loom keeps it if a cancel interrupts the call."""
    unset = msgspec.UNSET
    return GateRecord(
        called.gate,
        called.args,
        None,
        True,
        tool_call_id,
        _STOPPED,
        program,
        called.call_id,
        unset if called.via is None else called.via,
        unset if called.title == called.gate else called.title,
        unset if called.kind == "other" else called.kind,
        called.locations or unset,
    )


_MOST_FAULTS = 20


class _Failed(Exception):
    """A handler raised a `SystemExit`, or another exception that is not an `Exception`."""


async def _run(invocation: GateInvocation) -> GateReply:
    gate = invocation.gate
    try:
        if gate.blocking:
            result = await anyio.to_thread.run_sync(
                _call, gate, invocation.args, invocation.context, abandon_on_cancel=not gate.writes
            )
        else:
            result = _call(gate, invocation.args, invocation.context)
        # Most results have one of these types, and `isawaitable` is slow.
        if not isinstance(result, str | dict | GateReply) and inspect.isawaitable(result):
            result = await result
    except BaseException as error:
        if isinstance(error, Exception) or interrupts(error):
            raise
        raise _Failed(describe(error)) from error
    return result if isinstance(result, GateReply) else GateReply(result)


def _call(gate: Gate, args: Mapping[str, Any], context: GateContext) -> Any:
    try:
        return gate.handler(args, context)
    except GeneratorExit as error:
        # The handler raised this itself. Nothing is awaited here, so no coroutine is being closed.
        raise _Failed(describe(error)) from error


def _check_reply(reply: GateReply) -> GateReply:
    """Convert a reply so that records and events can store it. Raises `NotJson` if that is not possible."""
    result = reply.result
    try:
        data = plain(result)
    except NotJson:
        if not inspect.iscoroutine(result):
            raise
        result.close()
        raise NotJson("it is a coroutine that nobody awaited") from None
    if data is not result:
        reply = msgspec.structs.replace(reply, result=data)
    if reply.title is not None:
        reply = msgspec.structs.replace(reply, title=encodable(str(reply.title)[:_TITLE]))
    if reply.attachments:
        reply = msgspec.structs.replace(reply, attachments=tuple(map(_image, reply.attachments)))
    if reply.locations or reply.diffs or reply.annotations or reply.plan is not None:
        reply = msgspec.structs.replace(
            reply,
            locations=_encodable_locations(reply.locations),
            diffs=tuple(
                events.Diff(
                    encodable(os.fspath(d.path)),
                    None if d.old_text is None else encodable(d.old_text),
                    encodable(d.new_text),
                )
                for d in reply.diffs
            ),
            annotations=plain(reply.annotations or {}),
            plan=None
            if reply.plan is None
            else tuple(msgspec.structs.replace(e, content=encodable(str(e.content))) for e in reply.plan),
        )
    return reply


def _image(attachment: Attachment) -> Attachment:
    """Convert an image so that records can store it. Raises `NotJson` if that is not possible."""
    if not isinstance(attachment, Attachment) or attachment.kind != "image":
        raise NotJson("its attachments must be images")
    if not _BASE64.fullmatch(attachment.data):
        raise NotJson("the data of an image must be base64")
    uri = None if attachment.uri is None else encodable(str(attachment.uri))
    return Attachment("image", encodable(attachment.mime), attachment.data, uri, encodable(str(attachment.title)))


def _encodable_locations(locations: Iterable[events.Location]) -> tuple[events.Location, ...]:
    return tuple(events.Location(encodable(os.fspath(each.path)), each.line) for each in locations or ())


_validator_cache: dict[int, tuple[Mapping[str, Any], Schema]] = {}
"""Validators by the id() of their schema, with that schema. Entities and their children share gates and so validators."""
_MAX_VALIDATORS = 512


def _validator(parameters: Mapping[str, Any]) -> Schema:
    known, validator = _validator_cache.get(id(parameters), (None, None))
    if validator is None or known is not parameters:
        validator = Schema(thaw(parameters))
        if len(_validator_cache) >= _MAX_VALIDATORS:
            _validator_cache.clear()
        _validator_cache[id(parameters)] = (parameters, validator)
    return validator


def _link(interceptor: Interceptor, proceed: Proceed) -> Proceed:
    async def linked(invocation: GateInvocation) -> GateReply:
        return await interceptor(invocation, proceed)

    return linked


_PREFIXES = re.compile(r"(?:to=)?(?:functions|default_api|tools?|multi_tool_use|assistant)[.:]+")
"""Prefixes that model formats put before the names of tools: Harmony's ``functions.``, Gemini's ``default_api.``."""
_MARKS = re.compile(r"<\|.*|[\s\"'`(:].*", re.DOTALL)
"""Suffixes that models leave after a name: marks of channels (``look<|channel|>commentary``), quotes, the start of arguments."""


def _bare_name(name: str) -> str:
    """The name of a tool without the decoration that a model's call format adds."""
    bare = _PREFIXES.sub("", name.strip(" \t\n\"'`"), count=1)
    return _MARKS.sub("", bare) or name


def _decode_texts(args: Mapping[str, Any]) -> dict[str, Any] | None:
    """Parse each text argument that holds a JSON object or list. None if there is no such text."""
    decoded = {name: _decode_text(value) for name, value in args.items()}
    return decoded if any(decoded[name] is not value for name, value in args.items()) else None


def _decode_text(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(msgspec.DecodeError, RecursionError, UnicodeError):
            return _decode(value)
    if isinstance(value, list) and any(isinstance(item, str) for item in value):
        items = [_decode_text(item) for item in value]
        if any(new is not old for new, old in zip(items, value, strict=True)):
            # One word of a command may be the whole list.
            return items[0] if len(items) == 1 and isinstance(items[0], list) else items
    return value


def _parse(args: Mapping[str, Any] | str) -> tuple[Any, str | None]:
    """Parse arguments to a mapping. Returns the mapping and None, or the original value and an error message."""
    if isinstance(args, str):
        if not args.strip():
            return {}, None
        try:
            value = _decode(args)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            return args, f"arguments are not valid JSON: {error}"
        if isinstance(value, str) and value.lstrip()[:1] == "{":
            # Some models write the object once more as a JSON string.
            with contextlib.suppress(msgspec.DecodeError, RecursionError, UnicodeError):
                value = _decode(value)
    else:
        value = args
    if type(value) is not dict and not isinstance(value, Mapping):
        return value, f"arguments must be a JSON object, not {type(value).__name__}"
    return value, None
