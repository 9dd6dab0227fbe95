"""The gate ``compile_and_load``: loads a Python module that an entity wrote, and makes its functions gates of that entity.

It is only for trusted operators. A recipe from a workspace cannot have it, and without one of the ``allow_compile_*`` wards
it refuses every module (`policy`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cantrip_acp.gates.contract import Gate, GateContext, GateReply, GateSession
from cantrip_acp.types.errors import GateError

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView, GateRegistrar
    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.types.records import Diff

_DESCRIPTION = (
    "Compile a Python module and make its public functions (those of __all__, where there is one) gates that you can call "
    "by name at once. Type hints and docstrings become their contracts; arguments and results are JSON data. The module "
    "runs in a sandbox of its own, with no gates and no network; what it keeps in variables lasts until its process is "
    "lost (a crash, a time limit, a cancel). Loading a module again replaces it."
)


def _open_session(registrar: GateRegistrar, circle: CircleView) -> GateSession:
    from cantrip_acp.gates.loaded.modules import LoadedModules

    return LoadedModules(registrar, circle)


def _no_session(args: Mapping[str, Any], context: GateContext) -> Any:
    raise GateError("compile_and_load works only in a running entity, which keeps the loaded modules")


def _with_wards(gate: Gate, wards: Wards) -> Gate:
    """Return the gate with a description of what these wards allow. Raises `DefinitionError` for invalid wards."""
    from cantrip_acp.gates.loaded.policy import check_wards

    check_wards(wards)
    asked = []
    if wards.allow_compile_modules is not None:
        asked.append(f"its name is one of: {', '.join(wards.allow_compile_modules) or 'none'}")
    if wards.allow_compile_paths is not None:
        asked.append(f"it is a file, given as path, in: {', '.join(wards.allow_compile_paths) or 'nothing'}")
    if wards.allow_compile_sha256 is not None:
        asked.append(f"the SHA-256 of its source is one of: {', '.join(wards.allow_compile_sha256) or 'none'}")
    if wards.allow_compile_signers is not None:
        asked.append("its source is signed by a key that is trusted here, the signature given as signature")
    rule = (
        f"A module is admitted if {'; and '.join(asked)}." if asked else "No ward admits any module: all are refused."
    )
    return replace(gate, description=f"{gate.description} {rule}")


def _proposes(args: Mapping[str, Any], context: GateContext) -> tuple[Diff, ...]:
    """Return no file changes. Raises `GateError` for a module that the wards do not allow."""
    from cantrip_acp.gates.loaded.policy import check_module

    check_module(args, context.wards, context.workspace)
    return ()


def _covers(args: Mapping[str, Any]) -> tuple[str, str]:
    """A lasting permission is for exactly this source. For a file, it is for any content of the file."""
    if args.get("source") is None:
        return f"={args['module']} at {args.get('path')}", f"of {args['module'][:100]} from this file"
    digest = hashlib.sha256(str(args["source"]).encode("utf-8", "surrogatepass")).hexdigest()
    return f"={args['module']} {digest}", f"of {args['module'][:100]} with exactly this source"


def _preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
    return GateReply(None, title=f"Load {args['module'][:100]}")


COMPILE_AND_LOAD = Gate(
    name="compile_and_load",
    description=_DESCRIPTION,
    parameters={
        "type": "object",
        "properties": {
            "module": {
                "type": "string",
                "description": "The module's name: NAME, or cantrip_acp.hot.NAME. Modules import each other by the full name.",
            },
            "source": {"type": "string", "description": "Its text; or else path."},
            "path": {"type": "string", "description": "The file that holds its text, where files are admitted."},
            "sha256": {"type": "string", "description": "What you expect the SHA-256 of the source to be, as a check."},
            "signature": {
                "type": "string",
                "description": "An Ed25519 signature of the source's bytes, base64 or hexadecimal, where one is asked for.",
            },
        },
        "required": ["module"],
        "additionalProperties": False,
    },
    handler=_no_session,
    writes=True,
    kind="execute",
    main_text="source",
    preview=_preview,
    proposes=_proposes,
    covers=_covers,
    opens=_open_session,
    warded=_with_wards,
)
