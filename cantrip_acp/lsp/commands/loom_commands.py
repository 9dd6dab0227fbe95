"""Commands on a loom's turns: fork a turn, give it a reward, replay its thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from cantrip_acp.lsp.commands import casts, trust
from cantrip_acp.lsp.commands.arguments import CommandArguments
from cantrip_acp.lsp.commands.cast_commands import run_cast, when_trusted
from cantrip_acp.lsp.commands.command_run import CommandFailed, CommandRun
from cantrip_acp.types.errors import (
    DefinitionError,
    IntentRequired,
    LoomError,
    LoomLocked,
)

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.core.exports import Format, Report
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.lsp.server.language_server import Server
    from cantrip_acp.recipes.build.python_files import Files

STATES = ("auto", "snapshot", "replay", "none")
_REWARDS = ("1", "0.5", "0", "-1")
_MOST = 8
"""The most recipes that are offered."""


class ForkCast(casts.RecipeCast):
    turn: str
    state: str

    async def _begin(self) -> Entity:
        self._hosts.add_from_thread(self._loom, self.turn)
        return await self._cantrip.fork(self.turn, loom=self._loom, state=self.state)  # type: ignore[arg-type]


async def fork(server: Server, given: CommandArguments, work: CommandRun) -> dict[str, Any]:
    """Fork a new entity from a turn and cast it; without an intent, on the intent of the turn's own cast."""
    path, state = loom_file(given), given.text("state", "snapshot")
    if state not in STATES:
        raise DefinitionError(f"cantrip.loom.fork: 'state' must be one of {', '.join(STATES)}, not {state[:40]!r}")
    turn, known = await asyncio.to_thread(turn_of, path, given.text("turn", ""))
    intent = given.text("intent") if given.has("intent") else known
    if not intent.strip():
        raise IntentRequired(
            "intent is required: this turn belongs to no cast with one; give it as the argument `intent`"
        )
    recipe = await _recipe(server, given, path, "Fork with which recipe?")
    work.report("getting ready")
    files, workspace = server.files(), server.documents.workspace(recipe)
    cantrip, loom = await when_trusted(recipe, _forkable, server.trusting, recipe, files, workspace, path)
    running = ForkCast(cantrip, loom, intent, work.report)
    running.turn, running.state = turn, state
    ended = await run_cast(server, work, recipe, running, intent)
    server.looms.hurry()
    return {**ended.record, "from": turn, "recipe": recipe.as_uri()}


async def replay(server: Server, given: CommandArguments, work: CommandRun) -> dict[str, Any]:
    """Run the thread that ends in a turn again with its recorded utterances. Neither the loom nor a file is changed."""
    path, recorded = loom_file(given), given.flag("recordedGates")
    turn, _ = await asyncio.to_thread(turn_of, path, given.text("turn", ""))
    recipe = await _recipe(server, given, path, "Replay in the circle of which recipe?")
    work.report("replaying it")
    files, workspace = server.files(), server.documents.workspace(recipe)
    cantrip = await when_trusted(recipe, _circle, server.trusting, recipe, files, workspace)

    async def run() -> Any:
        from cantrip_acp.core.forking.replay import replay as lived_again
        from cantrip_acp.loom.loom import Loom

        with Loom.open(path, readonly=True) as loom:
            return await lived_again(cantrip, loom, turn, recorded_gates=recorded)

    replay = WorkerThread(run, "replay")
    work.on_cancel(replay.cancel)
    try:
        result = await replay.wait()
    except asyncio.CancelledError:
        if not replay.cancelled:
            replay.cancel()
            raise
        raise CommandFailed("the replay was cancelled", data={"error": "Cancelled"}) from None
    differs = result.divergence
    words = f"{result.turns} turns, all the same" if differs is None else f"went another way at {differs}"
    work.report(words)
    kind = types.MessageType.Info if differs is None else types.MessageType.Warning
    server.window_show_message(types.ShowMessageParams(kind, f"Replay: {words}"[:1000]))
    where = None if differs is None else {"turn": differs.turn_id, "number": differs.number, "how": differs.how}
    return {"leaf": turn, "turns": result.turns, "divergence": where, "recipe": recipe.as_uri()}


async def reward(server: Server, given: CommandArguments, work: CommandRun) -> dict[str, Any]:
    """Give a turn a reward; the last reward counts. Without a number the user chooses one."""
    path = loom_file(given)
    turn, _ = await asyncio.to_thread(turn_of, path, given.text("turn", ""))
    if given.has("reward"):
        number = given.number("reward")
    else:
        number = float(await ask_choice(server, f"Which reward for turn {turn}?", _REWARDS, "reward", "a number"))
    note = given.text("note", "") or None
    result = await asyncio.to_thread(_reward, path, turn, number, note)
    server.looms.hurry()
    return result


