"""Paths of the user's folders for state (looms, sessions, trust), for configuration (recipes, settings) and for downloads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

APP = "cantrip"

_BY_XDG = ("linux",)
_XDG = {"state": "~/.local/state", "config": "~/.config", "cache": "~/.cache"}
_VARIABLES = ("CANTRIP_STATE_DIR", "CANTRIP_CONFIG_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME")
_named: set[str] = set()
"""State folders that options named explicitly. They are protected like the state folder from the environment."""


def state_dir(chosen: str | os.PathLike[str] | None = None) -> Path:
    """The state folder: ``chosen``, else ``$CANTRIP_STATE_DIR``, else the platform's. Absolute. It is not created here."""
    folder = _folder(chosen, "CANTRIP_STATE_DIR", "state")
    if chosen is not None:
        _named.add(str(folder))
    return folder


def config_dir(chosen: str | os.PathLike[str] | None = None) -> Path:
    """The configuration folder: ``chosen``, else ``$CANTRIP_CONFIG_DIR``, else the platform's."""
    return _folder(chosen, "CANTRIP_CONFIG_DIR", "config")


def cache_dir() -> Path:
    """The folder for data that can be downloaded again: ``$CANTRIP_CACHE_DIR``, else the platform's."""
    return _folder(None, "CANTRIP_CACHE_DIR", "cache")


def substrate_address(state: Path) -> Path | str | None:
    """The address of the substrate: ``$CANTRIP_SUBSTRATE``, else a file in the state folder. None if the variable is ``off``."""
    given = os.environ.get("CANTRIP_SUBSTRATE", "")
    return None if given == "off" else given or state / "substrate.db"


def _folder(chosen: str | os.PathLike[str] | None, variable: str, kind: str) -> Path:
    given = chosen if chosen is not None else os.environ.get(variable)
    if given:
        return Path(given).expanduser().absolute()
    if sys.platform in _BY_XDG:
        # The same result as platformdirs (XDG Base Directory 0.8: a relative path counts as unset). Every session calls
        # this, and importing platformdirs takes longer than reading the default recipe.
        xdg = os.environ.get(f"XDG_{kind.upper()}_HOME", "")
        return Path(xdg if os.path.isabs(xdg) else os.path.expanduser(_XDG[kind])) / APP
    import platformdirs

    return Path(getattr(platformdirs, f"user_{kind}_path")(APP))


def own() -> tuple[frozenset[str], str]:
    """The state folders that this process uses, and the configuration folder, as real paths.

    Their content decides what is allowed elsewhere (which recipes are trusted, what was allowed in a session, keys).
    So an entity must not reach them, even through a folder that contains them.
    """
    values = tuple(os.environ.get(name) for name in _VARIABLES)
    return _own_folders(frozenset(_named), values)


@lru_cache(maxsize=8)
def _own_folders(named: frozenset[str], values: tuple[str | None, ...]) -> tuple[frozenset[str], str]:
    folders = frozenset(os.path.realpath(folder) for folder in (*named, str(state_dir())))
    return folders, os.path.realpath(config_dir())


def private(folder: Path) -> Path:
    """Create a folder that only this user can read, if it does not exist. Returns the folder."""
    return make(folder, 0o700)


def make(folder: Path, mode: int = 0o777) -> Path:
    """Create a folder and its missing parents, and return it. In the state folder, new folders are for this user alone.
    Raises `OSError`."""
    states = [state_dir(), *map(Path, _named)]
    for each in (*reversed(folder.absolute().parents), folder.absolute()):
        ours = any(each.is_relative_to(state) for state in states)
        if ours or each == folder.absolute() or not each.is_dir():
            each.mkdir(mode=0o700 if ours else mode if each == folder.absolute() else 0o777, exist_ok=True)
    return folder


def private_folders() -> tuple[str, ...]:
    """The folders that no sandboxed command may see."""
    return (os.path.realpath(state_dir()),)


HOMES = "homes"
"""The folder of the state folder with the homes of workspaces."""
HOME_OF = ".workspace"
"""Beside each home ``NAME`` the file ``NAME.workspace`` holds the workspace's path."""


def persistent_home(workspace: Path | None) -> str:
    """The home folder of a workspace's commands, if the ward ``bash_home`` is ``persistent``. Created if missing.

    Its modification time is its last use: each command sets it.
    """
    import hashlib

    path = os.fsencode(os.path.realpath(workspace)) if workspace is not None else b""
    name = hashlib.blake2b(path, digest_size=12).hexdigest()
    home = os.path.join(os.path.realpath(state_dir()), HOMES, name)
    private(Path(home))
    if not os.path.lexists(home + HOME_OF):
        fd = os.open(home + HOME_OF, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.write(fd, path)
        os.close(fd)
    return home


def within(path: str, root: str) -> bool:
    """Whether an absolute path is ``root`` or below it, by its text."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def within_any(path: str, roots: Iterable[str]) -> bool:
    return any(within(path, root) for root in roots)
