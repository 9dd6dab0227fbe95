"""The slash commands of `cantrip repl`. They are those of a session in an editor (`acp.sessions.slash_commands`), and a few
that only a terminal needs."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.to_thread

from cantrip_acp.cli.session import file_changes
from cantrip_acp.types.errors import CantripError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cantrip_acp.acp.sessions.factory import OpenedSession
    from cantrip_acp.acp.sessions.session import Session
    from cantrip_acp.cli.render.cast_output import CastText
    from cantrip_acp.cli.session.loop_thread import EntityThread
    from cantrip_acp.cli.session.mode import TerminalMode
    from cantrip_acp.cli.session.setup import OpenedRecipe
    from cantrip_acp.crystals.contract import Crystal
    from cantrip_acp.gates.web.named_hosts import NamedHosts

OF_THE_TERMINAL = {
    "ask": ("Ask before each write and command, or go back (also Shift-Tab)", None),
    "clear": ("Begin a new conversation; this one is kept", None),
    "model": ("Show the models, or choose the one that answers from now on", "[model]"),
    "now": ("Send a line to the entity before its next query", "text"),
    "plan": ("With --plan: change nothing until you approve a plan", None),
    "quit": ("Quit (also Ctrl-D)", None),
}

NOTES = """\
Each input is an intent. A line that ends in \\ continues on the next line; so does Alt-Enter. A paste is one input.
`@path` attaches a file or a folder, `@src/app.py#L10-20` some lines; Tab completes the path.
`!command` runs a command in the sandbox. The agent reads its output with your next intent.
What you type while a cast runs waits for its end.
Ctrl-C cancels the running cast."""


def names() -> list[tuple[str, str]]:
    """The names of all commands, with their slash, and what they do."""
    from cantrip_acp.acp.sessions.slash_commands import COMMANDS

    found = {name: command.description for name, command in COMMANDS.items()}
    found |= {name: about for name, (about, _) in OF_THE_TERMINAL.items()}
    return sorted((f"/{name}", about) for name, about in found.items())


class TerminalCommands:
    """Runs the commands of one entity. ``ask`` reads an answer of the user; None if there is no terminal.

    It has what `acp.sessions.slash_commands` uses of a session.
    """

    def __init__(
        self,
        run: EntityThread,
        opening: OpenedRecipe,
        output: CastText,
        hosts: NamedHosts,
        ask: Callable[[str], str] | None,
        mode: TerminalMode | None = None,
    ) -> None:
        from cantrip_acp.acp.permissions.interceptor import Permissions
        from cantrip_acp.acp.protocol import ClientAbilities
        from cantrip_acp.acp.sessions import modes
        from cantrip_acp.acp.sessions.factory import OpenedSession
        from cantrip_acp.acp.sessions.session_store import SessionMetadata, SessionStore

        self._run, self._opening, self._output, self._hosts, self._ask = run, opening, output, hosts, ask
        self._mode = mode
        self.model = opening.model
        """The model that was chosen in place of the recipe's own, or ""."""
        self.entity = run.entity
        asking = next((each for each in run.entity.cantrip.interceptors if isinstance(each, Permissions)), None)
        self.permissions: Any = asking or _NeverAsks()
        self.metadata = SessionMetadata(
            id=run.entity.id,
            cwd=str(opening.workspace),
            entity_id=run.entity.id,
            loom=opening.loom.location or "",
            started=str(opening.recipe.file) if opening.recipe.file is not None else opening.recipe.name,
            mode=asking.mode if asking is not None else modes.TRUSTED,
        )
        self.id = self.metadata.id
        self.client = ClientAbilities()
        self.loom_read = anyio.Lock()
        self._store = SessionStore(opening.state_dir)
        self.opened: OpenedSession = OpenedSession(self.metadata, run.entity, opening.recipe, self._store.exports)

    @property
    def translator(self) -> _Events:
        return _Events()

    async def send(self, events: Sequence[Any]) -> None:
        """Show events of a command, such as those of a fold."""
        for event in events:
            self._output.show_event(event)

    def run(self, line: str) -> bool:
        """Run a command and show its answer. Returns False for text that only begins with a slash, such as a path."""
        from cantrip_acp.acp.sessions import slash_commands
        from cantrip_acp.acp.sessions.prompt_queue import queue_text

        name, _, rest = line[1:].partition(" ")
        name = {"usage": "cost"}.get(name.lower(), name.lower())
        found = slash_commands.parse_command(f"/{name} {rest}")
        if f"/{name}" in file_changes.COMMANDS:
            file_changes.run(f"/{name} {rest}", self._run, self._output.renderer.show_note, self._ask)
        elif name == "help":
            self._output.show_answer(self._help())
        elif name == "ask" and not rest.strip():
            if self._mode is not None:
                self._run.call(self._mode.toggle_ask)
            else:
                self._output.show_line("there is no terminal to ask at")
        elif name == "remember":
            self._remember(rest.strip())
        elif name == slash_commands.QUEUE:
            # With a terminal, `TypedLines` has answered.
            self._output.show_line(queue_text([]))
        elif name == "now":
            self._output.show_line("nothing runs that could read it now; send it as a message, without /now")
        elif name == "model":
            self._model(rest.strip())
        elif found is not None:
            words = rest.split()
            restores = name == "fork" and "--restore" in words
            found = (found[0], " ".join(word for word in words if word != "--restore") if restores else found[1])
            self.metadata.mode = getattr(self.permissions, "mode", self.metadata.mode)
            run, session = slash_commands.run_command, cast("Session", self)
            self._output.show_answer(self._run.call(run, session, *found, self._fork_to_disk))
            if restores and found[1]:
                file_changes.run(f"/restore {found[1]}", self._run, self._output.renderer.show_note, self._ask)
        elif (near := self._near(name)) is not None:
            self._output.renderer.show_note(
                f"unknown command /{name}; did you mean /{near}? /help lists them", "yellow"
            )
        elif rest.strip():
            return False
        else:
            self._output.renderer.show_note(f"unknown command /{name}; /help lists them", "yellow")
        return True

    def _near(self, name: str) -> str | None:
        """The command that is probably meant by a name that is no path."""
        from difflib import get_close_matches

        if not name.replace("-", "").isalpha() or Path(f"/{name}").exists():
            return None
        return next(iter(get_close_matches(name, [each[1:] for each, _ in names()], n=1, cutoff=0.75)), None)

    def models(self) -> list[tuple[str, str]]:
        """The models that can be chosen, with what is known about them."""
        from cantrip_acp.recipes.build.crystal_choices import list_choices

        return [
            (each.value, each.description or "") for each in list_choices(self._opening.recipe, self.entity.crystal)
        ]

    def _model(self, name: str) -> None:
        """Show the models, or switch to another one from the next intent on."""
        from cantrip_acp.crystals.local import discovery
        from cantrip_acp.recipes.build.crystal_choices import crystal_for_run, name_for_run, value_of

        show = self._output.renderer.show_note
        if not name:
            discovery.find_running()
            now = value_of(self.entity.crystal)
            self._output.show_line(f"model: {now}")
            for value, about in self.models():
                if value != now:
                    show(f"/model {value}" + (f"  {about}" if about else ""))
            show("any PROVIDER:MODEL can be chosen; `cantrip models` lists what is known about them")
            return
        try:
            value = name_for_run(self._opening.recipe, name, "/model")
            crystal, notes = crystal_for_run(self._opening.recipe, name, "/model")
            self._run.call(self._use, crystal, value)
        except CantripError as problem:
            show(str(problem), "yellow")
            return
        self.model = value
        for note in notes:
            show(note, "yellow")
        self._output.show_line(f"model: {value}, from the next intent on")

    async def _use(self, crystal: Crystal, value: str) -> None:
        from cantrip_acp.cli.session.setup import record_model
        from cantrip_acp.crystals import http_clients

        old = self.entity.crystal
        self.entity.use_crystal(crystal)
        record_model(self.entity, value)
        http_clients.prepare_in_background(crystal)
        await http_clients.release(old, self.entity)

    def keep(self) -> str:
        """Keep this conversation as a session that can be continued. Returns its id, or "" if there is nothing to keep."""
        from cantrip_acp.loom.stores.address import is_address

        entity, loom = self.entity, self.entity.loom
        if not entity.last_turn or loom.location is None:
            return ""
        if self._opening.session_id:
            return self._opening.session_id
        first = next((start.intent for start in loom.cast_starts().values() if start.entity_id == entity.id), None)
        self.metadata.id = f"sess_{os.urandom(12).hex()}"
        self.metadata.crystal = self.model or None
        self.metadata.title = " ".join((first or "").split())[:80] or None
        self.metadata.mode = getattr(self.permissions, "mode", self.metadata.mode)
        if not is_address(loom.location):
            self.metadata.loom = str(Path(loom.location).resolve())
        self._store.save(self.metadata)
        return self.metadata.id

    def _help(self) -> str:
        from cantrip_acp.acp.sessions.slash_commands import COMMANDS

        hints = {name: command.hint for name, command in COMMANDS.items()}
        hints |= {name: hint for name, (_, hint) in OF_THE_TERMINAL.items()}
        rows = [f"- `{name}{f' {hint}' if (hint := hints[name[1:]]) else ''}`: {about}" for name, about in names()]
        return "\n".join([*rows, "", "\n\n".join(NOTES.splitlines())])

    async def _fork_to_disk(self, source: Session, turn_id: str) -> str:
        """Make a session that continues from a turn, for `cantrip repl --session`. Returns its id."""
        from cantrip_acp.acp.sessions.factory import Recipes, SessionFactory

        factory = SessionFactory(Recipes(self.metadata.started, self._opening.state_dir), self._store)
        session_id = f"sess_{os.urandom(12).hex()}"
        make = partial(factory.fork, session_id, self.opened, turn_id, Path(self.metadata.cwd), (), self._hosts)
        opened = await anyio.to_thread.run_sync(make)
        await opened.entity.close()
        opened.release()
        return session_id

    def _remember(self, text: str) -> None:
        """Add a fact to what later sessions know, after asking where it belongs."""
        from cantrip_acp.acp.sessions.knowledge_commands import view_of
        from cantrip_acp.substrate.projects import make_fact, remember

        show = self._output.show_line
        try:
            view = view_of(cast("Session", self))
            if not text:
                show("write what to remember: /remember Ports begin at 4000.")
                return
            # What cannot be stored is refused before the user is asked.
            make_fact(text)
            answer = ""
            if self._ask is not None:
                with suppress(EOFError, KeyboardInterrupt):
                    answer = self._ask("remember it in this project (p), in all projects (a), or not (n)? ").strip()
            if answer[:1].lower() not in ("p", "a") or self._ask is None:
                show("nothing was remembered; `cantrip substrate remember TEXT` needs no question")
                return
            everywhere = answer[:1].lower() == "a"
            chunk, commit = remember(view.substrate, view.workspace, text, everywhere=everywhere)
        except CantripError as problem:
            self._output.renderer.show_note(str(problem), "yellow")
            return
        where = "all projects" if everywhere else "this project"
        show(f"remembered for {where} ({chunk.id}, commit {commit.number}); the next query reads it")


class _Events:
    """The translator of this session: events are shown as they are."""

    def translate(self, event: Any) -> list[Any]:
        return [event]


class _NeverAsks:
    """The permissions of an entity that may do everything without a question."""

    def __init__(self) -> None:
        self.granted: list[Any] = []

    def forget(self) -> None:
        """There is nothing to forget."""
