"""Who ordered a tuple, and whether the catalog lets them order a yool.

A tuple says it in ``authority``: ``agent`` (an agent did, for somebody), else ``ci``, else ``user``. If it says nothing, whoever
put it into the space may have said it beside the tuple (`note`): that is no part of the tuple's id, so that the same work has the
same id whoever wants it. It is a statement and no proof: whoever may put tuples can claim to be another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET

from cantrip_acp.text.sanitize import clean_line

if TYPE_CHECKING:
    from cantrip_acp.tuplespace.tuples import Authority, WorkTuple

_NOTED = {"agent": "authority.agent", "ci": "authority.ci", "user": "authority.user"}
SOURCE = "src_ptr"
"""In the note: the commit of the project, such as ``git:1b2c…``."""
NOTED = frozenset({*_NOTED.values(), SOURCE})


def note(folder: Path | str = ".") -> dict[str, str]:
    """Describe who puts tuples from this process, and from which commit, for ``meta`` of `TupleStore.put`."""
    import getpass

    from cantrip_acp.git.project_identity import head_commit

    try:
        noted = {_NOTED["user"]: getpass.getuser()}
    except (KeyError, OSError):
        # A container whose user has no name.
        noted = {_NOTED["user"]: str(os.getuid())}
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        noted[_NOTED["ci"]] = "true"
    if (commit := head_commit(folder)) is not None:
        noted[SOURCE] = f"git:{commit}"
    return noted


def ordered_by(authority: Authority, meta: Mapping[str, str] | None = None) -> str | None:
    """Who ordered a tuple: ``agent``, ``ci`` or ``user``; None if it is not recorded."""
    if authority.agent is not UNSET and authority.agent:
        return "agent"
    if authority.ci is True:
        return "ci"
    if authority.user is not UNSET and authority.user:
        return "user"
    return next((kind for kind, key in _NOTED.items() if (meta or {}).get(key)), None)


def refusal(yool: str, allowed: Sequence[str], work: WorkTuple, meta: Mapping[str, str] | None = None) -> str | None:
    """Why a tuple may not have a step of this yool, or None. ``allowed`` is the yool's ``authority`` in the catalog."""
    from cantrip_acp.tuplespace.tuples import Authority

    if not allowed:
        return None
    said_in = work.authority or Authority()
    who = ordered_by(said_in, meta)
    name = _name_of_agent(said_in, meta) if who == "agent" else None
    if who in allowed or name in allowed:
        return None
    said = "the tuple does not say who ordered it (its authority)" if who is None else f"{who} ordered it"
    if name is not None:
        said = f"the agent {clean_line(name, 100)} ordered it"
    return f"{yool} may be ordered by {' or '.join(allowed)} only (authority in the catalog), and {said}"


def _name_of_agent(authority: Authority, meta: Mapping[str, str] | None) -> str | None:
    """The name of the ordering agent. An agent cannot call itself ``user`` or ``ci``."""
    name = authority.agent if authority.agent is not UNSET and authority.agent else (meta or {}).get(_NOTED["agent"])
    return name if name not in _NOTED else None
