"""The id of a project: the same on each machine and after the folder was moved, and another one for each other project.

It is the address of the git remote with the path inside the repository. Without a remote it is an id in the folder's
``.cantrip/project-id``.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
import urllib.parse
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from cantrip_acp.files.folder import Folder
from cantrip_acp.git.repository import Repository
from cantrip_acp.types.errors import GitError

FILE = "project-id"
"""The name of the file in ``.cantrip`` with the id of a project without a remote."""
_LOOKS = 20
_ID = re.compile(r"[0-9a-f]{32}")
_OTHER_HOST = re.compile(r"(?:[^@/]+@)?(?P<host>\[[^\]]+\]|[^:/]+):(?P<path>(?!//).*)")
"""An address as ssh has it: ``git@host:owner/name``."""


def project_id(workspace: Path | str) -> str:
    """The id of the project in a folder. Without a git remote it is written to the folder, if there is none yet.

    ``CANTRIP_PROJECT`` takes its place. A folder that cannot be written has the id of its path.
    """
    folder = os.path.realpath(workspace)
    if (known := _named() or _of_git(folder)) is not None:
        return known
    try:
        return f"id:{_stored(folder)}"
    except OSError:
        return f"folder:{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}"


def known_ids(workspace: Path | str) -> tuple[str, ...]:
    """The ids of the project in a folder, the one that counts first. Nothing is written; empty if it has none yet.

    The others are what it had before somebody named it, or gave it a remote.
    """
    folder = os.path.realpath(workspace)
    found = (_named(), _of_git_once(folder, _git_state(folder)), _read_stored(folder))
    return tuple(each for each in found if each is not None)


def head_commit(workspace: Path | str) -> str | None:
    """The commit that is checked out in a folder, or None."""
    with suppress(GitError):
        repository = Repository.of(os.path.realpath(workspace))
        return None if repository is None else repository.commit()
    return None


def _named() -> str | None:
    name = os.environ.get("CANTRIP_PROJECT", "").strip()
    return f"named:{name}" if name else None


def _of_git(folder: str) -> str | None:
    with suppress(GitError):
        repository = Repository.of(folder)
        if repository is not None and (address := _remote(repository)):
            inside = os.path.relpath(folder, repository.top)
            return f"git:{address}" + ("" if inside == "." else f"//{inside}")
    return None


@lru_cache(maxsize=256)
def _of_git_once(folder: str, state: object) -> str | None:
    """`_of_git`, cached until the repository's settings change. Without a repository git is not started."""
    return _of_git(folder) if state else None


def _git_state(folder: str) -> object:
    """A value that changes with the settings of the repository around a folder; None if there is none."""
    for above in (Path(folder), *Path(folder).parents):
        found: list[tuple[int, int, int]] = []
        for name in (".git", ".git/config"):
            with suppress(OSError):
                status = os.stat(above / name)
                # A folder changes with each command of git.
                found.append((status.st_ino, *((0, 0) if name == ".git" else (status.st_mtime_ns, status.st_size))))
        if found:
            return (str(above), *found)
    return None


def _read_stored(folder: str) -> str | None:
    with suppress(OSError), Folder.top(folder) as top, top.file(f".cantrip/{FILE}") as existing:
        text = existing.read(100).decode(errors="replace").strip()
        return f"id:{text}" if _ID.fullmatch(text) else None
    return None


def _remote(repository: Repository) -> str | None:
    """The address of ``origin``, or of the first remote by name. None if there is none."""
    ran = repository.git("config", "--null", "--get-regexp", r"^remote\..*\.url$", statuses=(0, 1))
    found: dict[str, str] = {}
    for each in ran.out.decode(errors="surrogateescape").split("\0"):
        key, _, url = each.partition("\n")
        if url:
            found.setdefault(key, url)
    if not found:
        return None
    return normal_address(found.get("remote.origin.url") or found[min(found)], repository.top)


def normal_address(url: str, base: str = "/") -> str:
    """Normalize the address of a repository by removing parts that differ between users: the protocol, names, passwords and
    ``.git``.

    A path is resolved from the folder ``base``.
    """
    split = urllib.parse.urlsplit(url)
    if split.scheme and split.scheme != "file" and split.netloc:
        port = (
            split.netloc.rpartition("@")[2].partition("]")[2]
            if "[" in split.netloc
            else split.netloc.rpartition("@")[2]
        )
        number = port.rpartition(":")[2] if ":" in port else ""
        host = (split.hostname or "") + (f":{number}" if number not in ("", "22", "80", "443", "9418") else "")
        path = split.path
    elif split.scheme != "file" and (other := _OTHER_HOST.fullmatch(url)):
        host, path = other["host"].strip("[]").lower(), other["path"]
    else:
        host, path = "", os.path.realpath(os.path.join(base, urllib.parse.unquote(split.path) if split.scheme else url))
    path = path.strip("/").removesuffix(".git").rstrip("/")
    return f"{host}/{path}"


def _stored(folder: str) -> str:
    """The id in a folder's file, which is created if it is missing. Raises `OSError`."""
    with Folder.top(folder) as top:
        if top.entry(".cantrip") is None:
            with suppress(FileExistsError):
                _make(top)
        with top.beneath(".cantrip") as inside:
            return _in(inside)


def _make(top: Folder) -> None:
    """Make the folder with the file in one step. Commands that run in ``top`` are not taken for its makers."""
    from cantrip_acp.files.quarantine import Quarantine

    draft = f".cantrip-{secrets.token_hex(8)}"
    try:
        with top.beneath(draft, make=True) as inside:
            inside.replace(FILE, f"{secrets.token_hex(16)}\n".encode())
        Quarantine(top.path).place(top, draft, ".cantrip")
    except BaseException:
        top.remove_tree(draft)
        raise


def _in(inside: Folder) -> str:
    """The id in the folder ``.cantrip``. Raises `OSError`."""
    with suppress(FileExistsError):
        with os.fdopen(inside.open_file(FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
            file.write(f"{secrets.token_hex(16)}\n")
    for _ in range(_LOOKS):
        with inside.file(FILE) as existing:
            text = existing.read(100).decode(errors="replace").strip()
        if _ID.fullmatch(text):
            return text
        # Another process has made the file and has not written it yet, or was killed before.
        time.sleep(0.05)
    made = secrets.token_hex(16)
    inside.replace(FILE, f"{made}\n".encode())
    return made
