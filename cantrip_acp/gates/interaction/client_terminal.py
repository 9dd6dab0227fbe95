"""The gate ``client_terminal``: runs a command in the user's own terminal, outside the sandbox (ACP, Terminals).

It works only in a client that offers a terminal. Otherwise the call returns an error. The recipe must list this gate, and
the recipe must be trusted. The user is asked before each command, except in the mode without permission requests.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from cantrip_acp.gates.confinement import one_line
from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.records import Diff

SECONDS = 120
MOST_SECONDS = 3_600


def _no_terminal(args: Mapping[str, Any], context: GateContext) -> GateReply:
    raise GateError(
        "no terminal of the user is available here: client_terminal works only in an editor that offers terminals",
        "Use the other gates, or tell the user which command to run",
    )


def _proposes(args: Mapping[str, Any], context: GateContext) -> tuple[Diff, ...]:
    """Return no file changes. Without a terminal, raise the error here, so that the user is not asked for permission."""
    _no_terminal(args, context)
    return ()


def _preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
    folder = args.get("cwd", ".")
    return GateReply(None, title=args["command"] if folder == "." else f"{args['command']} (in {one_line(folder)})")


def _covers(args: Mapping[str, Any]) -> tuple[str, str]:
    """A lasting permission is only for exactly this command, because it runs without a sandbox."""
    folder = posixpath.normpath(args.get("cwd", "."))
    return f"={folder}\0{args['command']}", "for this command" + ("" if folder == "." else f" in {one_line(folder)}")


CLIENT_TERMINAL = Gate(
    name="client_terminal",
    description=(
        "Run a command in the user's own terminal, where the user sees it: on the real machine, with the user's network, "
        "tools and rights. For what the sandbox cannot do, such as starting containers or signing in. Returns {output, "
        "exit_code, signal, truncated, timed_out}; of a long output, the end."
    ),
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string", "minLength": 1, "description": "A command line for sh, such as 'docker ps'."},
            "cwd": {
                "type": "string",
                "default": ".",
                "description": "The folder to run it in. Default: the workspace.",
            },
            "seconds": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": MOST_SECONDS,
                "default": SECONDS,
                "description": f"After so long it is stopped. Default: {SECONDS}.",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    handler=_no_terminal,
    writes=True,
    kind="execute",
    main_text="command",
    preview=_preview,
    proposes=_proposes,
    covers=_covers,
)
