"""API keys: finds them in the environment, in the user's ``.env``, or in the system's keyring, in this order.

Only the ``.env`` in the configuration folder is read. A ``.env`` in a workspace is not trusted. The keyring is used last,
and only if the package ``keyring`` is installed. A key has the service ``cantrip`` and the variable's name there
(``keyring set cantrip ANTHROPIC_API_KEY``).
"""

from __future__ import annotations

import json
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
from cantrip_acp.text.logs import logger
from cantrip_acp.text.redaction import MASK, looks_secret, shared

_log = logger(__name__)

SERVICE = "cantrip"
KEYRING = "the system's keyring"
KEYRING_SECONDS = 5.0
"""Seconds to wait for the keyring. One that does not answer (it is locked, or its daemon hangs) counts as empty."""
KEYRING_PAUSE = 60.0
"""Seconds before a keyring that did not answer is used again."""
MAX_BYTES = 256 * 1024

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Found:
    """A key. ``name`` is its variable. ``source`` says in words where it was found: the environment, a file or the keyring."""

    name: str
    secret: Secret = field(repr=False)
    source: str


def find(names: Sequence[str], *, keyring: bool = True) -> Found | None:
    """Find the first of these variables that is set. All names are searched in one place before the next place."""
    found = _set_here(names)
    if found is None and keyring:
        held = find_in_keyring(names)
        return next((held[name] for name in names if name in held), None)
    return found


def find_first_provider(providers: Mapping[str, Sequence[str]]) -> tuple[str, Found] | None:
    """Find the first provider with a key. The keyring is used once, and only if no other place has a key for any provider."""
    for provider, names in providers.items():
        found = _set_here(names)
        if found is not None:
            return provider, found
    held = find_in_keyring([name for names in providers.values() for name in names])
    for provider, names in providers.items():
        for name in names:
            if name in held:
                return provider, held[name]
    return None


def find_in_keyring(names: Sequence[str]) -> dict[str, Found]:
    """Find the keys with these names in the keyring."""
    return {name: Found(name, Secret(value), KEYRING) for name, value in _read_keyring(names).items()}


def setting(name: str) -> str:
    """Read a setting that is not a key (such as ``CANTRIP_CRYSTAL``) from the environment, else from ``.env``."""
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
    """The path of the only ``.env`` file that is read."""
    return config_dir() / ".env"


_read: tuple[Path, tuple[int, int, int], dict[str, str]] | None = None


def dotenv() -> dict[str, str]:
    """Return the settings in ``.env``; empty if the file does not exist. The file is read again after a change. Its
    secrets are registered for redaction."""
    global _read
    path = dotenv_file()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            _log.warning("%s cannot be read, so its keys are not used: %s", path, error.strerror)
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
    problem = permission_problem(state.st_mode)
    if problem:
        _log.warning("%s %s", path, problem)
    held = parse(text)
    shared().add(*(value for name, value in held.items() if looks_secret(name)))
    _read = (path, version, held)
    return held


def permission_problem(mode: int) -> str | None:
    """Say what is wrong with the permissions of a file with keys; None if they are safe."""
    if not mode & 0o077:
        return None
    who = "written" if mode & 0o022 else "read"
    return f"can be {who} by other users of this machine; to fix this, run: chmod 600"


def parse(text: str) -> dict[str, str]:
    """Parse lines ``NAME=value``. ``export``, quotes around the value and ``# comments`` are allowed.

    Variables are not expanded, so a ``$`` in a value is part of the value. Other lines are ignored.
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


def _read_keyring(names: Sequence[str]) -> dict[str, str]:
    """Read the keys with these names from the keyring, in a separate process without a terminal and with a time limit.

    A keyring may otherwise block: it may ask for a password, wait for a window, or wait for a daemon that hangs.
    """
    global _silent_until
    if time.monotonic() < _silent_until or not keyring_installed():
        return {}
    try:
        # -P and another folder prevent the import of a keyring.py from a workspace.
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
        _log.info("the system's keyring did not answer: %s", type(error).__name__)
        return {}
    return {name: value.strip() for name, value in found.items() if isinstance(value, str) and value.strip()}


class Secret:
    """Holds one secret text. Only ``reveal`` returns it: repr, str and format show a mask, and pickling fails.

    A new secret is registered with the process's redactor, which masks it in all later output.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value
        shared().add(value)

    def reveal(self) -> str:
        """Return the secret text. Call this only to make a request."""
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
