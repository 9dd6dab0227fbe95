"""Sign-in at a terminal: `cantrip-acp --sign-in` asks for a provider's key and saves it (ACP, Authentication).

An editor runs this command in its own terminal for the ``terminal`` method. The command saves the key in the ``.env``
file of the user's configuration folder, so a running agent finds it without a restart. `sign_out` deletes only the keys
that this command saved, not the lines that the user wrote.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cantrip_acp.acp.wire.jsonrpc import AUTH_REQUIRED, RpcError
from cantrip_acp.crystals import keys
from cantrip_acp.crystals.endpoint import BASE_URL_VARIABLES, LOCAL_KEY
from cantrip_acp.files.paths import private
from cantrip_acp.recipes.build.crystal_factory import KEYS, VARIABLE

if TYPE_CHECKING:
    from cantrip_acp.acp.protocol import ClientAbilities
    from cantrip_acp.acp.wire.connection import Connection, Request


MARK: Final = "# set by cantrip-acp --sign-in"
_KEY = re.compile(r"[!$-&(-~]{8,4096}\Z")
"""Printable characters without blanks, quotes and ``#``, because those have a special meaning in a ``.env`` file."""


def sign_in(ask: Callable[[str], str] = input, ask_hidden: Callable[[str], str] | None = None) -> int:
    """Ask for a provider and its key, and save the key. Returns the exit status."""
    from getpass import getpass

    from cantrip_acp.crystals.local import discovery

    providers = [(name, variables[0]) for name, variables in KEYS.items() if variables]
    out = sys.stderr
    out.write("Which provider's models do you want to use?\n")
    for number, (name, variable) in enumerate(providers, 1):
        status = " (a key is set)" if keys.find((variable,)) is not None else ""
        out.write(f"  {number}  {name}{status}\n")
    local: dict[str, str] = {}
    for server in discovery.find_running():
        crystal = f"{server.provider}:{server.models[0].name}"
        number = len(providers) + len({*local.values()}) + 1
        local |= {str(number): crystal, server.provider: crystal}
        out.write(f"  {number}  {crystal}, which runs on this machine and needs no key\n")
    try:
        chosen = ask("Number or name: ").strip().lower()
        if chosen in local:
            return _save_default_crystal(local[chosen])
        names = {str(number): pair for number, pair in enumerate(providers, 1)} | {p[0]: p for p in providers}
        if chosen not in names:
            out.write(
                f"{chosen!r} is not in this list. Nothing was changed. Start again and choose a number or a name.\n"
            )
            return 1
        name, variable = names[chosen]
        key = (ask_hidden or getpass)(f"Key for {name} (it is not shown): ").strip()
    except (EOFError, KeyboardInterrupt):
        out.write("\nNothing was changed.\n")
        return 1
    if not is_key(key):
        out.write(
            "This is not a key. A key has 8 or more letters, digits and signs, without blanks and quotes. Nothing was "
            "changed.\n"
        )
        return 1
    try:
        path = save_key(variable, key)
    except OSError as problem:
        out.write(f"{keys.dotenv_file()} cannot be written: {problem.strerror or problem}\n")
        return 1
    out.write(
        f"{variable} is saved in {path}. Only you can read this file. The agent uses the key in its next session.\n"
    )
    _warn_if_in_environment(variable)
    return 0


def local_models() -> list[dict[str, Any]]:
    """The models of servers on this machine that can be used without a key, for ``_cantrip/models/local``. Blocks for some
    seconds at most.

    Each has ``crystal`` (``ollama:qwen3``), ``provider``, ``name``, and what its server says: ``contextWindow`` in tokens,
    ``tools`` and ``loaded``.
    """
    from cantrip_acp.crystals.local import discovery

    return [
        {
            "crystal": f"{server.provider}:{model.name}",
            "provider": server.provider,
            "name": model.name,
            "contextWindow": model.context_window,
            "tools": model.tools,
            "loaded": model.loaded,
        }
        for server in discovery.find_running()
        for model in server.models
    ]


def use_local_model(crystal: str) -> None:
    """Save a model that `local_models` finds as the default crystal. Raises `LookupError` for any other, and OSError if it
    cannot be saved."""
    if crystal not in [model["crystal"] for model in local_models()]:
        raise LookupError(f"no server on this machine offers {crystal[:200]!r} now")
    save_key(VARIABLE, crystal)


