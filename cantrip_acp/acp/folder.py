"""A session's folder, as a client names it."""

from __future__ import annotations

import os
from pathlib import Path

from cantrip_acp.acp.envelope import RpcError, invalid_params


def check_folder(cwd: str, place: str = "cwd") -> Path:
    """A folder of a session, its own or a further one. Raises `RpcError` -32602 where it is none that can be worked in."""

    def refuse(problem: str) -> RpcError:
        return invalid_params(problem, place)

    if not os.path.isabs(cwd):
        raise refuse(f"must be an absolute path, not {cwd[:200]!r}")
    try:
        os.stat(cwd)
        if not os.path.isdir(cwd):
            raise refuse(f"is a file, not a folder: {cwd}")
        # Listing asks what a user id and the mode bits alone cannot answer: access lists, mounts, namespaces.
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
