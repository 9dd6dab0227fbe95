"""cantrip-acp: runs language models as entities in sandboxed circles, and serves them over the Agent Client Protocol.

    >>> from cantrip_acp import Cantrip, ScriptedCrystal
    >>> crystal = ScriptedCrystal(
    ...     [
    ...         {"content": "Let me try the gate.", "tool_calls": [{"gate": "echo", "args": {"text": "hello"}}]},
    ...         {"tool_calls": [{"gate": "done", "args": {"answer": "it said hello"}}]},
    ...     ]
    ... )
    >>> cantrip = Cantrip(crystal, gates=["echo"], max_turns=5, system_prompt="You try things out.")
    >>> result = cantrip.cast_sync("Find out what echo does.")
    >>> result.result, result.terminated, result.turns
    ('it said hello', True, 2)
    >>> [turn.gate_calls for turn in cantrip.loom.threads()[0].acted]
    [('echo',), ('done',)]

Each name is imported when it is first used. So an agent process can answer its client before it loads the rest.
"""

from __future__ import annotations

from cantrip_acp.version import __version__ as __version__

# The typing module is not imported: its import takes as long as the agent's whole answer to ``initialize``.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cantrip_acp.core.cantrip import Cantrip as Cantrip
    from cantrip_acp.core.casting.result import CastResult as CastResult
    from cantrip_acp.core.definition.circle import Circle as Circle
    from cantrip_acp.core.entity import Entity as Entity
    from cantrip_acp.core.scoring import Scorer as Scorer
    from cantrip_acp.core.streams import Batch as Batch
    from cantrip_acp.core.streams import BatchItem as BatchItem
    from cantrip_acp.core.streams import EventStream as EventStream
    from cantrip_acp.crystals.contract import Crystal as Crystal
    from cantrip_acp.crystals.contract import CrystalBase as CrystalBase
    from cantrip_acp.crystals.contract import Delta as Delta
    from cantrip_acp.crystals.contract import Query as Query
    from cantrip_acp.crystals.contract import Response as Response
    from cantrip_acp.crystals.retry import RetryPolicy as RetryPolicy
    from cantrip_acp.crystals.scripted import ScriptedCrystal as ScriptedCrystal
    from cantrip_acp.gates.contract import Gate as Gate
    from cantrip_acp.gates.contract import GateContext as GateContext
    from cantrip_acp.gates.contract import GateInputs as GateInputs
    from cantrip_acp.gates.contract import GateReply as GateReply
    from cantrip_acp.gates.function_gates import gate as gate
    from cantrip_acp.gates.mcp.declaration import McpServer as McpServer
    from cantrip_acp.gates.mcp.servers import McpServers as McpServers
    from cantrip_acp.gates.wards import Wards as Wards
    from cantrip_acp.loom.loom import Loom as Loom
    from cantrip_acp.loom.query.thread import Thread as Thread
    from cantrip_acp.types import events as events
    from cantrip_acp.types.call import Call as Call
    from cantrip_acp.types.context_block import ContextBlock as ContextBlock
    from cantrip_acp.types.errors import CantripError as CantripError
    from cantrip_acp.types.errors import CrystalError as CrystalError
    from cantrip_acp.types.errors import DefinitionError as DefinitionError
    from cantrip_acp.types.errors import GateError as GateError
    from cantrip_acp.types.errors import GateFault as GateFault
    from cantrip_acp.types.errors import LoomError as LoomError
    from cantrip_acp.types.errors import MissingKey as MissingKey
    from cantrip_acp.types.errors import NoResult as NoResult
    from cantrip_acp.types.messages import Message as Message
    from cantrip_acp.types.messages import ToolCall as ToolCall
    from cantrip_acp.types.messages import ToolDefinition as ToolDefinition
    from cantrip_acp.types.records import Turn as Turn
    from cantrip_acp.types.usage import Usage as Usage

_HOMES = {
    "Batch": "core.streams",
    "BatchItem": "core.streams",
    "Call": "types.call",
    "Cantrip": "core.cantrip",
    "CantripError": "types.errors",
    "CastResult": "core.casting.result",
    "Circle": "core.definition.circle",
    "ContextBlock": "types.context_block",
    "Crystal": "crystals.contract",
    "CrystalBase": "crystals.contract",
    "CrystalError": "types.errors",
    "DefinitionError": "types.errors",
    "Delta": "crystals.contract",
    "Entity": "core.entity",
    "EventStream": "core.streams",
    "Gate": "gates.contract",
    "GateContext": "gates.contract",
    "GateError": "types.errors",
    "GateFault": "types.errors",
    "GateInputs": "gates.contract",
    "GateReply": "gates.contract",
    "Loom": "loom.loom",
    "LoomError": "types.errors",
    "McpServer": "gates.mcp.declaration",
    "McpServers": "gates.mcp.servers",
    "Message": "types.messages",
    "MissingKey": "types.errors",
    "NoResult": "types.errors",
    "Query": "crystals.contract",
    "Response": "crystals.contract",
    "RetryPolicy": "crystals.retry",
    "Scorer": "core.scoring",
    "ScriptedCrystal": "crystals.scripted",
    "Thread": "loom.query.thread",
    "ToolCall": "types.messages",
    "ToolDefinition": "types.messages",
    "Turn": "types.records",
    "Usage": "types.usage",
    "Wards": "gates.wards",
    "events": "types.events",
    "gate": "gates.function_gates",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cantrip_acp' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"cantrip_acp.{home}")
    value = module if home.endswith(f".{name}") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
