"""The gates ``start``, ``output`` and ``stop``: commands that go on while the entity does other things."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.gates.interaction.shell import command_line, covers_command
from cantrip_acp.gates.services.services import Place
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.records import Location

if TYPE_CHECKING:
    from cantrip_acp.gates.services.services import Services

LONGEST_WAIT = 600
_NAMED = {
    "type": "string",
    "minLength": 1,
    "maxLength": 40,
    "description": "The service: what start returned.",
}


def _services(context: GateContext) -> Services:
    if context.services is None:
        raise GateError("services run only beside a running entity")
    return context.services


def _place(context: GateContext) -> Place:
    return Place(context.wards, context.workspace, context.folders, context.cast_id)


async def _start(args: Mapping[str, Any], context: GateContext) -> GateReply:
    service = await _services(context).start(args["command"], args.get("name"), _place(context))
    return GateReply(service.name, title=f"Start {service.title}")


async def _output(args: Mapping[str, Any], context: GateContext) -> GateReply:
    services = _services(context)
    name = args.get("id")
    if name is None:
        return GateReply(services.listed(), title="List the services")
    text = await services.read(name, float(args.get("wait_s", 0)), args.get("until", ""))
    return GateReply(text, title=f"Output of {name}")


async def _stop(args: Mapping[str, Any], context: GateContext) -> GateReply:
    return GateReply(await _services(context).stop(args["id"]), title=f"Stop {args['id']}")


def _preview_start(args: Mapping[str, Any], context: GateContext) -> GateReply:
    # Like a shell command, it may write in the workspace if the wards allow that.
    places = (Location(str(context.workspace)),) if context.workspace is not None else ()
    return GateReply(None, title=f"Start {' '.join(str(args['command']).split())[:120]}", locations=places)


def _preview_output(args: Mapping[str, Any], context: GateContext) -> GateReply:
    return GateReply(None, title=f"Output of {args['id']}" if args.get("id") else "List the services")


def _preview_stop(args: Mapping[str, Any], context: GateContext) -> GateReply:
    return GateReply(None, title=f"Stop {args['id']}")


START = Gate(
    name="start",
    description=(
        "Start a command that goes on beside you: a dev server, a watcher, a database, a long build. Returns its id at once. "
        "Your commands reach what it listens to on localhost. Keep it in the foreground (no &): it ends with its main process, "
        "and all services end with the session."
    ),
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string", "minLength": 1, "description": "The shell command, such as 'npm run dev'."},
            "name": {"type": "string", "maxLength": 40, "description": "A name for it, which is then its id."},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    handler=_start,
    writes=True,
    kind="execute",
    main_text="command",
    preview=_preview_start,
    runs=command_line,
    covers=covers_command,
)

OUTPUT = Gate(
    name="output",
    description=(
        "What a service printed since you last asked, and whether it runs or how it ended. With wait_s it waits first, until the "
        "service has ended, or has printed the text until. Without an id it lists the services."
    ),
    parameters={
        "type": "object",
        "properties": {
            "id": _NAMED,
            "wait_s": {
                "type": "number",
                "minimum": 0,
                "maximum": LONGEST_WAIT,
                "description": "Seconds to wait at most.",
            },
            "until": {
                "type": "string",
                "minLength": 1,
                "maxLength": 1_000,
                "description": "Wait only until this text is in the output.",
            },
        },
        "additionalProperties": False,
    },
    handler=_output,
    kind="read",
    preview=_preview_output,
)

STOP = Gate(
    name="stop",
    description="Stop a service with all of its processes: SIGTERM, and after 5 seconds SIGKILL. Returns how it ended.",
    parameters={"type": "object", "properties": {"id": _NAMED}, "required": ["id"], "additionalProperties": False},
    handler=_stop,
    kind="execute",
    preview=_preview_stop,
)
