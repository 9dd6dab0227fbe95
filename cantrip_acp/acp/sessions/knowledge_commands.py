"""The slash commands about what a session knows: ``/scope``, ``/remember`` and ``/context``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.to_thread

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.permissions.request import choose, escape_invisible
from cantrip_acp.core.errors import DefinitionError
from cantrip_acp.core.folding.policy import CHARS_PER_TOKEN, tokens_of
from cantrip_acp.crystals.catalog.lookup import look_up
from cantrip_acp.loom.records.turn import new_id

if TYPE_CHECKING:
    from cantrip_acp.acp.sessions.session import Session
    from cantrip_acp.substrate.view import SessionView

_KINDS = {
    "call": "system prompt",
    "capabilities": "capabilities",
    "context": "context given with prompts",
    "intent": "prompts",
    "turn": "turns: answers, calls and results",
    "partial": "answers that were not finished",
    "nudge": "hints of cantrip",
    "fold": "summary of folded turns",
}
"""What a message is, by its kind."""


def view_of(session: Session) -> SessionView:
    """What the session reads of the substrate. Raises `DefinitionError` if it reads nothing."""
    from cantrip_acp.substrate.view import SessionView

    for contributor in session.entity.cantrip.contributors:
        if isinstance(contributor, SessionView):
            return contributor
    raise DefinitionError("this session reads nothing from the substrate: its recipe has no `memory: {culture: true}`")


async def scope(session: Session, rest: str) -> str:
    """List what the session reads, or add a scope to it."""
    view, entity = view_of(session), session.entity
    word, _, name = rest.partition(" ")
    if word == "add" and name.strip():
        scope_id, tokens = await anyio.to_thread.run_sync(view.add, entity.id, name.strip())
        return f"Added `{scope_id}`, about {tokens:,} tokens. The next query reads it."
    if rest:
        return "`/scope` lists what this session reads, `/scope add NAME` adds a scope. `cantrip substrate tree` shows names."
    knowledge = await anyio.to_thread.run_sync(view.knowledge, entity.id)
    if not knowledge.parts:
        return "This session reads nothing from the substrate yet. `/scope add NAME` adds a scope."
    lines = ["| scope | tokens | source |", "|---|---|---|"]
    for part in knowledge.parts:
        note = " (left out: no room)" if part.left_out else " (cut)" if part.cut else ""
        lines.append(f"| {_cell(part.name)}{note} | {part.tokens:,} | {_cell(part.source)} |")
    return "\n".join([*lines, f"\nTogether about {knowledge.tokens:,} tokens."])


async def remember(session: Session, rest: str) -> str:
    """Add a fact after asking where it belongs. The question shows the change."""
    from cantrip_acp.substrate.projects import remember as add

    view = view_of(session)
    if not rest.strip():
        return "Write what to remember: `/remember Ports begin at 4000.`"
    project = view.project
    call = acp.PermissionToolCall(
        tool_call_id=new_id("remember"),
        title="Remember this for later sessions",
        kind="edit",
        name="remember",
        status="pending",
        content=[acp.Diff(str(view.workspace / "culture"), None, escape_invisible(rest.strip()) + "\n")],
    )
    options = [
        acp.PermissionOption("allow_once", "Remember in this project", "allow_once"),
        acp.PermissionOption("everywhere", "Remember in all projects", "allow_once"),
        acp.PermissionOption("reject_once", "Do not remember", "reject_once"),
    ]
    chosen = await choose(session.connection, acp.RequestPermission(session.id, call, options))
    if chosen == "unasked":
        return "The client could not ask. `cantrip substrate remember TEXT` adds a fact without a question."
    if chosen not in ("allow_once", "everywhere"):
        return "Nothing was remembered."
    everywhere = chosen == "everywhere"
    chunk, commit = await anyio.to_thread.run_sync(lambda: add(view.substrate, project, rest, everywhere=everywhere))
    where = "your own culture, for all projects" if everywhere else "the culture of this project"
    return f"Remembered in {where} (`{chunk.id}`, commit {commit.number}). The next query reads it."


async def context(session: Session, rest: str) -> str:
    """What the next query will contain, by source, in tokens and money."""
    entity = session.entity
    tokens: dict[str, int] = {}
    for message in entity.context.messages:
        if message.kind != "knowledge":
            what = _KINDS.get(message.kind, message.kind)
            tokens[what] = tokens.get(what, 0) + tokens_of(message)
    tools = sum(len(str(tool.parameters)) + len(tool.description) for tool in entity.circle.tools) // CHARS_PER_TOKEN
    rows = [(what, count) for what, count in tokens.items() if count]
    rows.insert(min(2, len(rows)), (f"{len(entity.circle.tools)} tools", tools))
    known: list[tuple[str, int]] = []
    try:
        knowledge = await anyio.to_thread.run_sync(view_of(session).knowledge, entity.id)
    except DefinitionError:
        pass
    else:
        known = [(f"knowledge: {part.name} ({part.source})", part.tokens) for part in knowledge.parts if part.tokens]
    rows[3:3] = known
    total = sum(count for _, count in rows)
    price = look_up(entity.crystal.name, entity.crystal.model, remark=False).price
    each = price.input / 1_000_000 if price is not None else None
    money = "" if each is None else " | US dollars"
    lines = [f"| in the next query | tokens{money} |", "|---|---" + ("|---|" if each is not None else "|")]
    for what, count in (*rows, ("**together**", total)):
        lines.append(f"| {_cell(what)} | {count:,} |" + (f" {count * each:.4f} |" if each is not None else ""))
    notes = ["\nTokens are estimates, rather too high than too low."]
    if each is None:
        notes.append(f"The price of `{entity.crystal.name}:{entity.crystal.model}` is not known.")
    else:
        notes.append("Money is the price without a prompt cache.")
    if entity.context.folded:
        notes.append(f"{entity.context.folded} earlier turns are folded into a summary.")
    return "\n".join([*lines, " ".join(notes)])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")
