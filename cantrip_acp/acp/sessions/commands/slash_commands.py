"""Slash commands: parses and runs commands such as ``/fork`` and ``/cost`` in a prompt (ACP, Slash Commands).

The agent answers a command without a query to the model. The crystal does not see the command or its answer.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.permissions.request import escape_invisible
from cantrip_acp.acp.sessions.commands import file_commands, knowledge_commands
from cantrip_acp.acp.sessions.options import modes
from cantrip_acp.acp.sessions.prompt.prompt_queue import parse_queue_command, queue_text
from cantrip_acp.acp.wire.jsonrpc import RpcError
from cantrip_acp.gates.services import BY_USER
from cantrip_acp.gates.web.network_question import BASH_NETWORK
from cantrip_acp.loom.query.history import casts_of, crystal_turns
from cantrip_acp.types.errors import CantripError
from cantrip_acp.types.records import ConfigRecord, new_id, now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cantrip_acp.acp.sessions.session_interface import OpenSession

QUEUE = "queue"
"""The command that also works while a prompt runs."""

MakeFork = Callable[[Any, str], Awaitable[str]]
"""Makes a fork of a session from a turn id. Returns the id of the new session."""


class UsageError(Exception):
    """The arguments of a command are wrong. The text says what is right."""


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command. ``run`` takes the session, the text after the command's name, and a function that makes forks. It
    returns Markdown."""

    name: str
    description: str
    run: Callable[[OpenSession, str, MakeFork], Awaitable[str]]
    hint: str | None = None


def parse_command(text: str) -> tuple[Command, str] | None:
    """Return the command at the start of a prompt and the text after it. None if the prompt is for the entity."""
    words = text.strip()
    if not words.startswith("/") or not words[1:2].isalpha():
        return None
    name, *rest = words[1:].split(maxsplit=1)
    command = COMMANDS.get(name.lower())
    if command is not None:
        return command, rest[0].strip() if rest else ""
    if rest:
        # An unknown name with more text is not a command but a path, or a question about a path.
        return None
    near = _OTHER_NAMES.get(name.lower()) or next(
        iter(get_close_matches(name.lower(), COMMANDS, n=1, cutoff=0.75)), None
    )
    return (_unknown(name, near), "") if near is not None else None


def _unknown(name: str, near: str) -> Command:
    """A command that answers a mistyped name, or a command of another agent, without a query."""

    async def run(session: OpenSession, rest: str, forker: MakeFork) -> str:
        return f"There is no command `/{name}`; did you mean `/{near}`? `/help` lists them all."

    return Command(name, "", run)


def commands_update() -> acp.AvailableCommands:
    """The update that lists all commands for the client."""
    return acp.AvailableCommands(
        [
            acp.AvailableCommand(c.name, c.description, acp.CommandInput(c.hint) if c.hint else None)
            for c in COMMANDS.values()
        ]
    )


async def run_command(session: OpenSession, command: Command, rest: str, forker: MakeFork) -> str:
    """Run a command and return its answer as Markdown. A failure is an answer too."""
    try:
        return await command.run(session, rest, forker)
    except (UsageError, CantripError) as problem:
        return str(problem)
    except RpcError as problem:
        return problem.message


# --- the commands ------------------------------------------------------------------------------------------------------


async def _loom(session: OpenSession, rest: str, forker: MakeFork) -> str:
    entity = session.entity
    where = entity.loom.location or "in memory; it is lost when the session is closed"
    turns = await anyio.to_thread.run_sync(_turn_rows, session)
    lines = [
        f"Loom: `{where}`",
        f"Agent `{entity.id}`, {len(turns)} turn{'' if len(turns) == 1 else 's'} in this thread.",
    ]
    if turns:
        lines += ["", "| turn | id | says |", "|---|---|---|"]
        lines += [f"| {n} | `{turn_id}` | {text} |" for n, turn_id, text in turns[-12:]]
        if len(turns) > 12:
            lines.append(f"\nThese are the last 12 turns. `cantrip loom show {where}` shows all.")
    return "\n".join(lines)


def _turn_rows(session: OpenSession) -> list[tuple[int, str, str]]:
    entity = session.entity
    if not entity.last_turn or entity.last_turn not in entity.loom:
        return []
    rows = []
    for number, (_, turn) in enumerate(crystal_turns(casts_of(entity.loom, entity.last_turn)), 1):
        text = turn.utterance.content or turn.utterance.code or ", ".join(turn.gate_calls)
        short = " ".join(text.split())[:80].replace("|", "\\|").replace("`", "'")
        rows.append((number, turn.id, short))
    return rows