def _reward(path: Path, turn: str, number: float, note: str | None) -> dict[str, Any]:
    import getpass

    import msgspec

    from cantrip_acp.loom.loom import Loom

    try:
        with Loom.open(path) as loom:
            loom.annotate_reward(turn, number, by=getpass.getuser(), note=note)
            record = loom.assigned(turn)[-1]
    except LoomLocked as error:
        raise LoomLocked(
            f"a session is writing {path}; give the reward when it has ended, or there by /reward"
        ) from error
    data: dict[str, Any] = msgspec.to_builtins(record)
    data.pop("type", None)
    return data


def loom_file(given: CommandArguments) -> Path:
    path = given.file()
    if not path.is_file():
        raise DefinitionError("there is no such loom", where=str(path))
    return path


def turn_of(path: Path, wanted: str) -> tuple[str, str]:
    """A turn's id, from the id or its beginning (empty: the leaf written last), and the intent of its cast."""
    from cantrip_acp.loom.find_loom import find_turn, open_readonly

    with open_readonly(path) as loom:
        turn = find_turn(loom, wanted or None)
        cast = loom.places[turn].cast_id
        start = loom.cast_of(cast)[0] if cast is not None else None
        return turn, (start.intent if start is not None else None) or ""


async def _recipe(server: Server, given: CommandArguments, loom: Path, question: str) -> Path:
    """The named recipe, else the one with which this server cast into the loom, else one that the user chooses."""
    workspace = server.documents.workspace(loom)
    if given.has("recipe"):
        name = given.text("recipe")
        if name.startswith(("file:", "/")):
            return given.file("recipe")
        from cantrip_acp.recipes import recipe

        found = await asyncio.to_thread(recipe.load, name, workspace)
        return found.path.absolute()
    cast = _cast_with(server, loom)
    if cast is not None:
        return cast
    known = await asyncio.to_thread(_recipes, server, workspace, loom.parent)
    if not known:
        raise DefinitionError(
            "which recipe? None is open, and there is none in .cantrip or beside the loom; name one as the argument `recipe`",
            where=str(loom),
        )
    if len(known) == 1:
        return known[0]
    names = {
        str(path.relative_to(workspace) if path.is_relative_to(workspace) else path): path for path in known[:_MOST]
    }
    return names[await ask_choice(server, question, tuple(names), "recipe", "its file or name")]


def _cast_with(server: Server, loom: Path) -> Path | None:
    """The recipe whose last cast by this server is in this loom."""
    for path, how in server.casts.last.items():
        if isinstance(how, casts.CastOutcome) and how.loom and os.path.abspath(how.loom) == str(loom):
            return path
    return None


def _recipes(server: Server, workspace: Path, beside: Path) -> list[Path]:
    from cantrip_acp.recipes.recipe import recipe_files

    opened = [document.path for document in list(server.documents.by_uri.values()) if document.recipe]
    return list(dict.fromkeys([*opened, *recipe_files(workspace / ".cantrip"), *recipe_files(beside)]))


async def ask_choice(server: Server, question: str, among: tuple[str, ...], name: str, what: str) -> str:
    """Let the user choose. Raises `DefinitionError` if nothing is chosen."""
    actions = [types.MessageActionItem(each) for each in among]
    asked = types.ShowMessageRequestParams(types.MessageType.Info, question, actions=actions)
    answer = await server.window_show_message_request_async(asked)
    if answer is None or answer.title not in among:
        raise DefinitionError(f"nothing was chosen; give {what} as the argument `{name}`")
    return answer.title


def _forkable(
    trusted: trust.TrustManager, path: Path, files: Files, workspace: Path, loom: Path
) -> tuple[Cantrip, Loom]:
    from cantrip_acp.files import paths
    from cantrip_acp.recipes.build.build import build, open_loom

    state = paths.state_dir()
    recipe = trust.recipe_at(path, files, state)
    trusted.require(recipe, workspace, state)
    cantrip = build(recipe, workspace=workspace)
    if cantrip.crystal.name == "human":
        raise DefinitionError("a human crystal answers in a terminal; use cantrip loom fork", where=str(path))
    return cantrip, open_loom(cantrip.loom_settings, loom, state)


def _circle(trusted: trust.TrustManager, path: Path, files: Files, workspace: Path) -> Cantrip:
    from cantrip_acp.crystals.scripted import ScriptedCrystal
    from cantrip_acp.files import paths
    from cantrip_acp.recipes.build.build import build

    state = paths.state_dir()
    recipe = trust.recipe_at(path, files, state)
    trusted.require(recipe, workspace, state)
    return build(recipe, workspace=workspace, crystal=ScriptedCrystal([]))


