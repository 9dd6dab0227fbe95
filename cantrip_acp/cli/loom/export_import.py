"""`cantrip loom export` and `import`: write threads for trainers, and read traces, transcripts and other looms."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast, get_args

import click

from cantrip_acp.cli.command_table import complete_format, complete_loom, examples
from cantrip_acp.cli.json_errors import JsonFlag
from cantrip_acp.cli.session.option_groups import option_group
from cantrip_acp.cli.session.setup import state_option
from cantrip_acp.text.sanitize import escaped_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cantrip_acp.core.exports import Report, ThreadSelection

_OUTCOMES = ("terminated", "truncated", "active")
_PROGRESS_FROM = 200
"""Progress is shown if a loom has at least this number of threads."""


class _Formats(click.Command):
    """A command whose help lists the export formats, including those of other packages."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        from cantrip_acp.core import exports

        with formatter.section("Formats"):
            formatter.write_dl([(name, _summary(name)) for name in exports.names()])


def _summary(name: str) -> str:
    from cantrip_acp.core import exports

    try:
        return exports.find(name).summary
    except (ImportError, AttributeError, TypeError) as error:
        # The format belongs to another package. The other formats still work.
        return f"cannot be loaded: {error}"


def _selection(
    threads: tuple[str, ...],
    outcomes: tuple[str, ...],
    min_reward: float | None,
    max_reward: float | None,
    intent: str | None,
    no_children: bool,
    truncated: bool | None,
    differing: bool,
) -> ThreadSelection:
    from cantrip_acp.core.exports import ThreadSelection
    from cantrip_acp.types.errors import DefinitionError
    from cantrip_acp.types.records import Reason

    known = (*_OUTCOMES, *get_args(Reason))
    for outcome in outcomes:
        if outcome not in known:
            raise DefinitionError(f"--outcome {outcome} is unknown; use one of {', '.join(known)}")
    return ThreadSelection(
        threads, outcomes, min_reward, max_reward, intent, truncated, children=not no_children, differing=differing
    )


@click.command(
    "export",
    cls=_Formats,
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello." --loom hello.loom.jsonl',
        "cantrip loom export hello.loom.jsonl --format trl-sft -o hello.jsonl",
        "cantrip loom export hello.loom.jsonl --format openai",
    ),
)
@click.argument("name", metavar="[FILE]", required=False, shell_complete=complete_loom)
@click.option(
    "--format",
    "-f",
    "format_name",
    required=True,
    metavar="FORMAT",
    shell_complete=complete_format,
    help="One of the formats below.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file to write. An existing file is replaced at the end. A loom is never replaced.  [default: standard output]",
)
@click.option(
    "--thread", "threads", multiple=True, metavar="TURN", help="Only the thread that ends in TURN. May be repeated."
)
@click.option(
    "--outcome",
    "outcomes",
    multiple=True,
    metavar="WORD",
    help="Only threads with this state (terminated, truncated, active) or reason (done, text, max_turns …). May be repeated.",
)
@click.option("--min-reward", type=float, metavar="X", help="Only threads with a reward of at least X.")
@click.option("--max-reward", type=float, metavar="X", help="Only threads with a reward of at most X.")
@click.option("--intent", metavar="TEXT", help="Only threads with TEXT in an intent.")
@click.option("--no-children", is_flag=True, help="Leave out the threads of delegated children.")
@click.option(
    "--include-truncated/--no-truncated",
    "truncated",
    default=None,
    help="Include or leave out truncated threads.  [default: include them if the format marks them]",
)
@click.option(
    "--include-differing",
    "differing",
    is_flag=True,
    help="Include threads whose recorded digest of a query is not that of what the row says.  [default: leave them out]",
)
@click.option(
    "--raw",
    is_flag=True,
    help="Do not mask texts that look like keys, tokens or passwords. Known secrets are always masked.",
)
@click.option(
    "--json",
    "as_json",
    cls=JsonFlag,
    to_stderr=True,
    is_flag=True,
    help="Print the summary (on stderr) as one JSON object.",
)
@state_option
@option_group("wanted", _selection)
def export(
    name: str | None,
    format_name: str,
    output: Path | None,
    wanted: ThreadSelection,
    raw: bool,
    as_json: bool,
    state_dir: Path | None,
) -> int:
    """Write the threads of the loom FILE in a format for trainers or trace stores: one JSON object on each line.

    Each row contains what the crystal saw: the summary in place of folded turns, and the placeholder in place of the results
    of ephemeral gates. Known secrets, and texts that look like secrets, are masked (see --raw). Truncated threads are left out
    unless the format marks them, and so are threads of which the loom's digests say that the model was sent something else
    than the loom tells now. A summary on stderr says what was written and what was left out.

    Exit status: 0 done, 1 there was no thread to write.
    """
    from cantrip_acp.core import exports
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import find_turn, open_by_name
    from cantrip_acp.loom.output_file import output_file
    from cantrip_acp.text.defaults import complete

    chosen = exports.find(format_name)
    with open_by_name(name, paths.state_dir(state_dir)) as held:
        wanted = replace(wanted, threads=tuple(find_turn(held, thread) for thread in wanted.threads))
        if output is None:
            rows = (
                sys.stdout.buffer if complete(chosen, exports.FormatBase).archive else _EscapedRows(sys.stdout.buffer)
            )
            report = exports.export(held, chosen, cast("BinaryIO", rows), wanted, _progress(), raw=raw)
            sys.stdout.buffer.flush()
        else:
            with output_file(output) as file:
                report = exports.export(held, chosen, file, wanted, _progress(), raw=raw)
    _print_report(report, output, as_json=as_json)
    return 0 if report.rows else 1


