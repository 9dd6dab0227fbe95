"""`cantrip doctor`: checks the sandbox, keys, providers and folders of this machine, and says how to fix problems."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import click

from cantrip_acp.cli import environment
from cantrip_acp.cli.command_table import examples
from cantrip_acp.files.installation import install_command
from cantrip_acp.types.errors import CantripError
from cantrip_acp.version import __version__

# --- Checks of providers: which have a key, where the key comes from, and with ``--probe`` whether they answer.


def check_providers(*, probe: bool) -> Iterator[Finding]:
    """Findings for the default crystal, for each provider with a key, and for the settings files. Never shows a key."""
    from cantrip_acp.crystals import keys
    from cantrip_acp.crystals.catalog import lookup
    from cantrip_acp.recipes.build import crystal_factory

    yield from _settings_files()
    found = {provider: keys.find(names, keyring=False) for provider, names in crystal_factory.KEYS.items()}
    missing = {p: names for p, names in crystal_factory.KEYS.items() if found[p] is None}
    if missing:
        in_keyring = keys.find_in_keyring([name for names in missing.values() for name in names])
        found |= {p: next((in_keyring[n] for n in names if n in in_keyring), None) for p, names in missing.items()}
    for provider, key in found.items():
        if key is not None:
            yield Finding(f"provider.{provider}", "ok", f"{key.name} from {key.source}")
    chosen = keys.setting(crystal_factory.VARIABLE)
    first = next((provider for provider, key in found.items() if key is not None), None)
    if chosen:
        yield Finding("crystal", "ok", f"{chosen} ({crystal_factory.VARIABLE}), if a recipe names no crystal")
    elif first is not None:
        model = lookup.default(first)
        yield Finding("crystal", "ok", f"{first}:{model} (the first provider with a key), if a recipe names no crystal")
    else:
        names = [names[0] for names in crystal_factory.KEYS.values()]
        yield Finding(
            "providers",
            "choice",
            "no model yet; `cantrip demo` needs none",
            f"Set one of {', '.join(names)} in the environment or in {keys.dotenv_file()}. Without a key: a local server "
            "(`cantrip models local`), or a very small model of this machine (`cantrip models pull smollm2`).",
        )
    if probe:
        yield from _probe([provider for provider, key in found.items() if key is not None], chosen)


def _settings_files() -> Iterator[Finding]:
    from cantrip_acp.crystals import keys
    from cantrip_acp.crystals.catalog import lookup
    from cantrip_acp.recipes.build import crystal_factory, providers

    for sentence in environment.unknown(os.environ):
        yield Finding("environment", "note", sentence, "Correct the name, or unset it.")
    path = keys.dotenv_file()
    try:
        mode = os.stat(path).st_mode
        problem = keys.permission_problem(mode)
        names = ", ".join(keys.dotenv()) or "nothing"
        if problem:
            yield Finding("keys.file", "note", f"{path} {problem.partition(';')[0]}", f"Run: chmod 600 {path}")
        else:
            yield Finding("keys.file", "ok", f"{path} sets {names}")
    except FileNotFoundError:
        pass
    except OSError as error:
        yield Finding("keys.file", "note", f"{path} cannot be read: {error.strerror}", "Correct its permissions.")
    if lookup.user_table_path().exists():
        try:
            own = lookup.user_table()
            count = sum(len(models) for models in own.values())
            yield Finding("models", "ok", f"{lookup.user_table_path()} has entries for {count} models")
            if odd := sorted(set(own) - set(crystal_factory.available())):
                text = f"{lookup.user_table_path()} has entries for unknown providers, which are not used: {', '.join(odd)}"
                mend = f"Use one of these providers: {', '.join(crystal_factory.available())}."
                yield Finding("models.provider", "note", text, mend)
        except CantripError as error:
            yield Finding(
                "models", "note", str(error), "Correct or remove the file. Until then no crystal can be made."
            )
    try:
        need = _need()
        base_url = keys.setting(providers.BASE_URL)
        if base_url:
            plain, login = providers.address(base_url, providers.BASE_URL, need)
            signed = ", with a login" if login is not None else ""
            text = f"requests to every provider are sent to {plain}{signed} ({providers.BASE_URL})"
            yield Finding("gateway", "ok", text)
        headers = providers.environment_headers()
        if headers:
            yield Finding("headers", "ok", f"each request has the headers {', '.join(headers)} ({providers.HEADERS})")
    except CantripError as error:
        yield Finding("gateway", "note", str(error), "Correct the variable. Until then no crystal can be made.")


def _probe(providers: list[str], chosen: str) -> Iterator[Finding]:
    """Send a request to each provider that has a key, to the chosen provider and to the local servers, all in parallel."""
    from concurrent.futures import ThreadPoolExecutor

    from cantrip_acp.crystals.local.presets import LOCAL
    from cantrip_acp.recipes.parse.names import MODEL_PROVIDERS

    asked = [p for p in dict.fromkeys([*providers, chosen.partition(":")[0], *LOCAL]) if p in MODEL_PROVIDERS]
    with ThreadPoolExecutor(max_workers=len(asked)) as pool:
        for provider, finding in zip(asked, pool.map(_probe_provider, asked), strict=True):
            wanted = provider in providers or provider == chosen.partition(":")[0]
            # A local server is optional, so it is reported only if it answers.
            if wanted or finding.state == "ok":
                yield finding


def _probe_provider(provider: str) -> Finding:
    from cantrip_acp.crystals import health_check
    from cantrip_acp.recipes.build import providers

    try:
        end = providers.endpoint(provider, {"model": "probe"}, _need(), known=False)
    except CantripError as error:
        return Finding(f"probe.{provider}", "note", str(error))
    answer = health_check.probe(provider, end.base_url, end.api_key, end.headers)
    text = f"{provider} {answer.text} ({answer.seconds * 1000:.0f} ms)"
    if answer.ok:
        return Finding(f"probe.{provider}", "ok", text)
    mend = "Check the key." if answer.status in (401, 403) else "Check the network, its proxy settings and the address."
    return Finding(f"probe.{provider}", "note", text, mend)


def _need() -> Any:
    from pathlib import Path

    from cantrip_acp.recipes.build.crystal_factory import FactoryContext
    from cantrip_acp.recipes.build.python_files import Files
    from cantrip_acp.types.errors import DefinitionError

    return FactoryContext(Path.cwd(), Files(), None, lambda path, message: DefinitionError(message))


_NO_SANDBOX = 3
_OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``mend`` says how to fix it, or what to do with a choice.

    ``state`` is ok, choice (nothing is wrong, and there is more if you want it), note (works, but not fully) or missing.
    """

    name: str
    state: str
    text: str
    mend: str | None = None


