"""`cantrip tuple`: put tuples into a tuple-space, read one, and see what waits, runs and failed."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import SuggestingGroup, examples
from cantrip_acp.cli.session.setup import state_option
from cantrip_acp.cli.session.tuple_space import open_space, space_option
from cantrip_acp.text.sanitize import escaped_json

if TYPE_CHECKING:
    from cantrip_acp.tuplespace.monitoring.status import SpaceStatus
    from cantrip_acp.tuplespace.project_log import Changes
    from cantrip_acp.tuplespace.stores.base import Holder, StoredTuple
    from cantrip_acp.tuplespace.stores.sql import TupleStore
    from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple


@click.group("tuple", cls=SuggestingGroup, **examples("cantrip tuple status"))
def tuple_() -> None:
    """Put tuples into a tuple-space, read them, and see their state.

    A tuple is one unit of work: a lane, a payload of steps, a budget and where it comes from. Workers take the tuples of
    their lane (`cantrip worker`), and each ends with one receipt.
    """


@tuple_.command(
    "out",
    short_help="Put tuples into the space.",
    **examples(
        """echo '{"schema": "yool-tuple/v1", "lane": "build", "payload": [{"yool": "agent.greet.all"}]}' > one.json""",
        "cantrip tuple out one.json",
        "cantrip worker --lane build --until-empty --yool agent.greet.all='echo Hello.'",
        "cantrip tuple out one.json --wait",
    ),
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--depth",
    type=click.IntRange(1),
    help="Levels of a fan-out. The last level of the tree has --branching to the power of this number tuples.",
)
@click.option(
    "--branching", type=click.IntRange(1), default=10, show_default=True, help="Branches at each level of a fan-out."
)
@click.option("--wait", is_flag=True, help="Wait until the tuples have ended, and print each step as it ends.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON line for each tuple, and with --wait for each step."
)
@space_option
@state_option
def out(
    file: str, depth: int | None, branching: int, wait: bool, as_json: bool, space: str | None, state_dir: Path | None
) -> int:
    """Put the tuples of FILE into the space: one JSON object, or one in each line. - is stdin.

    If one of the tuples is not valid, the command puts none of them. A tuple with a known id is the same work and is
    not put twice. A tuple of another program, whose id covers its receipts and created_at, too, gets the id that it has
    here, and the output says which.

    With --depth, one tuple creates a tree of tuples (a fan-out), for example a million. Workers put the next tuples
    when they take the earlier ones. Each tuple of the tree has its path in map_pos.

    If AGENTS.md here says who may order a step (authority), a tuple that somebody else ordered is refused. Who puts a tuple
    and from which commit is noted beside it, and is no part of its id.

    Exit status: 0 done; 1 the lane is full, or with --wait a tuple failed; 2 a tuple is not valid or may not be ordered, or
    the space cannot be opened.
    """
    from cantrip_acp.cli.session.wait_for_tuples import wait_for_tuples
    from cantrip_acp.text.utf8 import NotUtf8, utf8_text
    from cantrip_acp.tuplespace import authority
    from cantrip_acp.tuplespace.catalog.build import authorities
    from cantrip_acp.tuplespace.errors import SpaceFull, TupleError
    from cantrip_acp.tuplespace.monitoring.spans import emitting
    from cantrip_acp.tuplespace.tuples import adopt_tuple
    from cantrip_acp.tuplespace.workers.guardrails import max_waiting, read_policy

    name = "stdin" if file == "-" else file
    try:
        with click.open_file(file, "rb") as opened:
            text = utf8_text(opened.read())
    except NotUtf8 as error:
        raise TupleError(f"{name}:{error.line}: {error}") from None
    works, ids = [], list[str | None]()
    allowed, noted = authorities(Path()), authority.note()
    for number, document in _documents(text):
        try:
            work, before = adopt_tuple(document)
            for step in work.payload:
                if (why := authority.refusal(step.yool, allowed.get(step.yool, ()), work, noted)) is not None:
                    raise TupleError(why)
            ids.append(before)
            works.append(work if depth is None else _fan_out(work, depth, branching))
        except TupleError as error:
            raise TupleError(f"{name}:{number}: {error}") from None
    if not works:
        raise TupleError(f"{name}: there are no tuples")
    most = max_waiting(read_policy(Path.cwd()))
    store = open_space(space, state_dir)
    try:
        with emitting("put tuples", {"cantrip.tuples": len(works)}) as meta:
            new = store.put(works, max_waiting=most, meta={**noted, **meta})
        _print_put(works, ids, new, as_json=as_json)
        if wait and not wait_for_tuples(store, works, as_json=as_json):
            return 1
    except SpaceFull as full:
        click.echo(f"cantrip: {full}", err=True)
        return 1
    except KeyboardInterrupt:
        click.echo("cantrip: not waiting any more; `cantrip tuple status` shows the rest", err=True)
        return 1
    finally:
        store.close()
    return 0


def _print_put(works: list[WorkTuple], ids: list[str | None], new: list[bool], *, as_json: bool) -> None:
    for work, before, is_new in zip(works, ids, new, strict=True):
        if as_json:
            row = {"tuple_id": work.id, "lane": work.lane, "new": is_new, **({"given_id": before} if before else {})}
            click.echo(json.dumps(row))
        else:
            was = f"  (its id was {before})" if before else ""
            click.echo(f"{work.id}  {'put into' if is_new else 'known in'} lane {work.lane}{was}")
    sys.stdout.flush()


def _fan_out(work: WorkTuple, depth: int, branching: int) -> WorkTuple:
    from cantrip_acp.tuplespace.fan_out import batch_spawn
    from cantrip_acp.tuplespace.tuples import SCHEMA_2

    document = work.document
    more = {name: document.get(name) for name in ("map_pos", "agent_terms", "authority")}
    flags = document.get("flags", {}) if work.schema == SCHEMA_2 else None
    sources = document.get("src_ptr") or ()
    return batch_spawn(work.lane, document["payload"], depth, branching, **more, src_ptr=sources, flags=flags).first()


def _documents(text: str) -> list[tuple[int, str]]:
    """Split JSON texts, with their line numbers: the whole text if it is one object, else each line."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        # Split only at line feeds, because a JSON string may contain U+2028 and the like.
        return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [(1, text)]