class _EscapedRows:
    """Writes rows to standard output, which may be a terminal."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def write(self, row: bytes) -> int:
        return self._out.write(escaped_json(row.decode()).encode())


def _progress() -> Callable[[int, int], None] | None:
    """On a terminal, return a function that shows progress at most twice a second."""
    if not sys.stderr.isatty():
        return None
    import time

    last_shown = time.monotonic()

    def show(done: int, of: int) -> None:
        nonlocal last_shown
        if of >= _PROGRESS_FROM and time.monotonic() - last_shown > 0.5:
            last_shown = time.monotonic()
            click.echo(f"\r{done:,} of {of:,} threads", nl=False, err=True)
        if done == of and of >= _PROGRESS_FROM:
            click.echo("\r\033[K", nl=False, err=True)

    return show


def _print_report(report: Report, output: Path | None, *, as_json: bool) -> None:
    import json

    from cantrip_acp.core.exports import DIFFERS
    from cantrip_acp.text.sanitize import clean_line

    if as_json:
        click.echo(json.dumps(report.record() | {"output": None if output is None else str(output)}), err=True)
        return
    where = f" to {output}" if output is not None else ""
    threads = f"{report.threads:,} thread{'s' if report.threads != 1 else ''}"
    click.echo(f"{threads} in {report.rows:,} row{'s' if report.rows != 1 else ''}{where}", err=True)
    for why, count in report.left_out.most_common():
        hint = " (--include-truncated includes them)" if why in ("truncated", "not ended") else ""
        if why == DIFFERS:
            hint = " (cantrip loom check names the turns; --include-differing includes them)"
        click.echo(f"left out: {count:,}, {clean_line(why, 200)}{hint}", err=True)
    for what, count in report.notes.most_common():
        click.echo(f"note: {clean_line(what, 200)} ({count:,})", err=True)


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
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=complete_loom)
@click.option(
    "--into",
    required=True,
    metavar="LOOM",
    help="The loom to import into: a file or a database address. It is created if it is missing.",
)
@click.option(
    "--from",
    "kind",
    type=click.Choice(["loom", "verifiers", "acp", "atif", "inspect"]),
    help="The format of the files.  [default: detected from the first line]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result for each file as one JSON object.")
def import_(files: Sequence[str], into: str, kind: str | None, as_json: bool) -> None:
    """Import FILEs into a loom.

    A FILE is another loom (of any store; it keeps its ids), traces of verifiers (traces.jsonl, an episode or a trace on each
    line), ATIF trajectories (a document, or one on each line), a log of Inspect (.eval or .json), or a transcript of the Agent
    Client Protocol (a JSON-RPC message of either direction on each line).

    A line of a transcript is the message, or {"message": MESSAGE, "timestamp": TIME}. This command records one:
    sh -c 'tee -a talk.jsonl | AGENT | tee -a talk.jsonl'.

    Ids are computed from the content, so a second import of the same file adds nothing. Nothing in the files is executed. The
    command reports data that a loom cannot represent. An invalid line ends the import with an error that names file and line;
    the lines before it are already imported.
    """
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.stores.address import display_address, is_address
    from cantrip_acp.text.sanitize import clean_line
    from cantrip_acp.training.importing.import_file import detect_format, import_file
    from cantrip_acp.types.errors import DefinitionError

    kinds = [kind or detect_format(name) for name in files]
    target: Path | str = into if is_address(into) else Path(into).expanduser()
    for name in files:
        if not is_address(name) and isinstance(target, Path) and Path(name).resolve() == target.resolve():
            raise DefinitionError("a loom cannot be imported into itself", where=name)
    results: list[dict[str, Any]] = []
    with Loom.open(target) as loom:
        for name, found in zip(files, kinds, strict=True):
            report = import_file(name, loom, found)
            results.append({"file": display_address(name), "kind": found, **report.record()})
    if as_json:
        click.echo(json.dumps({"into": display_address(into), "files": results}))
        return
    for each in results:
        counts = Counter({k: each[k] for k in ("turns", "casts", "rewards")})
        added = ", ".join(f"{n:,} {k.removesuffix('s') if n == 1 else k}" for k, n in counts.items())
        there = "turn was" if each["known"] == 1 else "turns were"
        known = f", {each['known']:,} {there} already in the loom" if each["known"] else ""
        click.echo(clean_line(f"{each['file']} ({each['kind']}): {added}{known}", 400))
        for what, count in sorted(each["notes"].items(), key=lambda n: -n[1]):
            click.echo("  " + clean_line(f"not represented: {what} ({count:,})", 400))
