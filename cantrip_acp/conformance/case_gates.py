"""Gates for suites: the product's own, those that only tests need, and gates that a case describes.

``read(path)`` reads a file under its root; ``fetch(url)`` fetches nothing and always gives the same answer. A gate with
``result``, ``error``, ``behavior`` or ``delay_ms`` behaves as described. All of them run through the real executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from cantrip_acp.gates import registry
from cantrip_acp.gates.contract import Gate, GateContext, Handler
from cantrip_acp.types.errors import DefinitionError, GateError

_ANYTHING: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}
_SCRIPTED = ("result", "error", "behavior", "delay_ms")
_BEHAVIORS = ("throw", "delay")


def make(spec: str | Mapping[str, Any], stand_in: Path) -> Gate:
    """The gate that a case names or describes; ``stand_in`` is the folder that replaces ``/``.

    Raises `DefinitionError` for an unknown gate that the case does not describe either.
    """
    described: Mapping[str, Any] = {"name": spec} if isinstance(spec, str) else spec
    name = described.get("name")
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"a gate needs a name: {spec!r}")
    name = registry.ALIASES.get(name, name)
    gate = _known_gate(name, described, stand_in)
    if described.get("parameters") is not None:
        gate = replace(gate, parameters=described["parameters"], handler=_checked(gate.handler, gate.required))
    if described.get("description") is not None:
        gate = replace(gate, description=str(described["description"]))
    if described.get("ephemeral") is not None:
        after_use = described["ephemeral"] == "after_use"
        gate = replace(gate, ephemeral="after_use" if after_use else described["ephemeral"] in (True, "on"))
    dependencies = {**(described.get("depends") or {}), **(described.get("dependencies") or {})}
    root = dependencies.get("root")
    if root is not None:
        dependencies["root"] = within(stand_in, str(root))
    if dependencies:
        # A suite may name dependencies that only its own runtime knows.
        gate = replace(gate, dependencies={**gate.dependencies, **dependencies})
    return replace(gate, handler=_played(gate.handler, described))


def within(stand_in: Path, path: str) -> Path:
    """A path of the case, below the folder that replaces ``/``."""
    return stand_in.joinpath(*(part for part in Path(path).parts if part not in ("/", "..", ".")))


def _known_gate(name: str, described: Mapping[str, Any], stand_in: Path) -> Gate:
    if name == "read":
        return replace(READ, dependencies={"root": stand_in})
    if name == "fetch":
        return FETCH
    try:
        return registry.find(name)
    except DefinitionError as error:
        if any(described.get(key) is not None for key in (*_SCRIPTED, "parameters")):
            return Gate(name, f"A gate of this case, named {name}.", _ANYTHING, lambda args, context: None)
        raise DefinitionError(
            f"{error}; a suite may also use read and fetch, or describe a gate by its result"
        ) from error


def _played(handler: Handler, described: Mapping[str, Any]) -> Handler:
    """The handler with the behavior that the case describes: a delay, a failure, a fixed result."""
    behavior = described.get("behavior")
    if behavior is not None and behavior not in _BEHAVIORS:
        raise DefinitionError(f"a gate's behavior is {' or '.join(_BEHAVIORS)}, not {behavior!r}")
    delay = float(described.get("delay_ms") or 0) / 1000
    error = described.get("error")
    throws = behavior == "throw" or error is not None
    fixed = "result" in described
    if not (delay or throws or fixed):
        return handler

    async def played(args: Mapping[str, Any], context: GateContext) -> Any:
        if delay:
            await anyio.sleep(delay)
        if throws:
            raise GateError(str(error) if error is not None else "this gate fails")
        if fixed:
            return described["result"]
        reply = handler(args, context)
        return await reply if hasattr(reply, "__await__") else reply

    return played


def _checked(handler: Handler, required: tuple[str, ...]) -> Handler:
    """A case's own schema may not require what the handler needs. A missing argument must still be an error for the
    entity."""

    def checked(args: Mapping[str, Any], context: GateContext) -> Any:
        missing = [name for name in required if name not in args]
        if missing:
            raise GateError(f"missing required argument {missing[0]!r}")
        return handler(args, context)

    return checked


def _read(args: Mapping[str, Any], context: GateContext) -> str:
    root = Path(context.dependencies["root"]).resolve()
    path = root.joinpath(args["path"])
    if Path(args["path"]).is_absolute():
        path = root / Path(args["path"]).relative_to("/")
    path = path.resolve()
    if not path.is_relative_to(root):
        raise GateError(f"{args['path']!r} is outside of what this gate may read")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise GateError(f"cannot read {args['path']!r}: {error.strerror}") from error


def _fetch(args: Mapping[str, Any], context: GateContext) -> str:
    return f"fetched {args['url']}"


def _one_text(name: str, what: str) -> Mapping[str, Any]:
    properties = {name: {"type": "string", "description": what}}
    return {"type": "object", "properties": properties, "required": [name], "additionalProperties": False}


READ = Gate("read", "Read a text file under the root.", _one_text("path", "The file."), _read, kind="read")
FETCH = Gate(
    "fetch",
    "Fetch a page (played: nothing leaves this machine).",
    _one_text("url", "Its address."),
    _fetch,
    kind="fetch",
)