def key_providers() -> list[dict[str, Any]]:
    """The providers whose models need a key, for ``_cantrip/sign_in/list``.

    Each has ``provider``, ``hasKey`` and ``needsModel``, which is true if no model of it is chosen by default.
    """
    from cantrip_acp.crystals.local.presets import PRESETS
    from cantrip_acp.recipes.build.providers import key_names

    names = (*KEYS, *(name for name, preset in PRESETS.items() if not preset.local))
    return [
        {
            "provider": name,
            "hasKey": keys.find(key_names(name), keyring=False) is not None,
            "needsModel": name not in KEYS,
        }
        for name in names
    ]


def embedded_models() -> list[dict[str, Any]]:
    """The models that this machine can run without a server, for ``_cantrip/sign_in/list``.

    Each has ``crystal`` (``embedded:smollm2``), ``about``, ``bytes`` to download, and whether it is ``here``.
    """
    from cantrip_acp.crystals.embedded import weights

    return [
        {"crystal": f"embedded:{name}", "about": known.about, "bytes": known.size, "here": known.pulled}
        for name, known in weights.KNOWN.items()
    ]


class CannotSignIn(Exception):
    """A sign-in cannot succeed. The text says why."""


def address_of(base_url: str) -> str:
    """The address of an OpenAI-compatible server as the user typed it; ``/v1`` is added if it has no path.

    Raises `CannotSignIn` if it is no address.
    """
    from urllib.parse import urlsplit

    from cantrip_acp.recipes.build.providers import make_route
    from cantrip_acp.types.errors import DefinitionError

    text = base_url.strip()
    try:
        route = make_route("openai", text if "://" in text else f"http://{text}", {})
    except DefinitionError as problem:
        raise CannotSignIn(f"The address {str(problem).partition(': ')[2] or problem}.") from None
    if route.headers:
        raise CannotSignIn("The address has a password in it. Give the password as the key.")
    parts = urlsplit(route.base_url)
    return route.base_url if parts.path.strip("/") else f"{route.base_url.rstrip('/')}/v1"


def served_models(provider: str, key: str, base_url: str) -> dict[str, Any]:
    """The models that a server lists, for ``_cantrip/sign_in/models``: ``baseUrl`` and ``models`` with ``name`` and
    ``contextWindow``.

    ``provider`` is ``local`` with a ``base_url``, or one of `key_providers`. Without a ``key``, its saved key is used.
    Raises `CannotSignIn` with the reason.
    """
    from cantrip_acp.crystals.local import discovery
    from cantrip_acp.crystals.local.presets import PRESETS
    from cantrip_acp.recipes.build.providers import key_names

    if provider != "local" and provider not in PRESETS:
        raise CannotSignIn(f"There is no list of the models of {provider[:100]!r}.")
    address = address_of(base_url) if provider == "local" else PRESETS[provider].base_url
    secret = keys.Secret(key) if key else None
    if secret is None and provider != "local" and (found := keys.find(key_names(provider))) is not None:
        secret = found.secret
    try:
        models = discovery.list_models(address, secret)
    except discovery.NoServer as problem:
        if str(problem) in ("it answers 401", "it answers 403"):
            which = "this key" if key else "a request without a key"
            raise CannotSignIn(f"The server at {address} does not accept {which}.") from None
        raise CannotSignIn(f"The server at {address} lists no models: {problem}.") from None
    return {
        "baseUrl": address,
        "models": [{"name": model.name, "contextWindow": model.context_window} for model in models],
    }


def use_model(provider: str, key: str, base_url: str, model: str) -> tuple[str, list[str]]:
    """Save a key, an address and a model: new sessions whose recipe names no model use it.

    ``provider`` is ``local`` with a ``base_url``, ``embedded``, or one of `key_providers`. An empty ``key`` leaves a saved
    one as it is; an address without a key has none. Returns the crystal, and the variables that the environment of this
    process sets to something else and that therefore come first. Raises `CannotSignIn`, and OSError if it cannot be saved.
    """
    from cantrip_acp.crystals.catalog import lookup
    from cantrip_acp.crystals.embedded import weights
    from cantrip_acp.recipes.build.providers import key_names

    known = {each["provider"]: each for each in key_providers()}
    settings: dict[str, str | None] = {}
    if key and not is_key(key):
        raise CannotSignIn(
            "This is not a key: a key has 8 or more letters, digits and signs, without spaces and quotes."
        )
    if provider == "local":
        settings |= {BASE_URL_VARIABLES[provider]: address_of(base_url), LOCAL_KEY: key or None}
    elif provider in known:
        if key:
            settings[key_names(provider)[0]] = key
        elif keys.find(key_names(provider)) is None:
            raise CannotSignIn(f"There is no key for {provider} yet.")
    elif provider != "embedded" or model not in weights.KNOWN:
        raise CannotSignIn(f"There is no provider {provider[:100]!r} to sign in with.")
    if (
        model != model.strip()
        or not model.isprintable()
        or (not model and (provider == "local" or known[provider]["needsModel"]))
    ):
        raise CannotSignIn("Name the model that is to be used.")
    crystal = f"{provider}:{model}" if model else provider
    settings[VARIABLE] = crystal
    _save(settings)
    if not model and (default := lookup.default(provider)) is not None:
        crystal = f"{provider}:{default}"
    return crystal, [name for name, value in settings.items() if os.environ.get(name, "").strip() not in ("", value)]


