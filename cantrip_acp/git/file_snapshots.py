"""Names of checkpoints, and the file snapshots (pins) of earlier versions.

Earlier versions kept the files of a turn as commits in the user's repository, below ``refs/cantrip/LOOM/ENTITY``. Their looms
can still be read; `drop` deletes such refs with their loom. Today a checkpoint is in the state folder
(`cantrip_acp.checkpoints`), and the loom's record names it with the same form.
"""

from __future__ import annotations

import hashlib
import re

from cantrip_acp.git.repository import Repository

_BESIDE = re.compile(r"(\.index(\.part)?|\.torn-\d+|\.keep|-wal|-shm|-journal)?\Z")
"""The suffixes of files in the same folder that belong to a loom's file."""
_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")


def ref_of(loom_id: str, entity_id: str | None = None) -> str:
    """The name of an entity's checkpoints, or the common prefix for all entities of a loom."""
    return "/".join(("refs/cantrip", *(_name(each) for each in (loom_id, entity_id) if each is not None)))


def loom_of(ref: str) -> str | None:
    """The loom id in a name of `ref_of`; None for any other text."""
    parts = ref.split("/")
    return parts[2] if len(parts) >= 3 and parts[:2] == ["refs", "cantrip"] else None


def belongs_to_loom(name: str, loom: str) -> bool:
    """Whether a file beside the file ``loom`` is that loom, or belongs to it (index, lock, journal)."""
    # While an index is written, its name begins with a dot.
    return any(each.startswith(loom) and _BESIDE.match(each, len(loom)) is not None for each in (name, name[1:]))


def _name(text: str) -> str:
    """Convert an id to a part of a ref. An id with characters that a ref may not have is replaced by its hash."""
    return text if _PLAIN_ID.match(text) else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def pins(repository: Repository, loom_id: str | None = None) -> dict[str, str]:
    """List the pins of one loom or of all. Maps each ref to its commit."""
    below = ref_of(loom_id) + "/" if loom_id is not None else "refs/cantrip/"
    ran = repository.git("for-each-ref", "--format=%(refname) %(objectname)", below)
    return {ref: commit for ref, _, commit in (line.partition(" ") for line in ran.text.splitlines())}


def drop(repository: Repository, loom_id: str) -> list[str]:
    """Delete the pins of a loom. Returns the deleted refs. git removes the files later.

    If the HEAD of a worktree is a pin, git keeps that pin. Raises `GitError`.
    """
    found = pins(repository, loom_id)
    if found:
        lines = "".join(f"delete {ref}\0{commit}\0" for ref, commit in found.items())
        repository.git("update-ref", "--stdin", "-z", stdin=lines.encode())
    return list(found)
