"""Whose a chunk is, in a database that several people share.

A chunk's id says it. Shared are projects with their facts, pins and programs, and the types. A user's own are their culture
and skills, what has an id that begins with `PRIVATE`, and the records of their sessions and runs. What was read from files
belongs to one state folder of a user, as two checkouts of a project have different files. A placement is as private as its
chunk or its scope is. So an id such as ``culture:user`` means another scope for each user, and nobody can name another's.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Literal

from cantrip_acp.files import paths
from cantrip_acp.substrate.chunks import PROCESS, SubstrateError, one_line

PRIVATE = "private:"
"""The beginning of the ids of chunks that belong to the user alone, wherever they are placed."""
USER_CULTURE = "culture:user"
"""The scope of the user's own culture, for all projects."""
USER_SKILLS = "skills:user"
"""The scope of the user's own skills, for all projects."""
FILE = "substrate-id"
"""The file with the id of a state folder."""
Privacy = Literal["shared", "user", "folder"]
_OF_FOLDER = ("file:", "skill:", "folder:")
_OF_USER = (*(PRIVATE, PROCESS, "session:", "prompt:", "answer:", "call:", "result:", "context:", "attachment:"),)
PATTERNS = (f"^({'|'.join(_OF_FOLDER)})", f"^(({USER_CULTURE}|{USER_SKILLS})$|{'|'.join(_OF_USER)})")
"""Regular expressions of the ids that belong to a state folder, and to a user."""


def privacy(*ids: str) -> Privacy:
    """Who may read a chunk with this id, or a placement of these two: everybody, one user, or one user with this state
    folder."""
    if any(each.startswith(_OF_FOLDER) for each in ids):
        return "folder"
    if any(each in (USER_CULTURE, USER_SKILLS) or each.startswith(_OF_USER) for each in ids):
        return "user"
    return "shared"


def named_user() -> str:
    """``CANTRIP_USER``: the name of this user, where several people share one database role. Empty if it is not set."""
    name = os.environ.get("CANTRIP_USER", "").strip()
    if name and not re.fullmatch(r"[\w.+@-]{1,60}", name):
        raise SubstrateError(f"CANTRIP_USER is {one_line(name, 60)!r}: write 1 to 60 letters, digits and . _ + @ -")
    return name


def folder_id() -> str:
    """The id of this state folder, created if it is missing. Raises `SubstrateError`."""
    place = paths.state_dir() / FILE
    try:
        if (found := _read(place)) is None:
            draft = paths.private(place.parent) / f".{FILE}.{secrets.token_hex(8)}"
            draft.write_text(secrets.token_hex(8))
            try:
                if place.exists():
                    os.replace(draft, place)
                else:
                    # Another process may do the same at this moment: one of them is first, and both read its id.
                    with suppress(FileExistsError):
                        os.link(draft, place)
            finally:
                draft.unlink(missing_ok=True)
            found = _read(place)
        if found is not None:
            return found
        why = "it has another content"
    except OSError as error:
        why = error.strerror or str(error)
    raise SubstrateError(f"cannot write {place}, which tells state folders apart in a shared database: {why}")


def _read(place: Path) -> str | None:
    with suppress(FileNotFoundError):
        text = place.read_text(errors="replace").strip()
        return text if re.fullmatch("[0-9a-f]{16}", text) else None
    return None