@tuple_.command(
    "rd",
    short_help="Show a tuple.",
    **examples(
        """echo '{"schema": "yool-tuple/v1", "lane": "build", "payload": [{"yool": "agent.lint.ruff"}]}' > one.json""",
        "cantrip tuple out one.json",
        """cantrip tuple rd '{"lane": "build"}' --json""",
    ),
)
@click.argument("pattern")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=0.0,
    metavar="SECONDS",
    help="Wait for a tuple that matches.  [default: do not wait]",
)
@click.option("--any", "in_any_state", is_flag=True, help="Show the newest tuple that matches, in any state.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@space_option
@state_option
def rd(pattern: str, wait: float, in_any_state: bool, as_json: bool, space: str | None, state_dir: Path | None) -> int:
    """Show a tuple: PATTERN is its id, or a part of a tuple as JSON, such as {"lane": "build"}.

    A pattern finds the oldest tuple that waits or runs; with --any, the newest one in any state. An id finds a tuple in any
    state, with its receipts. If a receipt names an artifact (a large result that is stored separately), the id of the artifact
    shows it.

    Exit status: 0 found, 1 there is none, 2 the pattern is not valid, or the space cannot be opened.
    """
    import threading

    identity, wanted = _read_pattern(pattern)
    with closing(open_space(space, state_dir)) as store:
        end = time.monotonic() + wait
        while True:
            if in_any_state and identity is None:
                stored = _newest(store, wanted)[0]
            else:
                work = None if identity else store.read(wanted)
                stored = store.get(identity or (work.id if work is not None else ""))
            if stored is not None or time.monotonic() >= end:
                break
            store.wait(min(1.0, end - time.monotonic()), threading.Event())
        if stored is None and identity and (artifact := store.artifact(identity)) is not None:
            body = None if artifact.body is None else json.loads(artifact.body)
            data = {"artifact": artifact.id, "bytes": artifact.size, "purged_at": artifact.purged_at}
            data |= {"excerpt": artifact.excerpt} if body is None else {"result": body}
            click.echo(escaped_json(json.dumps(data, ensure_ascii=False, indent=None if as_json else 2)))
            return 0
        if stored is None:
            ended = 0 if identity or in_any_state else _newest(store, wanted)[1]
            but = f" that waits or runs; {ended:,} ended or were taken: --any shows the newest one" if ended else ""
            click.echo(f"cantrip: there is no such tuple{but}", err=True)
            return 1
        receipts = [{"step": r.step, **r.document} for r in store.receipts(stored.work.id)]
    shown: dict[str, Any] = {
        "tuple": stored.work.document,
        "state": stored.state,
        "attempts": stored.attempts,
        "worker": stored.worker,
        "error": stored.error,
        "progress": stored.progress,
        "receipts": receipts,
    }
    click.echo(escaped_json(json.dumps(shown, ensure_ascii=False, indent=None if as_json else 2)))
    return 0


def _newest(store: TupleStore, pattern: Pattern) -> tuple[StoredTuple | None, int]:
    """The newest tuple that matches, in any state, and how many match."""
    from cantrip_acp.tuplespace.stores.base import BATCH_LANE

    newest, count, cursor = None, 0, ""
    while True:
        found, following = store.after(cursor, pattern)
        found = [each for each in found if each.work.lane != BATCH_LANE or pattern.lane == BATCH_LANE]
        newest, count = (found[-1] if found else newest), count + len(found)
        if following == cursor:
            return newest, count
        cursor = following


@tuple_.command(
    "in",
    short_help="Take a tuple out of the space.",
    **examples(
        """echo '{"schema": "yool-tuple/v1", "lane": "notes", "payload": [{"yool": "note.show"}]}' > one.json""",
        "cantrip tuple out one.json",
        """cantrip tuple in '{"lane": "notes"}' --json""",
    ),
)
@click.argument("pattern")
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=0.0,
    metavar="SECONDS",
    help="Wait for a tuple that matches.  [default: do not wait]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the tuple as one line.")