def _warn_if_in_environment(variable: str) -> None:
    if os.environ.get(variable, "").strip():
        sys.stderr.write(
            f"{variable} is also set in this environment. If the agent has it there too, it uses that value.\n"
        )


def _save_default_crystal(crystal: str) -> int:
    """Save a local server's model as the default crystal, for recipes that name none."""
    try:
        path = save_key(VARIABLE, crystal)
    except OSError as problem:
        sys.stderr.write(f"{keys.dotenv_file()} cannot be written: {problem.strerror or problem}\n")
        return 1
    sys.stderr.write(f"{VARIABLE}={crystal} is saved in {path}. The agent uses it in its next session.\n")
    _warn_if_in_environment(VARIABLE)
    return 0


def is_key(text: str) -> bool:
    """Whether a text has the form of a key that ``.env`` can hold."""
    return _KEY.match(text) is not None


def save_key(variable: str, key: str) -> Path:
    """Save a key in ``.env``. It replaces a key of the same name. Raises OSError if the file cannot be written."""
    return _save({variable: key})


def _save(settings: Mapping[str, str | None]) -> Path:
    """Write all settings at once in place of those with the same names; None removes one."""
    lines = _remove_settings(_lines(), lambda name, _: name in settings)
    for name, value in settings.items():
        if value is not None:
            lines += [MARK, f"{name}={value}"]
    return _write(lines)


def sign_out() -> int:
    """Delete the keys that `sign_in` saved. Returns their number. Raises OSError if the file cannot be written."""
    lines = _lines()
    remaining = _remove_settings(lines, lambda _, marked: marked)
    if remaining != lines:
        _write(remaining)
    return lines.count(MARK)


def _remove_settings(lines: list[str], should_remove: Callable[[str, bool], bool]) -> list[str]:
    """Return the lines without some settings and without the marks above them.

    ``should_remove`` gets the name of a setting, and whether `cantrip-acp --sign-in` wrote it.
    """
    remaining: list[str] = []
    for line in lines:
        name = line.strip().removeprefix("export ").partition("=")[0].strip()
        marked = bool(remaining) and remaining[-1] == MARK
        if "=" in line and not line.lstrip().startswith("#") and should_remove(name, marked):
            if marked:
                remaining.pop()
            continue
        remaining.append(line)
    return remaining


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


# --- A missing key: if a session cannot start without a key and the client shows forms, ask the user to set the key.
#
# The form does not ask for the key itself, because forms must not carry secrets (ACP, Elicitation). It asks whether the
# user has set the key. The agent finds new keys in the ``.env`` of the configuration folder and in the keyring without a
# restart. A client that can open a terminal to sign in (`auth.terminal`) gets no form but the error: it then offers the
# terminal.

TRIES = 5

_T = TypeVar("_T")


async def ask_until_key_is_set(
    connection: Connection, client: ClientAbilities, request: Request, begin: Callable[[], Awaitable[_T]]
) -> _T:
    """Call ``begin``, and ask the user for a key until it succeeds. Returns its result.

    Raises the `RpcError` -32000 of ``begin`` if the client cannot ask, or if the user stops.
    """
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
                message=f"{problem.message} Or set a key now (run `cantrip-acp --sign-in` in a terminal), and continue.",
                requested_schema=form_schema(
                    "Continue", [("again", "I have set a key: try again"), ("stop", "Stop here")]
                ),
                request_id=msgspec.Raw(request.id.raw),
            )
            if await ask_with_form(connection, form) != "again":
                raise
    return await begin()
