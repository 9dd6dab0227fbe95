"""The files on which the casts of a recipe depend: those that it declares, else all files of the workspace."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

from cantrip_acp.files.digests import FileDigests
from cantrip_acp.files.hidden_paths import matcher, may_be_above
from cantrip_acp.tuplespace.errors import TupleError

if TYPE_CHECKING:
    from cantrip_acp.recipes.recipe import Recipe

_NO_FILES = frozenset({"done", "echo", "fetch", "plan", "ask_user", "read_context"})
"""Gates that read nothing in the workspace."""
_TALK = frozenset({"conversation", "monty"})
"""Mediums that see no files."""
_BESIDE = re.compile(r"(\.index(\.part)?|\.torn-\d+|\.keep|-wal|-shm|-journal)?")
"""The suffixes of files that belong to a loom, or to a database."""
_LOOMS = re.compile(r"\.loom\.(jsonl|db)")
_NEVER = (".catalog/", ".cantrip/project-id")
_MOST = 1_000_000
_PATIENCE_S = 3.0
"""After this time the user reads what takes so long."""


def reads_files(recipe: Recipe) -> bool:
    """Whether entities of a recipe can read the files of the workspace."""
    circle, memory = recipe.data["circle"], recipe.data.get("memory", {})
    gates = {gate if isinstance(gate, str) else gate.get("name") for gate in circle["gates"]}
    return (
        circle.get("medium", "conversation") not in _TALK
        or bool(gates - _NO_FILES)
        or bool(recipe.data.get("mcp_servers"))
        or bool(memory.get("culture") or memory.get("programs"))
    )


class WorkspaceInputs:
    """The files of a workspace on which the casts of one recipe depend.

    Files that git ignores, looms, the recipe's own files, ``own`` files of the command and those beneath ``own`` folders do
    not count. ``state`` is the state folder, where the digests of files are kept. ``notice`` tells the user about slow steps.
    """

    def __init__(
        self,
        recipe: Recipe,
        workspace: Path,
        state: Path,
        own: Sequence[Path | str] = (),
        notice: Callable[[str], object] = lambda _: None,
    ) -> None:
        from cantrip_acp.recipes import trust

        self._recipe, self._workspace, self._notice = recipe, workspace, notice
        declared: list[str] | None = recipe.data.get("inputs")
        self.count = reads_files(recipe) if declared is None else bool(declared)
        """Whether the casts depend on any files of the workspace."""
        self._declared = declared or []
        self._patterns = None if declared is None else [matcher(each) for each in declared]
        paths = [state, *own, recipe.path, *trust.named_by(recipe)]
        self._own = tuple(name for each in paths if (name := self._name(each)) is not None)
        self.own_names = tuple(name for each in own if (name := self._name(each)) is not None)
        """The names in the workspace of ``own``."""
        folder = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:16]
        self._digests = FileDigests(state / "file-digests" / folder)

    def _name(self, path: Path | str) -> str | None:
        name = os.path.relpath(os.path.realpath(path), self._workspace)
        return None if name.startswith("..") else name

    def _counts(self, name: str) -> bool:
        if self._patterns is not None:
            found = self._matches(name)
            if (found or may_be_above(self._declared, name)) and (place := self._workspace / name).is_symlink():
                # The digest has the path that a link leads to, not the content there.
                target = self._name(place)
                if target is None or not (found and place.is_file() and self._matches(target)):
                    raise TupleError(
                        f"{self._recipe.file}: inputs: {name} is a link to what inputs does not name; name the files themselves"
                    )
            if not found:
                return False
        if name.startswith(_NEVER) or _LOOMS.search(name):
            return False
        folder, _, last = name.rpartition("/")
        # While an index is written, its name begins with a dot.
        plain = f"{folder}/{last.removeprefix('.')}" if folder else last.removeprefix(".")
        return not any(
            (each.startswith(own) and _BESIDE.fullmatch(each, len(own)) is not None) or each.startswith(f"{own}/")
            for own in self._own
            for each in (name, plain)
        )

    def _matches(self, name: str) -> bool:
        return any(each.fullmatch(f"/{name}") for each in self._patterns or ())

    def digest(self) -> str:
        """The present digest of the files, or "" if none count. Raises `TupleError`."""
        if not self.count:
            return ""
        what = (
            f"reading the files of {self._workspace}: they are part of the work. If only some count, name them with "
            "`inputs` in the recipe"
        )
        timer = Timer(_PATIENCE_S, self._notice, (what,))
        timer.daemon = True
        timer.start()
        try:
            found = self._digests.folder(self._workspace, self._counts, most=_MOST, strict=False)
        finally:
            timer.cancel()
        if found is None:
            why = f"the files of {self._workspace} cannot be read, or there are more than {_MOST:,}"
            mend = "name those that count with `inputs` in the recipe (`inputs: []`: none)"
            if self._patterns is not None:
                raise TupleError(f"{self._recipe.file}: inputs: {why}; {mend}")
            self._notice(f"{why}. So a change of them makes no new work; {mend}")
            self.count = False
            return ""
        return f"blake2b:{found}"


def own_streams() -> list[str]:
    """The files that the shell uses for this process's output and input."""
    found: list[str] = []
    for number in (0, 1, 2):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found