async def _fork(session: OpenSession, rest: str, forker: MakeFork) -> str:
    words = rest.split()
    restores = "--restore" in words
    turn_id = await _resolve_turn(session, " ".join(word for word in words if word != "--restore"))
    forked = await forker(session, turn_id)
    told = (
        f"Forked from turn `{turn_id}` as session `{forked}`. This session does not change. Open the fork from your editor's "
        f"list of sessions, or with `cantrip repl --session {forked}`."
    )
    if session.entity.checkpoints is None:
        return told
    done = await file_commands.restore_to_turn(session, turn_id, dry_run=not restores)
    if restores:
        return f"{told}\n\n{file_commands.report(done, f'/restore {turn_id}')}"
    differ = len(done["restored"]) + len(done["conflicts"])
    if not differ:
        return told
    were = "1 file was" if differ == 1 else f"{differ} files were"
    return f"{told}\n\n{were} changed after that turn. `/restore {turn_id}` restores {'it' if differ == 1 else 'them'} as then."


async def _resolve_turn(session: OpenSession, text: str) -> str:
    """The id of the turn that ``text`` names by number or id, or of the last turn if ``text`` is empty."""
    from cantrip_acp.loom.query.history import named_turn

    wanted: object = int(text) if text.isdecimal() else text
    turns = await anyio.to_thread.run_sync(_turn_rows, session)
    if not turns:
        raise UsageError("There is no turn yet in this session.")
    if not text:
        return turns[-1][1]
    found = await anyio.to_thread.run_sync(named_turn, session.entity.loom, session.entity.last_turn, wanted)
    if found is None:
        raise UsageError(
            f"There is no turn {text!r} in this thread. Give a number from 1 to {len(turns)}, or an id that /loom shows."
        )
    return found


async def _fold(session: OpenSession, rest: str, forker: MakeFork) -> str:
    from cantrip_acp.core.folding.apply import fold_now

    if rest and not rest.isdecimal():
        raise UsageError("Give the number of turns to keep, such as /fold 3, or nothing.")
    with session.entity.hub.listening(lossy=True) as stream:
        folded = await fold_now(session.entity, int(rest) if rest else None)
        stream.finish()
        async for event in stream:
            # Show it like a fold during a prompt.
            await session.send(session.translator.translate(event))
    if not folded:
        return "There is nothing to fold: a summary would replace no turn."
    return (
        f"Folded: a summary stands for {folded} earlier turn{'' if folded == 1 else 's'} in what the model sees from now on. "
        "The record has them all."
    )


async def _reward(session: OpenSession, rest: str, forker: MakeFork) -> str:
    words = shlex.split(rest) if rest.count('"') % 2 == 0 and rest.count("'") % 2 == 0 else rest.split()
    try:
        value = float(words[0])
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError
    except (IndexError, ValueError):
        raise UsageError(
            "Give a number, such as /reward 1. To reward another turn than the last one, add its number: /reward 0.5 3"
        ) from None
    named_turn = words[1] if len(words) > 1 else ""
    turn_id = await _resolve_turn(session, named_turn)
    session.entity.loom.annotate_reward(turn_id, value, by="user", note=" ".join(words[2:]) or None)
    return f"Turn `{turn_id}` has the reward {value:g}."


async def _wards(session: OpenSession, rest: str, forker: MakeFork) -> str:
    granted, workspace = session.permissions.granted, session.entity.circle.workspace
    if rest:
        if rest.lower() != "forget":
            raise UsageError(
                'Type /wards to see the limits and your "always" answers, or /wards forget to delete these answers.'
            )
        count = session.permissions.forget(workspace)
        session.metadata.granted.clear()
        changes = {"permissions": "forgotten"}
        session.entity.loom.append(ConfigRecord(new_id("g"), session.entity.id, changes, now()))
        return f'Deleted {count} "always" answer{"" if count == 1 else "s"}. The mode decides again when you are asked.'
    wards = session.entity.circle.wards.declared()
    rows = "\n".join(f"| `{name}` | {_value(value)} |" for name, value in wards.items())
    answers = "".join(
        f"\n- {'allowed' if each.allowed else 'refused'}: `{each.tool}` {_quoted(each.pattern)}" for each in granted
    )
    answers += "".join(
        f"\n- allowed for this project: `{BASH_NETWORK.name}` {_quoted(pattern)}"
        for pattern in sorted(session.permissions.hosts_of_project(workspace))
    )
    remembered = (
        f'\n\nYour "always" answers in this session (`/wards forget` deletes them):\n{answers}' if answers else ""
    )
    mode = session.metadata.mode
    shown = modes.name_of(mode)
    # Editors show another name for some modes; the documentation and the options have the id.
    also = "" if shown.lower().replace(" ", "-") == mode else f" (editors show it as “{shown}”)"
    return f"Mode: **{mode}**{also}\n\n| limit | in force |\n|---|---|\n{rows}{remembered}"


