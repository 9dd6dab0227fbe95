"""File access of code cells: `code_readable_paths` and `code_writable_paths` as the wards of their sandbox.

By default nothing of the workspace is visible to cells, so an entity can read it only through a gate.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from cantrip_acp.core.errors import DefinitionError
from cantrip_acp.core.wards import Wards
from cantrip_acp.files.protected_paths import is_secret_file, plain


@dataclass(frozen=True, slots=True)
class Reach:
    """Real paths, and the sandbox wards for them. ``workspace`` is None where cells do not see it."""

    readable: tuple[str, ...]
    writable: tuple[str, ...]
    workspace: str | None
    wards: Wards


def reach(wards: Wards, workspace: Path | str | None) -> Reach:
    """Paths that cells can use. Raises `DefinitionError` for a path that does not exist or leads out of the
    workspace."""
    writable = _real(wards.code_writable_paths, workspace, "code_writable_paths", make=True)
    readable = tuple(p for p in _real(wards.code_readable_paths, workspace, "code_readable_paths") if p not in writable)
    own = os.path.realpath(workspace) if workspace is not None else None
    seen = own if own is not None and own in (*readable, *writable) else None
    return Reach(
        readable=tuple(p for p in readable if p != seen),
        writable=writable,
        workspace=seen,
        wards=replace(
            wards,
            bash_writable_paths=writable,
            bash_network=False,
            bash_home="private",
            bash_timeout_ms=wards.code_timeout_ms,
            bash_max_output_bytes=wards.code_max_output_bytes,
        ),
    )


def _real(paths: Iterable[str], workspace: Path | str | None, where: str, *, make: bool = False) -> tuple[str, ...]:
    base = os.path.abspath(workspace) if workspace is not None else None
    own = os.path.realpath(base) if base is not None else None
    found: dict[str, None] = {}
    for path in paths:
        if not os.path.isabs(path) and base is None:
            raise DefinitionError(f"{path} is relative, and there is no workspace", where=where)
        path = os.path.normpath(os.path.join(base or "/", path))
        real = os.path.realpath(path)
        if base is not None and own is not None and _within(path, base) and not _within(real, own):
            raise DefinitionError(f"{path} leads out of the workspace, to {real}", where=where)
        if make and not os.path.exists(real):
            try:
                os.makedirs(real)
            except OSError as error:
                raise DefinitionError(f"{path} cannot be made: {error.strerror}", where=where) from error
        if not os.path.exists(real):
            raise DefinitionError(f"{path} does not exist", where=where)
        if make and not os.path.isdir(real):
            raise DefinitionError(f"{path} is not a folder", where=where)
        if not os.path.isdir(real) and (is_secret_file(plain(os.path.basename(real))) or not os.path.isfile(real)):
            raise DefinitionError(f"{path} holds secrets by its name, or is no file, and is never shown", where=where)
        found[real] = None
    return tuple(found)


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
