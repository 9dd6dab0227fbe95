"""Checks of the folders that a client names for a session."""

from __future__ import annotations

import os
from pathlib import Path

from cantrip_acp.acp.wire.jsonrpc import RpcError, invalid_params
from cantrip_acp.files.paths import own

_SYSTEM = ("/proc", "/sys", "/dev")


def check_further(path: str, place: str) -> Path:
    """Check an additional folder of a session. Raises `RpcError` -32602 for a missing folder, and for one that must
    not be shared.

    A folder that contains this program's own folders is allowed: those stay closed to gates and commands.
    """
    folder = check_folder(path, place)
    real = os.path.realpath(folder)
    states, config = own()
    if real == "/":
        raise invalid_params("is the whole file system; name the folders that belong to the work", place)
    if any(real == system or real.startswith(f"{system}/") for system in _SYSTEM):
        raise invalid_params(f"is the kernel's, not a folder of files: {path[:200]}", place)
    if any(real == ours or real.startswith(f"{ours}/") for ours in (*states, config)):
        raise invalid_params(
            f"holds this agent's own settings or sessions, which no entity may change: {path[:200]}. Open it as a session's "
            "folder where you mean to work on it",
            place,
        )
    return folder


def check_folder(cwd: str, place: str = "cwd") -> Path:
    """Check a folder of a session, its own or an additional one. Raises `RpcError` -32602 where nobody can work in it."""

    def refuse(problem: str) -> RpcError:
        return invalid_params(problem, place)

    if not os.path.isabs(cwd):
        raise refuse(f"must be an absolute path, not {cwd[:200]!r}")
    try:
        os.stat(cwd)
        if not os.path.isdir(cwd):
            raise refuse(f"is a file, not a folder: {cwd}")
        # Listing tests what the user id and the mode bits do not show: access lists, mounts, namespaces.
        with os.scandir(cwd):
            pass
    except FileNotFoundError:
        raise refuse(f"no such folder: {cwd}") from None
    except NotADirectoryError:
        raise refuse(f"a part of the path is not a folder: {cwd}") from None
    except PermissionError:
        raise refuse(f"not readable for this user: {cwd}") from None
    except (OSError, ValueError) as problem:
        raise refuse(f"cannot be used ({problem}): {cwd[:200]!r}") from None
    if not os.access(cwd, os.X_OK):
        raise refuse(f"not searchable for this user: {cwd}")
    return Path(cwd)
