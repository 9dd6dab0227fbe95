"""API keys: finds them in the environment, in the user's ``.env``, or in the system's keyring, in this order.

Only the ``.env`` in the configuration folder is read: one in a workspace came with somebody's repository. The keyring
is asked last, and only where the package ``keyring`` is installed, under the service ``cantrip`` and the variable's
name (``keyring set cantrip ANTHROPIC_API_KEY``).
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from cantrip_acp.files.paths import config_dir
from cantrip_acp.text.redaction import MASK, looks_secret, shared

_log = logging.getLogger(__name__)

SERVICE = "cantrip"
KEYRING = "the system's keyring"
KEYRING_SECONDS = 5.0
"""A keyring that does not answer in these seconds (it is locked, or its daemon hangs) counts as empty."""
KEYRING_PAUSE = 60.0
"""Seconds for which such a keyring is not asked again."""
MAX_BYTES = 256 * 1024

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Found:
    """A key. ``name`` is its variable; ``source`` is its place, as text for people: the environment, a file, the keyring."""

    name: str
    secret: Secret = field(repr=False)
    source: str


def find(names: Sequence[str], *, keyring: bool = True) -> Found | None:
    """The first of these variables that is set. Each place is searched for all of them before the next place."""
    found = _set_here(names)
    if found is None and keyring:
        held = in_keyring(names)
        return next((held[name] for name in names if name in held), None)
    return found


def first(providers: Mapping[str, Sequence[str]]) -> tuple[str, Found] | None:
    """The first provider with a key, in order. The keyring is asked once, where no other place has a key for any of them."""
    for provider, names in providers.items():
        found = _set_here(names)
        if found is not None:
            return provider, found
    held = in_keyring([name for names in providers.values() for name in names])
    for provider, names in providers.items():
        for name in names:
            if name in held:
                return provider, held[name]
    return None


def in_keyring(names: Sequence[str]) -> dict[str, Found]:
    """The keys that the keyring has of these."""
    return {name: Found(name, Secret(value), KEYRING) for name, value in _asked(names).items()}


def setting(name: str) -> str:
    """A setting that is not a key (``CANTRIP_CRYSTAL``, ``CANTRIP_BASE_URL``), from the environment, else from ``.env``."""
    return (os.environ.get(name) or dotenv().get(name, "")).strip()


def _set_here(names: Sequence[str]) -> Found | None:
    for name in names:
        value = os.environ.get(name, "").strip()
        if value:
            return Found(name, Secret(value), "the environment")
    held = dotenv()
    for name in names:
        if held.get(name):
            return Found(name, Secret(held[name]), str(dotenv_file()))
    return None


# --- .env ------------------------------------------------------------------------------------------------------------


def dotenv_file() -> Path:
    """The only ``.env`` that is read."""
    return config_dir() / ".env"


_read: tuple[Path, tuple[int, int, int], dict[str, str]] | None = None


def dotenv() -> dict[str, str]:
    """The settings of ``.env``; empty where there is none. It is read again when it has changed. Its secrets are
    redacted from then on."""
    global _read
    path = dotenv_file()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            _log.warning("%s cannot be read, so its keys are not there: %s", path, error.strerror)
        return {}
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        os.close(descriptor)
        return {}
    with open(descriptor, "rb") as file:
        version = (state.st_mtime_ns, state.st_size, state.st_mode)
        if _read is not None and _read[:2] == (path, version):
            return _read[2]
        text = file.read(MAX_BYTES).decode("utf-8-sig", "replace")
    problem = exposed(state.st_mode)
    if problem:
        _log.warning("%s %s", path, problem)
    held = parse(text)
    shared().add(*(value for name, value in held.items() if looks_secret(name)))
    _read = (path, version, held)
    return held


def exposed(mode: int) -> str | None:
    """The problem with the permissions of a file that holds keys; None where there is none."""
    if not mode & 0o077:
        return None
    who = "written" if mode & 0o022 else "read"
    return f"can be {who} by other users of this machine; mend it with: chmod 600"


def parse(text: str) -> dict[str, str]:
    """Parse lines ``NAME=value``, with optional ``export``, quotes around the value and ``# comments``.

    Nothing is expanded: a ``$`` in a key is part of the key. Other lines are ignored.
    """
    held: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not _NAME.match(name):
            continue
        if value[:1] in ("'", '"'):
            value = value[1:].partition(value[0])[0]
        else:
            value = re.split(r"\s#", value, maxsplit=1)[0].strip()
        held[name] = value
    return held


# --- the keyring -----------------------------------------------------------------------------------------------------

_ASK = """
import json, sys
import keyring
found = {}
for name in sys.argv[2:]:
    value = keyring.get_password(sys.argv[1], name)
    if value:
        found[name] = value
json.dump(found, sys.stdout)
"""

_silent_until = 0.0


def keyring_installed() -> bool:
    """Whether the package ``keyring`` is installed."""
    from importlib.util import find_spec

    return find_spec("keyring") is not None


def _asked(names: Sequence[str]) -> dict[str, str]:
    """The keys that the keyring has of these.

    A separate process asks it, without a terminal and with a time limit: a back end may want a typed password, wait
    for a window that nobody sees, or talk to a daemon that does not answer.
    """
    global _silent_until
    if time.monotonic() < _silent_until or not keyring_installed():
        return {}
    try:
        # -P and another folder: do not import a keyring.py from a workspace.
        done = subprocess.run(
            [sys.executable, "-P", "-c", _ASK, SERVICE, *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            timeout=KEYRING_SECONDS,
            start_new_session=True,
            check=False,
        )
        found = json.loads(done.stdout) if done.returncode == 0 else {}
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        _silent_until = time.monotonic() + KEYRING_PAUSE
        _log.info("the system's keyring gave no answer: %s", type(error).__name__)
        return {}
    return {name: value.strip() for name, value in found.items() if isinstance(value, str) and value.strip()}


class Secret:
    """Holds one secret text. Its repr, str, format and pickle do not reveal it; ``reveal`` does.

    Creating one registers it with the process's redactor, so it is masked in everything that is written from then on.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value
        shared().add(value)

    def reveal(self) -> str:
        """The text itself, for the one request that needs it."""
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __str__(self) -> str:
        return MASK

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled")