@click.command(
    "doctor",
    short_help="Check what works on this machine, and say how to fix the rest.",
    **examples("cantrip doctor", "cantrip doctor --all", "cantrip doctor --json", "cantrip doctor --probe"),
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: all findings, and whether commands can run."
)
@click.option("--probe", is_flag=True, help="Send a free request to each provider that has a key.")
@click.option("--all", "show_all", is_flag=True, help="Show every check, not only the verdict and what needs you.")
def doctor(as_json: bool, probe: bool, show_all: bool) -> int:
    """Say whether Cantrip works on this machine, which model it uses, and what is missing. `--all` shows every check:
    sandbox, system call filter, limits, programs, folders, and where keys were found (never a key).

    The sandbox that is tested is the real one: a command runs in it and tries everything that must be impossible.

    Exit status: 0 commands can run, 3 this machine has no sandbox.
    """
    findings = list(examine(probe=probe))
    sandbox = all(f.state != "missing" for f in findings if f.name.startswith("sandbox"))
    if as_json:
        data = {"sandbox": sandbox, "findings": [asdict(f) for f in findings]}
        click.echo(json.dumps(data, indent=2))
    else:
        _show(findings, show_all)
    return 0 if sandbox else _NO_SANDBOX


def examine(*, probe: bool = False) -> Iterator[Finding]:
    """Run all checks, and yield their findings in the order of the output."""
    yield _python()
    yield from _extras()
    yield from _sandbox()
    yield from _tools()
    yield from _folders()
    yield from _tuples()
    yield from _substrate()
    yield from check_providers(probe=probe)


