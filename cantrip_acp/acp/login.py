"""Sign-in at a terminal: `cantrip-acp --sign-in` asks for a provider's key and saves it (ACP, Authentication).

An editor runs this in its own terminal for the ``terminal`` method. The key goes into the ``.env`` of the user's
configuration folder, so a running agent finds it without a restart. `sign_out` deletes only what was set here, and
nothing that the user wrote there by hand.
"""

from __future__ import annotations

import getpass
import os
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from cantrip_acp.acp.wire.jsonrpc import AUTH_REQUIRED, RpcError
from cantrip_acp.crystals import keys
from cantrip_acp.crystals.local import discovery
from cantrip_acp.files.paths import private
from cantrip_acp.recipes.build.crystal_factory import KEYS, VARIABLE

if TYPE_CHECKING:
    from cantrip_acp.acp.protocol import ClientAbilities
    from cantrip_acp.acp.wire.connection import Connection, Request


MARK: Final = "# set by cantrip-acp --sign-in"
_KEY = re.compile(r"[!$-&(-~]{8,4096}\Z")
"""Printable characters, without blanks, quotes and ``#``, which have a meaning in the file."""


def sign_in(ask: Callable[[str], str] = input, ask_hidden: Callable[[str], str] = getpass.getpass) -> int:
    """Ask for a provider and its key, and save the key. Returns the exit status."""
    providers = [(name, variables[0]) for name, variables in KEYS.items() if variables]
    out = sys.stderr
    out.write("Whose models are to be used?\n")
    for number, (name, variable) in enumerate(providers, 1):
        there = " (a key is set)" if keys.find((variable,)) is not None else ""
        out.write(f"  {number}  {name}{there}\n")
    local: dict[str, str] = {}
    for server in discovery.running():
        crystal = f"{server.provider}:{server.models[0].name}"
        number = len(providers) + len({*local.values()}) + 1
        local |= {str(number): crystal, server.provider: crystal}
        out.write(f"  {number}  {crystal}, which runs on this machine and needs no key\n")
    try:
        chosen = ask("Number or name: ").strip().lower()
        if chosen in local:
            return _use(local[chosen])
        names = {str(number): pair for number, pair in enumerate(providers, 1)} | {p[0]: p for p in providers}
        if chosen not in names:
            out.write(f"There is no {chosen!r} here; nothing was changed.\n")
            return 1
        name, variable = names[chosen]
        key = ask_hidden(f"Key for {name} (it is not shown): ").strip()
    except (EOFError, KeyboardInterrupt):
        out.write("\nNothing was changed.\n")
        return 1
    if not _KEY.match(key):
        out.write(
            "That is no key: 8 or more letters, digits and signs without blanks or quotes. Nothing was changed.\n"
        )
        return 1
    try:
        path = save_key(variable, key)
    except OSError as problem:
        out.write(f"{keys.dotenv_file()} cannot be written: {problem.strerror or problem}\n")
        return 1
    out.write(f"{variable} is kept in {path}, for you alone to read. The agent finds it with its next session.\n")
    if os.environ.get(variable, "").strip():
        out.write(f"{variable} is set in this environment too, and that one is taken where the agent has it.\n")
    return 0


def _use(crystal: str) -> int:
    """Save a local server's model as the default crystal, for recipes that name none."""
    try:
        path = save_key(VARIABLE, crystal)
    except OSError as problem:
        sys.stderr.write(f"{keys.dotenv_file()} cannot be written: {problem.strerror or problem}\n")
        return 1
    sys.stderr.write(f"{VARIABLE}={crystal} is kept in {path}. The agent uses it with its next session.\n")
    if os.environ.get(VARIABLE, "").strip():
        sys.stderr.write(f"{VARIABLE} is set in this environment too, and that one is taken where the agent has it.\n")
    return 0


def save_key(variable: str, key: str) -> Path:
    """Save a key in ``.env``; it replaces a key of the same name. Raises OSError where the file cannot be written."""
    lines = _without(_lines(), lambda name, _: name == variable)
    return _write([*lines, MARK, f"{variable}={key}"])


def sign_out() -> int:
    """Delete the keys that were set here. Returns how many they were. Raises OSError where the file cannot be written."""
    lines = _lines()
    left = _without(lines, lambda _, marked: marked)
    if left != lines:
        _write(left)
    return lines.count(MARK)


def _without(lines: list[str], gone: Callable[[str, bool], bool]) -> list[str]:
    """The lines without the settings for which ``gone`` is true, and without their marks. ``gone`` gets the name, and
    whether it was set here."""
    left: list[str] = []
    for line in lines:
        name = line.strip().removeprefix("export ").partition("=")[0].strip()
        marked = bool(left) and left[-1] == MARK
        if "=" in line and not line.lstrip().startswith("#") and gone(name, marked):
            if marked:
                left.pop()
            continue
        left.append(line)
    return left


def _lines() -> list[str]:
    try:
        return keys.dotenv_file().read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return []


def _write(lines: list[str]) -> Path:
    path = Path(os.path.realpath(keys.dotenv_file()))
    private(path.parent)
    part = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write("".join(f"{line}\n" for line in lines))
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path


# --- A session that cannot start without a key: the agent asks the user to set one, where the client shows forms.
#
# The form asks what to do next. It never asks for the key, which no form may carry (ACP, Elicitation). Keys in the
# ``.env`` of the configuration folder and in the keyring are found without restarting the agent. A client that opens a
# terminal to sign in (`auth.terminal`) gets the error at once: that is how it knows to offer the terminal, and a form
# would only send its user there too.

TRIES = 5

_T = TypeVar("_T")


async def with_missing_key(
    connection: Connection, client: ClientAbilities, request: Request, begin: Callable[[], Awaitable[_T]]
) -> _T:
    """The result of ``begin``, once there is a key. Raises its `RpcError` -32000 where nobody can be asked, or the
    user gives up."""
    for _ in range(TRIES):
        try:
            return await begin()
        except RpcError as problem:
            if problem.code != AUTH_REQUIRED or not client.forms or client.auth_terminal or request.id is None:
                raise
            if isinstance(problem.data, dict) and problem.data.get("reason") == "signed_out":
                # A user who signed out signs in again by `authenticate`, not by a form.
                raise
            import msgspec

            from cantrip_acp.acp.client_services.forms import Form, ask_with_form, form_schema

            form = Form(
                message=f"{problem.message} Or set a key now (`cantrip-acp --sign-in` in a terminal does it), and go on.",
                requested_schema=form_schema(
                    "Go on", [("again", "A key is set now: look again"), ("stop", "Stop here")]
                ),
                request_id=msgspec.Raw(request.id.raw),
            )
            if await ask_with_form(connection, form) != "again":
                raise
    return await begin()
