"""What `cantrip doctor` says of providers: which have a key, where it came from, and with ``--probe`` whether they answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cantrip_acp.core.errors import CantripError

if TYPE_CHECKING:
    from cantrip_acp.cli.doctor import Finding


def look(*, probe: bool) -> Iterator[Finding]:
    """A finding for what was chosen, for each provider with a key, for the files that were read. Shows no key."""
    from cantrip_acp.cli.doctor import Finding
    from cantrip_acp.crystals import keys, table
    from cantrip_acp.recipes.build import crystals

    yield from _files()
    found = {provider: keys.find(names, keyring=False) for provider, names in crystals.KEYS.items()}
    missing = {p: names for p, names in crystals.KEYS.items() if found[p] is None}
    if missing:
        held = keys.in_keyring([name for names in missing.values() for name in names])
        found |= {p: next((held[n] for n in names if n in held), None) for p, names in missing.items()}
    for provider, key in found.items():
        if key is not None:
            yield Finding(f"provider.{provider}", "ok", f"{key.name} from {key.source}")
    chosen = keys.setting(crystals.VARIABLE)
    first = next((provider for provider, key in found.items() if key is not None), None)
    if chosen:
        yield Finding("crystal", "ok", f"{chosen} ({crystals.VARIABLE}), where a recipe names none")
    elif first is not None:
        model = table.default(first)
        yield Finding("crystal", "ok", f"{first}:{model} (the first provider with a key), where a recipe names none")
    else:
        names = [names[0] for names in crystals.KEYS.values()]
        yield Finding(
            "providers",
            "note",
            "no provider's key is set; scripted crystals, Ollama and `cantrip demo` need none",
            f"Set one of {', '.join(names)}, or write it into {keys.dotenv_file()}.",
        )
    if probe:
        yield from _probe([provider for provider, key in found.items() if key is not None], chosen)


def _files() -> Iterator[Finding]:
    from cantrip_acp.cli.doctor import Finding
    from cantrip_acp.crystals import keys, table
    from cantrip_acp.recipes.build import crystals, providers

    path = keys.dotenv_file()
    try:
        mode = os.stat(path).st_mode
        problem = keys.exposed(mode)
        names = ", ".join(keys.dotenv()) or "nothing"
        if problem:
            yield Finding("keys.file", "note", f"{path} {problem.partition(';')[0]}", f"Run: chmod 600 {path}")
        else:
            yield Finding("keys.file", "ok", f"{path} sets {names}")
    except FileNotFoundError:
        pass
    except OSError as error:
        yield Finding("keys.file", "note", f"{path} cannot be read: {error.strerror}", "Mend its permissions.")
    if table.users_file().exists():
        try:
            own = table.users_own()
            count = sum(len(models) for models in own.values())
            yield Finding("models", "ok", f"{table.users_file()} says something of {count} models")
            if odd := sorted(set(own) - set(crystals.available())):
                text = f"{table.users_file()} speaks of {', '.join(odd)}, which is no provider here"
                mend = f"Name one of {', '.join(crystals.available())}: what it says there is not used."
                yield Finding("models.provider", "note", text, mend)
        except CantripError as error:
            yield Finding("models", "note", str(error), "Mend or remove the file: no crystal can be made until then.")
    try:
        need = _need()
        base_url = keys.setting(providers.BASE_URL)
        if base_url:
            plain, login = providers.address(base_url, providers.BASE_URL, need)
            signed = ", with a login" if login is not None else ""
            yield Finding("gateway", "ok", f"every provider is asked at {plain}{signed} ({providers.BASE_URL})")
        headers = providers.environment_headers()
        if headers:
            yield Finding("headers", "ok", f"each request carries {', '.join(headers)} ({providers.HEADERS})")
    except CantripError as error:
        yield Finding("gateway", "note", str(error), "Mend it: no crystal can be made until then.")


def _probe(providers: list[str], chosen: str) -> Iterator[Finding]:
    """Ask each provider that has a key, and the chosen one, at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    from cantrip_acp.crystals.presets import LOCAL
    from cantrip_acp.recipes.parse.names import MODEL_PROVIDERS

    asked = [p for p in dict.fromkeys([*providers, chosen.partition(":")[0], *LOCAL]) if p in MODEL_PROVIDERS]
    with ThreadPoolExecutor(max_workers=len(asked)) as pool:
        for provider, finding in zip(asked, pool.map(_asked, asked), strict=True):
            wanted = provider in providers or provider == chosen.partition(":")[0]
            # Nobody need have a local server; one is reported only where it answers.
            if wanted or finding.state == "ok":
                yield finding


def _asked(provider: str) -> Finding:
    from cantrip_acp.cli.doctor import Finding
    from cantrip_acp.crystals import probing
    from cantrip_acp.recipes.build import providers

    try:
        end = providers.endpoint(provider, {"model": "probe"}, _need(), known=False)
    except CantripError as error:
        return Finding(f"probe.{provider}", "note", str(error))
    answer = probing.probe(provider, end.base_url, end.api_key, end.headers)
    text = f"{provider} {answer.text} ({answer.seconds * 1000:.0f} ms)"
    if answer.ok:
        return Finding(f"probe.{provider}", "ok", text)
    mend = "Check the key." if answer.status in (401, 403) else "Check the network, its proxy settings and the address."
    return Finding(f"probe.{provider}", "note", text, mend)


def _need() -> Any:
    from pathlib import Path

    from cantrip_acp.core.errors import DefinitionError
    from cantrip_acp.recipes.build.crystals import Need
    from cantrip_acp.recipes.build.python_files import Files

    return Need(Path.cwd(), Files(), None, lambda path, message: DefinitionError(message))
