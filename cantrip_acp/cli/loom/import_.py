"""`cantrip loom import`: import traces, transcripts and other looms into a loom."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import examples

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command(
    "import",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello." --loom hello.loom.jsonl',
        "cantrip loom export hello.loom.jsonl --format verifiers -o traces.jsonl",
        "cantrip loom import traces.jsonl --into sqlite:all.db",
        "cantrip loom import hello.loom.jsonl --into sqlite:all.db",
    ),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--into",
    required=True,
    metavar="LOOM",
    help="The loom that takes them: a file or a database's address. Made where missing.",
)
@click.option(
    "--from",
    "kind",
    type=click.Choice(["loom", "verifiers", "acp"]),
    help="What the files are.  [default: told by their first line]",
)
@click.option("--json", "as_json", is_flag=True, help="What became of each file, as one JSON object.")
def import_(files: Sequence[str], into: str, kind: str | None, as_json: bool) -> None:
    """Take FILEs into a loom: other looms (of any store, ids kept), verifiers traces (a traces.jsonl, an episode or a
    trace a line), and transcripts of the Agent Client Protocol (a JSON-RPC message a line, both directions).

    A transcript's line is the message itself, or {"message": MESSAGE, "timestamp": TIME}; a tee before and after any agent
    writes one: sh -c 'tee -a talk.jsonl | AGENT | tee -a talk.jsonl'.

    Ids are made of what is imported, so importing twice adds nothing. Nothing that is read is executed. What could not be
    represented is told. A broken line ends the import with its file and line; what stood before it is taken already.
    """
    from cantrip_acp.core.errors import DefinitionError
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.stores.address import is_address, shown
    from cantrip_acp.text.sanitize import clean_line
    from cantrip_acp.training.importing.detect import kind_of, take

    kinds = [kind or kind_of(name) for name in files]
    target: Path | str = into if is_address(into) else Path(into).expanduser()
    for name in files:
        if not is_address(name) and isinstance(target, Path) and Path(name).resolve() == target.resolve():
            raise DefinitionError("a loom cannot be imported into itself", where=name)
    told: list[dict[str, Any]] = []
    with Loom.open(target) as loom:
        for name, found in zip(files, kinds, strict=True):
            report = take(name, loom, found)
            told.append({"file": shown(name), "kind": found, **report.record()})
    if as_json:
        click.echo(json.dumps({"into": shown(into), "files": told}))
        return
    for each in told:
        counts = Counter({k: each[k] for k in ("turns", "casts", "rewards")})
        added = ", ".join(f"{n:,} {k.removesuffix('s') if n == 1 else k}" for k, n in counts.items())
        there = "turn was" if each["known"] == 1 else "turns were"
        known = f", {each['known']:,} {there} there already" if each["known"] else ""
        click.echo(clean_line(f"{each['file']} ({each['kind']}): {added}{known}", 400))
        for what, count in sorted(each["notes"].items(), key=lambda n: -n[1]):
            click.echo("  " + clean_line(f"not represented: {what} ({count:,})", 400))