@space_option
@state_option
def in_(pattern: str, timeout: float, as_json: bool, space: str | None, state_dir: Path | None) -> int:
    """Take the oldest tuple that waits out of the space, and print it. PATTERN is its id, or a part of a tuple as JSON.

    No worker gets the tuple then: it is yours, and its state is "taken". `cantrip tuple resume` lets it wait again.

    Exit status: 0 taken, 1 none came in time, 2 the pattern is not valid, or the space cannot be opened.
    """
    import threading

    from cantrip_acp.tuplespace.tuples import Pattern

    identity, wanted = _read_pattern(pattern)
    wanted = Pattern({"id": identity}) if identity is not None else wanted
    with closing(open_space(space, state_dir)) as store:
        end = time.monotonic() + timeout
        while (work := store.take(wanted)) is None and time.monotonic() < end:
            store.wait(min(1.0, end - time.monotonic()), threading.Event())
        if work is None:
            click.echo("cantrip: no such tuple waits", err=True)
            return 1
        try:
            click.echo(escaped_json(json.dumps(work.document, ensure_ascii=False, indent=None if as_json else 2)))
            sys.stdout.flush()
        except OSError:
            # Nobody has read it.
            store.restore(work.id)
            raise
    return 0


@tuple_.command(
    "observe",
    short_help="Show what happens to tuples, as it happens.",
    **examples(
        "cantrip recipe new greeter",
        "printf '\"Say hello.\"\\n' > intents.jsonl",
        "cantrip cast-batch greeter intents.jsonl --space work.db --json",
        "cantrip tuple observe --space work.db "
        "$(cantrip cast-batch greeter intents.jsonl --space work.db --json | grep -o 'sha256:[0-9a-f]*' | head -1)",
    ),
)
@click.argument("targets", nargs=-1, required=True, metavar="ID… | PATTERN")
@click.option(
    "--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Stop after this time.  [default: until the end]"
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line for each event.")
@space_option
@state_option
def observe(
    targets: tuple[str, ...], timeout: float | None, as_json: bool, space: str | None, state_dir: Path | None
) -> int:
    """Print an event for each thing that happens to tuples: waiting, claimed, each step (done, reused or failed), and
    done, failed or taken.

    With ids, the command ends when all of these tuples have ended. With a PATTERN (a part of a tuple as JSON), it follows
    the tuples that match and have not ended, and those that are put later, until Ctrl-C.

    Exit status: 0 all are done, or Ctrl-C; 1 one failed or is not there, or the time is over; 2 the pattern is not valid, or
    the space cannot be opened.
    """
    import datetime
    import threading

    from cantrip_acp.text.sanitize import clean_line
    from cantrip_acp.tuplespace.events import Watch, sentence

    pattern = None
    if any(not each.startswith("sha256:") for each in targets):
        if len(targets) > 1:
            raise click.UsageError("give ids (sha256:…), or one pattern")
        pattern = _read_pattern(targets[0])[1]
    store = open_space(space, state_dir)
    watch = Watch(store, ids=() if pattern is not None else targets, pattern=pattern)
    end = time.monotonic() + timeout if timeout is not None else float("inf")
    failed = False
    try:
        while True:
            for event in watch.look():
                failed = failed or event["event"] == "failed"
                if as_json:
                    click.echo(escaped_json(json.dumps(event, ensure_ascii=False)))
                else:
                    at = datetime.datetime.now().strftime("%H:%M:%S")
                    said = clean_line(sentence(event))
                    click.echo(f"{at}  {event['tuple_id'][7:19]}  {event['lane']}  {said}")
                sys.stdout.flush()
            if watch.is_over:
                return int(failed)
            left = end - time.monotonic()
            if left <= 0:
                if pattern is not None:
                    return int(failed)
                click.echo("cantrip: the time is over before all of them ended", err=True)
                return 1
            store.wait(min(1.0, left), threading.Event())
    except KeyError as error:
        click.echo(f"cantrip: there is no tuple {error.args[0]}", err=True)
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        store.close()


@tuple_.command(
    "status",
    short_help="Show what waits, runs and failed in each lane.",
    **examples("cantrip tuple status", "cantrip tuple status --lane build --json"),
)
@click.option("--watch", is_flag=True, help="Update the table each second, until Ctrl-C.")
@click.option("--lane", help="Show only this lane.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with --watch, one in each line.")
@space_option
@state_option
def status(watch: bool, lane: str | None, as_json: bool, space: str | None, state_dir: Path | None) -> int:
    """Show each lane: how many tuples wait, run, are done and failed, the age of the oldest that waits, how many end
    each second (over the last minute) and the cost until now. Below the lanes, show the workers that have tuples, and
    the reasons of failures.

    Exit status: 0 done, 2 the space cannot be opened.
    """
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.render.tuple_status import painter, print_status
    from cantrip_acp.tuplespace.monitoring.status import read_status

    store = open_space(space, state_dir)
    found: SpaceStatus | None = None
    try:
        if not watch:
            _show(read_status(store, lane), as_json=as_json)
            return 0
        with nullcontext() if as_json else painter() as screen:
            while True:
                found = read_status(store, lane)
                if screen is not None:
                    screen.paint(found)
                else:
                    _show(found, as_json=as_json)
                time.sleep(1)
    except KeyboardInterrupt:
        if found is not None and not as_json and sys.stdout.isatty():
            # The screen of its own is gone: leave the last state in the terminal.
            print_status(found, Screen())
        return 0
    finally:
        store.close()


def _show(status: SpaceStatus, *, as_json: bool) -> None:
    import msgspec

    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.render.tuple_status import print_status

    if as_json:
        click.echo(escaped_json(msgspec.json.encode(status).decode()))
    else:
        print_status(status, Screen())
    sys.stdout.flush()


@tuple_.command(
    "report",
    short_help="Write the results of a lane as a page.",
    **examples(
        "cantrip recipe new greeter",
        "printf '\"Say hello.\"\\n' > intents.jsonl",
        "cantrip cast-batch greeter intents.jsonl",
        "cantrip tuple report --out results.html",
    ),
)
@click.option("--lane", help="Only this lane.  [default: all tuples of the space]")
@click.option(
    "--out",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The HTML file.",
)
@click.option(
    "--all", "every", is_flag=True, help="Also what was repeated with --again.  [default: the latest run of each]"
)
@click.option(
    "--no-looms", is_flag=True, help="Do not write the pages of the looms. Then no result has a link to its thread."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@space_option
@state_option
def report(
    lane: str | None,
    target: Path,
    every: bool,
    no_looms: bool,
    as_json: bool,
    space: str | None,
    state_dir: Path | None,
) -> int:
    """Write one HTML file with the result, the reward, the cost and the reason of each tuple, to filter and to sort.

    The pages of the looms go to a folder beside it, and each cast has a link to its thread. The page needs no server.
    `cantrip cast-batch --report FILE` writes the page of its batch.

    Exit status: 0 written, 1 there are no such tuples, 2 the space cannot be opened or the file cannot be written.
    """
    from cantrip_acp.tuplespace.monitoring.batch_page import write_report

    with closing(open_space(space, state_dir)) as store:
        count = write_report(store, target, lane=lane, looms=not no_looms, every=every)
    click.echo(json.dumps({"file": str(target), "tuples": count}) if as_json else f"{target}  {count:,} tuples")
    return 0 if count else 1


@tuple_.command(
    "resume",
    short_help="Continue tuples that no worker works on.",
    **examples("cantrip tuple resume", """cantrip tuple resume '{"lane": "review"}' --failed --json"""),
)
@click.argument("pattern", required=False)
@click.option(
    "--failed", is_flag=True, help="Also repeat failed tuples, as new tuples. The records of the failures stay."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line for each tuple.")
@space_option
@state_option
def resume(pattern: str | None, failed: bool, as_json: bool, space: str | None, state_dir: Path | None) -> int:
    """Let tuples wait again that have no final receipt and no worker. PATTERN: an id, or a part of a tuple as JSON.

    The command finds tuples whose worker died, that a worker took and never answered, or that pause before another
    attempt. Steps that ended are not repeated. Tuples of running workers do not change.

    Exit status: 0 done, also if there were none; 2 the pattern is not valid, or the space cannot be opened.
    """
    from cantrip_acp.tuplespace import authority
    from cantrip_acp.tuplespace.batch import latest_attempts
    from cantrip_acp.tuplespace.monitoring.spans import emitting
    from cantrip_acp.tuplespace.tuples import Pattern

    identity, wanted = _read_pattern(pattern)
    store, stored = open_space(space, state_dir), None
    try:
        if identity is not None:
            stored = store.get(identity)
            wanted = Pattern({"id": identity})
            if stored is None:
                click.echo("cantrip: there is no such tuple", err=True)
                return 0
        resumed = [(each, None) for each in store.resume(wanted)]
        emitted: list[tuple[str, str | None]] = []
        if failed:
            dead, cursor = [], ""
            while True:
                found, following = store.after(cursor, wanted)
                dead += [
                    each.work for each in found if each.state == "failed" and "again" not in (each.work.map_pos or {})
                ]
                if following == cursor:
                    break
                cursor = following
            latest = latest_attempts(store, dead, again=True)
            with emitting("resume tuples", {"cantrip.tuples": len(latest)}) as meta:
                new = store.put(latest, meta={**authority.note(), **meta})
            emitted = [(work.id, first.id) for work, first, is_new in zip(latest, dead, new, strict=True) if is_new]
        held = [each for each in store.holders() if _may_hold(each, wanted, stored)]
    finally:
        store.close()
    for tuple_id, instead_of in [*resumed, *emitted]:
        if as_json:
            click.echo(json.dumps({"tuple_id": tuple_id, **({"instead_of": instead_of} if instead_of else {})}))
        else:
            click.echo(f"{tuple_id}  waits" + (f" in place of {instead_of}" if instead_of else ""))
    if not as_json and not resumed and not emitted:
        click.echo("nothing to resume")
        for each in held:
            count = "1 tuple" if each.count == 1 else f"{each.count:,} tuples"
            click.echo(
                f"{each.worker} has {count} of lane {each.lane}. If it was killed, another worker takes over when the lease has "
                f"ended, in {each.lease_s:.0f} s"
            )
    return 0


def _may_hold(holder: Holder, wanted: Pattern, stored: StoredTuple | None) -> bool:
    """Whether this worker may hold one of the wanted tuples."""
    if stored is not None:
        return stored.state == "claimed" and stored.worker == holder.worker and stored.work.lane == holder.lane
    return wanted.lane is None or wanted.lane == holder.lane


def _read_pattern(pattern: str | None) -> tuple[str | None, Pattern]:
    """An id, or a pattern from JSON."""
    from cantrip_acp.tuplespace.errors import TupleError
    from cantrip_acp.tuplespace.tuples import Pattern

    if pattern is not None and pattern.startswith("sha256:"):
        return pattern, Pattern()
    try:
        fields = json.loads(pattern) if pattern is not None else {}
    except (ValueError, RecursionError) as error:
        raise TupleError(f"a pattern is an id (sha256:…) or a JSON object: {error}") from None
    if not isinstance(fields, dict):
        raise TupleError(f'a pattern is a JSON object such as {{"lane": "build"}}, not {str(pattern)[:100]!r}')
    return None, Pattern(fields)


_folder = click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path(".catalog"))


@tuple_.command(
    "export", short_help="Write tuples and receipts into a project's log.", **examples("cantrip tuple export")
)
@_folder
@click.option("--lane", help="Only the tuples of this lane.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@space_option
@state_option
def export(folder: Path, lane: str | None, as_json: bool, space: str | None, state_dir: Path | None) -> int:
    """Add the tuples and receipts of the space to the log in FOLDER (.catalog): tuples.jsonl, and receipts/ with a file
    for each receipt.

    The command does not write again what the log already has. Keep the folder in the project's repository, or load it
    elsewhere with `cantrip tuple import`.

    Exit status: 0 done, 2 the folder cannot be written, or the space cannot be opened.
    """
    return _with_log(folder, lane, as_json, space, state_dir, load=False, save=True)


@tuple_.command(
    "import", short_help="Load a project's log.", **examples("cantrip tuple export", "cantrip tuple import")
)
@_folder
@click.option("--lane", help="Only the tuples of this lane.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@space_option
@state_option
def import_(folder: Path, lane: str | None, as_json: bool, space: str | None, state_dir: Path | None) -> int:
    """Put the tuples of the log in FOLDER (.catalog) into the space. Tuples with a final receipt are done.

    The others wait. Load only a log that you trust: work that it reports as done is not done again.
    A receipt whose content was changed is refused.

    Exit status: 0 done, 2 the log is not valid, or the space cannot be opened.
    """
    return _with_log(folder, lane, as_json, space, state_dir, load=True, save=False)


@tuple_.command("sync", short_help="Keep a project's log and the space in step.", **examples("cantrip tuple sync"))
@_folder
@click.option("--lane", help="Only the tuples of this lane.")
@click.option("--watch", is_flag=True, help="Continue until Ctrl-C: run again whenever the space or the log changes.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each time that something was added.")
@space_option
@state_option
def sync(folder: Path, lane: str | None, watch: bool, as_json: bool, space: str | None, state_dir: Path | None) -> int:
    """Load the tuples and receipts of the log in FOLDER (.catalog) into the space, then add those of the space to the
    log.

    Exit status: 0 done, 2 the log is not valid or cannot be written, or the space cannot be opened.
    """
    return _with_log(folder, lane, as_json, space, state_dir, load=True, save=True, watch=watch)


def _with_log(
    folder: Path,
    lane: str | None,
    as_json: bool,
    space: str | None,
    state_dir: Path | None,
    *,
    load: bool,
    save: bool,
    watch: bool = False,
) -> int:
    import threading

    from cantrip_acp.tuplespace.project_log import Changes, ProjectLog
    from cantrip_acp.tuplespace.tuples import Pattern

    log, pattern = ProjectLog(folder), Pattern({"lane": lane} if lane else {})
    if load and not save and not folder.is_dir():
        raise click.BadParameter(f"there is no folder {folder}: `cantrip tuple export` makes one", param_hint="FOLDER")
    store = open_space(space, state_dir)
    first = True
    try:
        while True:
            # Before it is read: what another process adds meanwhile is read the next time.
            seen = log.version()
            loaded = log.load(store, pattern) if load else Changes()
            saved = log.export(store, pattern) if save else Changes()
            for place in loaded.torn if first else ():
                click.echo(
                    f"cantrip: {place} is not complete, because its writer was interrupted; it is left out", err=True
                )
            for place in loaded.newer if first else ():
                click.echo(f"cantrip: {place}. The line is left alone", err=True)
            if first or loaded.tuples or saved.tuples or saved.receipts:
                _show_changes(folder, loaded if load else None, saved if save else None, as_json=as_json)
            if not watch:
                return 0
            first = False
            while log.version() == seen and not store.wait(1.0, threading.Event()):
                pass
    except KeyboardInterrupt:
        return 0
    finally:
        store.close()


def _show_changes(folder: Path, loaded: Changes | None, saved: Changes | None, *, as_json: bool) -> None:
    parts = {"loaded": loaded, "written": saved}
    if as_json:
        counts = {name: {"tuples": each.tuples, "receipts": each.receipts} for name, each in parts.items() if each}
        renamed = {"renamed": loaded.renamed} if loaded is not None and loaded.renamed else {}
        click.echo(json.dumps({"folder": str(folder), **counts, **renamed}))
    else:
        said = [f"{name} {each.tuples} tuples, {each.receipts} receipts" for name, each in parts.items() if each]
        click.echo(f"{folder}  {' · '.join(said)}")
        for before, identity in (loaded.renamed if loaded is not None else {}).items():
            click.echo(f"{before} is {identity} here")
    sys.stdout.flush()