def _python() -> Finding:
    text = f"Python {platform.python_version()} ({sys.executable}) on {platform.system()} {platform.release()}"
    if sys.version_info < _OLDEST_PYTHON:
        return Finding("python", "missing", text, "Install Python 3.11 or newer.")
    return Finding("python", "ok", text)


def _sandbox() -> Iterator[Finding]:
    from cantrip_acp.sandbox import diagnosis

    yield from (Finding(*each) for each in diagnosis.findings())


def _extras() -> Iterator[Finding]:
    """List the installed extras of the package, and how to install the others."""
    from importlib import metadata

    try:
        requirements = metadata.requires("cantrip-acp") or []
    except metadata.PackageNotFoundError:  # it runs from a folder that was not installed
        return
    missing: dict[str, bool] = {}
    for requirement in requirements:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        name = re.match(r"[\w.-]+", requirement)
        if extra is None or name is None or name[0] == "cantrip-acp":
            continue
        lacking = not any(metadata.Distribution.discover(name=name[0]))
        missing[extra[1]] = missing.get(extra[1], False) or lacking
    here = [extra for extra, lacking in sorted(missing.items()) if not lacking]
    yield Finding("extras", "ok", f"installed: {', '.join(here) or 'none'}")
    if rest := [extra for extra, lacking in sorted(missing.items()) if lacking]:
        mend = f"Install those that you need, such as: {install_command(rest[0])}."
        yield Finding("extras.missing", "choice", f"not installed: {', '.join(rest)}", mend)


def _tools() -> Iterator[Finding]:
    from cantrip_acp.sandbox import machine

    host = machine()
    shell = os.path.basename(host.shell)
    if shell == "bash":
        yield Finding("shell", "ok", f"commands run in {host.shell}")
    else:
        yield Finding("shell", "note", f"bash is not installed, so commands run in {host.shell}", "Install bash.")
    for name, use in (("git", "version control in the sandbox"), ("rg", "a fast search gate")):
        found = shutil.which(name)
        if found:
            yield Finding(name, "ok", found)
        else:
            package = "ripgrep" if name == "rg" else name
            yield Finding(name, "note", f"{name} is not installed ({use})", f"Install {package}.")
    hidden = [p for p in os.environ.get("PATH", "").split(":") if p and os.path.isdir(p) and p not in host.path]
    if hidden:
        yield Finding(
            "path",
            "note",
            f"commands in the sandbox cannot use these folders of PATH: {', '.join(hidden)}",
            "The sandbox contains only the folders of known version managers and installations. Move the programs, or link "
            "to them from ~/.local/bin.",
        )


def _folders() -> Iterator[Finding]:
    from cantrip_acp.files.paths import state_dir
    from cantrip_acp.sandbox import diagnosis
    from cantrip_acp.types.errors import SandboxError

    state = state_dir()
    nearest = state
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if os.access(nearest, os.W_OK):
        yield Finding("state", "ok", f"looms and sessions: {state}")
    else:
        yield Finding(
            "state", "missing", f"{state} cannot be written", "Set CANTRIP_STATE_DIR to a folder that you can write."
        )
    try:
        yield Finding("runtime", "ok", f"runtime files of sandboxes: {diagnosis.base_folder(os.environ)}")
    except SandboxError as error:
        yield Finding(
            "sandbox.runtime", "missing", str(error), "Set TMPDIR to a folder on a file system without noexec."
        )