class WorkerThread:
    """One coroutine. Create it in the server's loop: it starts at once. `wait` for its result; `cancel` it at any time."""

    def __init__(self, made: Callable[[], Coroutine[Any, Any, Any]], name: str) -> None:
        self._made = made
        self._server = asyncio.get_running_loop()
        self._ended: asyncio.Future[Any] = self._server.create_future()
        self._inside: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self.cancelled = False
        threading.Thread(target=self._live, name=name, daemon=True).start()

    async def wait(self) -> Any:
        """Return its result or raise its error. Raises `asyncio.CancelledError` if it was cancelled."""
        return await asyncio.shield(self._ended)

    def cancel(self) -> None:
        """Cancel the coroutine; it ends at its next step."""
        self.cancelled = True
        if self._inside is not None:
            loop, task = self._inside
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)

    def _live(self) -> None:
        try:
            result = asyncio.run(self._run())
        except asyncio.CancelledError:
            self._on_loop(lambda: self._ended.cancel())
        except BaseException as error:  # noqa: BLE001 - given to the waiting task
            failure = error if isinstance(error, Exception) else RuntimeError(repr(error))
            self._on_loop(lambda: self._ended.set_exception(failure))
        else:
            self._on_loop(lambda: self._ended.set_result(result))

    async def _run(self) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._inside = asyncio.get_running_loop(), task
        if self.cancelled:
            task.cancel()
        return await self._made()

    def _on_loop(self, take: Callable[[], object]) -> None:
        def on_loop() -> None:
            if not self._ended.done():
                take()

        with contextlib.suppress(RuntimeError):  # the server has ended
            self._server.call_soon_threadsafe(on_loop)


FRAMES = ("vscode-webview:",)
"""The origins that may show the page in a frame."""


async def view(server: Server, given: CommandArguments, work: CommandRun) -> dict[str, Any]:
    """Serve a loom's page and let the client open it; with ``html``, write it to one self-contained file."""
    path = loom_file(given)
    if given.has("html"):
        return await _written(server, work, path, given.file("html"))
    hosts = tuple(host for host in given.text("hosts", "").split(",") if host)
    view = await asyncio.to_thread(server.looms.view, path, hosts, FRAMES)
    if given.has("turn"):
        turn, _ = await asyncio.to_thread(turn_of, path, given.text("turn"))
        url = view.link(turn)
    else:
        url = view.url
    shown = False
    if not given.flag("hidden"):
        shown = await server.show(url, external=True)
        if not shown:
            server.window_show_message(types.ShowMessageParams(types.MessageType.Info, f"The loom's page: {url}"))
    return {"url": url, "port": view.port, "shown": shown}


async def _written(server: Server, work: CommandRun, path: Path, target: Path) -> dict[str, Any]:
    from cantrip_acp.loom.view import write_html

    work.report("writing the page")
    count = await asyncio.to_thread(write_html, path, target)
    work.report(f"{count:,} turns")
    return {"file": str(target), "uri": target.as_uri(), "turns": count}


class _Cancelled(Exception):
    """The user cancelled the export."""


async def export(server: Server, given: CommandArguments, work: CommandRun) -> dict[str, Any]:
    """Export threads in a format for trainers and trace stores: all threads, or the one that ends in ``turn``."""
    from cantrip_acp.core import exports

    path = loom_file(given)
    if given.has("format"):
        name = given.text("format")
    else:
        names = tuple(await asyncio.to_thread(exports.names))
        name = await ask_choice(server, "Export in which format?", names, "format", f"one of {', '.join(names)}")
    format_ = exports.find(name)
    target = given.file("output") if given.has("output") else _free_path(path, format_)
    turn = given.text("turn", "")
    loop = asyncio.get_running_loop()

    def report_progress(done: int, of: int) -> None:
        if work.cancelled:
            raise _Cancelled
        if done % 20 == 0 or done == of:
            loop.call_soon_threadsafe(work.report, f"{done:,} of {of:,} threads")

    def run() -> Report:
        from cantrip_acp.loom.find_loom import find_turn, open_readonly
        from cantrip_acp.loom.output_file import output_file

        with open_readonly(path) as loom:
            # A thread that is named is exported however it ended.
            wanted = exports.ThreadSelection(threads=(find_turn(loom, turn),), truncated=True) if turn else None
            with output_file(target) as file:
                report = exports.export(loom, format_, file, wanted, report_progress)
                if not report.rows:
                    why = ", ".join(f"{count} × {reason}" for reason, count in report.left_out.items())
                    raise LoomError(f"no thread was left to write in {path}{f' ({why})' if why else ''}")
                return report

    work.on_cancel(lambda: None)  # `report_progress` checks for a cancel between two threads
    try:
        report = await asyncio.to_thread(run)
    except _Cancelled:
        raise CommandFailed("the export was cancelled; nothing was written", data={"error": "Cancelled"}) from None
    work.report(f"{report.rows:,} rows of {report.threads:,} threads")
    shown = await server.show(target.as_uri()) if not given.flag("hidden") else False
    about = report.record()
    return {
        "file": str(target),
        "uri": target.as_uri(),
        "format": name,
        "shown": shown,
        "rows": about["rows"],
        "threads": about["threads"],
        "leftOut": about["left_out"],
        "notes": about["notes"],
    }


def _free_path(loom: Path, format_: Format) -> Path:
    """The path of a new file beside the loom."""
    from cantrip_acp.core import exports

    stem = loom.name.removesuffix(".loom.jsonl")
    for number in range(1, 10_000):
        path = loom.with_name(exports.file_name(stem, format_))
        if number > 1:
            path = path.with_stem(f"{path.stem}-{number}")
        if not path.exists():
            return path
    raise DefinitionError(
        "there are too many exports beside the loom; name a file as the argument `output`", where=str(loom)
    )
