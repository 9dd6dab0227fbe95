"""The question whether a command may reach a host that ``bash_network`` does not list, as a gate that no circle declares.

The filtering proxy asks while the command waits. The question is a call of this gate, so it is recorded in the turn and passes
the interceptors. An interceptor answers in its place; where none does, nobody can be asked, and the answer is no.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.types.errors import GateError

if TYPE_CHECKING:
    from cantrip_acp.gates.ports import TurnContext


def pattern_of_host(host: str, port: int, address: str = "") -> str:
    """The pattern of an answer about a host and port, as `fetch` has it: ``host example.org`` is its port 443.

    An answer about an ``address`` in a private network is another one: ``private host mirror.corp``.
    """
    if address:
        return f"private {pattern_of_host(host, port)}"
    shown = f"[{host}]" if ":" in host else host
    if port == 80:
        return f"host http://{shown}"
    return f"host {shown}" if port == 443 else f"host {shown}:{port}"


def shown_host(args: Mapping[str, Any]) -> str:
    """Host and port for people. The host is in ASCII form, so that no letter passes for another one."""
    host = args["host"]
    shown = f"[{host}]:{args['port']}" if ":" in host else f"{host}:{args['port']}"
    return f"{shown} at {args['address']}, an address of a private network" if args.get("address") else shown


def allowed(scope: str) -> GateReply:
    """The reply that allows it. ``scope`` says for how long, and is recorded."""
    return GateReply(f"allowed {scope}", annotations={"permission": f"allowed {scope}"})


def _title(args: Mapping[str, Any]) -> str:
    program = args["program"]
    return f"{f'`{program}`' if program else 'A command'} wants {shown_host(args)}"


def _refuse(args: Mapping[str, Any], context: GateContext) -> GateReply:
    raise GateError(
        "nobody can be asked here. If the task needs this host, say so in your answer: a person can list it in bash_network or "
        "allow it with --allow-host"
    )


BASH_NETWORK = Gate(
    name="bash_network",
    description="Ask whether a command may reach a host that the ward bash_network does not list.",
    parameters={
        "type": "object",
        "properties": {
            "host": {"type": "string"},
            "port": {"type": "integer"},
            "command": {"type": "string"},
            "program": {"type": "string"},
            "address": {"type": "string"},
        },
        "required": ["host", "port", "command", "program"],
        "additionalProperties": False,
    },
    handler=_refuse,
    writes=True,
    kind="fetch",
    preview=lambda args, context: GateReply(None, title=_title(args)),
    runs=lambda args, context: str(args["command"]),
    covers=lambda args: (pattern_of_host(args["host"], args["port"], args.get("address", "")), shown_host(args)),
    # The turn has the command already.
    recorded=lambda args: {name: value for name, value in args.items() if name != "command" and value},
)


def asker(turn: TurnContext | None, via: str) -> Callable[[str, int, str, str, str], Awaitable[str]]:
    """The question for `Sandbox.run`: a call of `BASH_NETWORK` by the command or call ``via``. Its answer is the reason of a no."""

    async def ask(host: str, port: int, command: str, program: str, address: str) -> str:
        if turn is None or turn.finished:
            return "the cast is finished"
        args = {"host": host, "port": port, "command": command, "program": program, "address": address}
        record = await turn.gate(BASH_NETWORK.name, args, via=via, own=BASH_NETWORK)
        return str(record.result) if record.is_error else ""

    return ask