def _tuples() -> Iterator[Finding]:
    """Report waiting tuples that no worker takes, in the default tuple-space."""
    from cantrip_acp.files.paths import state_dir

    space = os.environ.get("CANTRIP_TUPLE_SPACE") or str(state_dir() / "tuples.db")
    if "://" not in space and not os.path.exists(space.removeprefix("sqlite:")):
        return
    from cantrip_acp.tuplespace.monitoring.status import find_stuck
    from cantrip_acp.tuplespace.stores import open_store

    try:
        with closing(open_store(space)) as store:
            stuck = find_stuck(store)
            where = store.location
    except CantripError as error:
        yield Finding("tuples", "note", str(error), "`cantrip tuple status` shows the tuple-space when it can be read.")
        return
    if not stuck:
        yield Finding("tuples", "ok", f"no tuple waits in vain in {where}")
    for each in stuck:
        yield Finding(
            "tuples",
            "note",
            f"{each.count} in lane {each.lane} wait: {each.reason}",
            f"Start a worker that can run them: cantrip worker RECIPE --lane {each.lane}. See cantrip tuple rd {each.tuple_id}.",
        )


def _substrate() -> Iterator[Finding]:
    """Report how a shared substrate separates the private texts of its users."""
    address = os.environ.get("CANTRIP_SUBSTRATE", "")
    if "://" not in address:
        return
    from cantrip_acp.substrate.substrate import open_substrate

    try:
        with open_substrate(address) as substrate:
            state, where = substrate.tables.separation(), substrate.location
    except CantripError as error:
        yield Finding("substrate", "note", str(error), "Sessions go on without it: they remember and record nothing.")
        return
    if state is None:
        return
    who = f"{state.name} (CANTRIP_USER) of the role {state.role}" if state.name else f"the role {state.role}"
    if state.secured and not state.passes:
        yield Finding("substrate", "ok", f"{where} keeps private texts apart by row-level security; you are {who}")
    elif state.secured:
        yield Finding(
            "substrate",
            "note",
            f"row-level security does not hold for the role {state.role}, which is a superuser or has BYPASSRLS: it can read "
            f"the private texts of everybody in {where}",
            "Use a role of your own for everyday work.",
        )
    else:
        yield Finding(
            "substrate",
            "note",
            f"{where} has no row-level security: your private texts are kept apart by name only, and everybody who may "
            "connect can read them with SQL",
            "Let the role that made the tables run `cantrip substrate secure`.",
        )
    if state.nobodys:
        yield Finding(
            "substrate",
            "note",
            f"{state.nobodys:,} private texts that earlier versions stored in {where} belong to nobody",
            "Let the role that made the tables give them to their owner: `cantrip substrate secure --earlier ROLE`.",
        )


_VERDICTS = ("sandbox", "crystal", "providers")
"""The findings that are always shown, besides those that need somebody: the sandbox as one line, and the model."""


def _show(findings: list[Finding], show_all: bool) -> None:
    from cantrip_acp.cli.render.terminal import Screen

    screen = Screen()
    marks = {
        "ok": (screen.marks.done, "green"),
        "choice": ("·", "cyan"),
        "note": ("!", "yellow"),
        "missing": (screen.marks.failed, "bold red"),
    }
    if not show_all:
        checks = [f for f in findings if f.name.startswith("sandbox") and f.state == "ok"]
        shown = [f for f in findings if f.state in ("note", "missing") or f.name in _VERDICTS]
        if not any(f.state == "missing" for f in findings):
            text = f"Cantrip {__version__} works here: commands and Python run, in a sandbox that passed {len(checks)} checks"
            shown.insert(0, Finding("cantrip", "ok", text))
        rest = len(findings) - len(shown)
    else:
        shown, rest = findings, 0
    width = max(len(f.name) for f in shown)
    for finding in shown:
        screen.line(marks[finding.state], f" {finding.name:<{width}}  {finding.text}")
        if finding.mend is not None and finding.state != "ok":
            screen.line((finding.mend, "dim"), indent=width + 4)
    if rest:
        screen.line((f"  {'':<{width}}  every check: cantrip doctor --all", "dim"))