def _quoted(pattern: str) -> str:
    """A pattern on one line of Markdown."""
    if pattern == "*":
        return "(any call)"
    text = " ".join(escape_invisible(pattern.replace("\0", " ")).removeprefix("=").replace("`", "'").split())
    return f"`{text[:200]}{'…' if len(text) > 200 else ''}`"


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(f"`{item}`" for item in value) or "nothing"
    return f"`{value}`"


async def _cost(session: OpenSession, rest: str, forker: MakeFork) -> str:
    usage = session.entity.usage
    window = session.entity.crystal.context_window
    tokens = session.entity.context.tokens
    context = f"about {tokens:,} tokens" + (f" of {window:,} ({100 * tokens // window} %)" if window else "")
    return f"Used so far: {', '.join(usage.words()) or 'nothing'}.\n\nThe context holds {context}."


async def _recipe(session: OpenSession, rest: str, forker: MakeFork) -> str:
    entity, recipe = session.entity, session.opened.recipe
    gates = ", ".join(f"`{name}`" for name in entity.circle.gates)
    source = (
        f"{recipe.source}, `{recipe.file}`" if recipe is not None else "made by the program that serves this session"
    )
    about = f"\n\n{recipe.description}" if recipe is not None and recipe.description else ""
    return (
        f"**{entity.cantrip.name or entity.cantrip.id}** ({source}){about}\n\nModel: `{entity.crystal.name}:"
        f"{entity.crystal.model}` · medium: `{entity.circle.medium.name}` · tools: {gates}"
    )


async def _export(session: OpenSession, rest: str, forker: MakeFork) -> str:
    from cantrip_acp.core import exports

    words = rest.split()
    if len(words) != 1:
        raise UsageError(f"Name a format, such as /export openai. There are: {', '.join(exports.names())}.")
    chosen = exports.find(words[0])
    loom = session.entity.loom
    if loom.location is None:
        raise UsageError("This session's record is in memory. Only a session with a record on disk can be exported.")
    from cantrip_acp.files.paths import private
    from cantrip_acp.loom.output_file import output_file
    from cantrip_acp.loom.stores.address import is_address

    target = session.opened.exports / exports.file_name(session.id, chosen)
    # A database also holds the threads of other sessions. A session's own file holds its forks and children.
    places, own = loom.places, session.entity.id
    threads = tuple(i for i in loom.leaves() if places[i].entity_id == own) if is_address(loom.location) else ()
    if is_address(loom.location) and not threads:
        raise UsageError("This session has no turn yet, so there is nothing to export.")

    def work() -> int:
        private(target.parent)
        with output_file(target) as out:
            return exports.export(loom, chosen, out, exports.ThreadSelection(threads=threads)).rows

    rows = await anyio.to_thread.run_sync(work)
    return (
        f"Wrote {rows} row{'' if rows == 1 else 's'} to `{target}`. `cantrip loom export` chooses threads and places."
    )


async def _undo(session: OpenSession, rest: str, forker: MakeFork) -> str:
    return await file_commands.undo_command(session, rest)


async def _redo(session: OpenSession, rest: str, forker: MakeFork) -> str:
    return await file_commands.redo_command(session, rest)


async def _restore(session: OpenSession, rest: str, forker: MakeFork) -> str:
    words = [word for word in rest.split() if word != "--force"]
    if len(words) != 1:
        raise UsageError(
            "Give a turn by the number or the id that /loom shows, such as /restore 3. /restore 0 is the start of the session."
        )
    turn_id = await _resolve_turn(session, words[0])
    return await file_commands.restore_command(session, words[0], turn_id, force="--force" in rest.split())


async def _changes(session: OpenSession, rest: str, forker: MakeFork) -> str:
    return await file_commands.changes_command(session, rest)


async def _context(session: OpenSession, rest: str, forker: MakeFork) -> str:
    return await knowledge_commands.context(session, rest)


async def _scope(session: OpenSession, rest: str, forker: MakeFork) -> str:
    return await knowledge_commands.scope(session, rest)


async def _remember(session: OpenSession, rest: str, forker: MakeFork) -> str:
    return await knowledge_commands.remember(session, rest)


async def _run(session: OpenSession, rest: str, forker: MakeFork) -> str:
    if not rest:
        raise UsageError("Write a command, such as /run ls -l.")
    from cantrip_acp.acp.sessions.commands import user_shell

    return await user_shell.run_command(session, rest)


async def _services(session: OpenSession, rest: str, forker: MakeFork) -> str:
    services = session.entity.executor.services
    action, _, name = rest.partition(" ")
    if services is None or not rest:
        listed = services.listed() if services is not None else "no services"
        more = "\n\n`/services output ID` shows what one printed last, `/services stop ID` ends it."
        return "\n".join(f"- {line}" for line in listed.splitlines()) + (more if services and services.all else "")
    if action == "output" and name:
        return f"{services.title(name)}\n\n```text\n{services.last_output(name) or '(no output)'}\n```"
    if action == "stop" and name:
        return await services.stop(name, BY_USER)
    raise UsageError("`/services`, `/services output ID` or `/services stop ID`.")


async def _queue(session: OpenSession, rest: str, forker: MakeFork) -> str:
    queue = session.queue
    waiting = queue.state().prompts
    try:
        action, number, text = parse_queue_command(rest, len(waiting))
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    if action == "remove":
        queue.remove(waiting[number].id)
    elif action == "edit":
        queue.edit(waiting[number].id, [acp.Text(text=text)])
    elif action == "now":
        await queue.send_now(waiting[number].id)
    return queue_text([(each.text, each.sending) for each in queue.state().prompts])


async def _help(session: OpenSession, rest: str, forker: MakeFork) -> str:
    rows = "\n".join(f"- `/{c.name}{f' {c.hint}' if c.hint else ''}`: {c.description}" for c in COMMANDS.values())
    return f"{rows}\n\nAny other text is a prompt for the agent."


def _by_name(commands: Sequence[Command]) -> dict[str, Command]:
    return {command.name: command for command in commands}


_OTHER_NAMES = {
    "compact": "fold",
    "rewind": "restore",
    "diff": "changes",
    "summarize": "fold",
    "memory": "remember",
    "usage": "cost",
    "tokens": "cost",
    "permissions": "wards",
    "commands": "help",
}
"""Command names of other agents, and our names for the same commands."""

COMMANDS = _by_name(
    [
        Command("loom", "Show where this session is stored, and its last turns", _loom),
        Command("fork", "Start a new session from a turn of this session", _fork, "[turn] [--restore]"),
        Command(
            "changes", "List the files that the agent changed; keep or undo them", _changes, "[-p|keep|undo|diff FILE]"
        ),
        Command("undo", "Undo the file changes of the last prompt, or of one file", _undo, "[file [hunk]] [--force]"),
        Command("redo", "Take the last undo or restore back", _redo, "[--force]"),
        Command("restore", "Restore the files as they were after a turn", _restore, "turn [--force]"),
        Command("fold", "Replace earlier turns by a summary", _fold, "[turns to keep]"),
        Command("reward", "Give a turn a reward", _reward, "number [turn] [note]"),
        Command(
            "wards",
            'Show the mode, the limits in force (wards in a recipe) and your "always" answers',
            _wards,
            "[forget]",
        ),
        Command("context", "Show what the next query will contain, in tokens and money", _context),
        Command("scope", "Show what this session knows, or add a scope", _scope, "[add NAME]"),
        Command("remember", "Add a fact to what later sessions know; asks first", _remember, "text"),
        Command(
            "run", "Run a command in the sandbox; the agent reads its output with your next prompt", _run, "command"
        ),
        Command("services", "List the commands that go on in the background", _services, "[output|stop ID]"),
        Command("cost", "Show tokens and cost so far", _cost),
        Command("recipe", "Show the recipe, the model and the tools of this session", _recipe),
        Command("export", "Export this session's threads for training", _export, "format"),
        Command(QUEUE, "Show, edit, remove or send the prompts that wait", _queue, "[edit|remove|now NUMBER]"),
        Command("help", "List these commands", _help),
    ]
)
