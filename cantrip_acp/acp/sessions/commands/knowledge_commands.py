"""The slash commands about what a session knows: ``/scope``, ``/remember`` and ``/context``. The request ``_cantrip/context``
gives the last one as data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.permissions.request import choose, escape_invisible
from cantrip_acp.core.folding.policy import CHARS_PER_TOKEN, tokens_of
from cantrip_acp.crystals.catalog.lookup import look_up
from cantrip_acp.types.errors import DefinitionError
from cantrip_acp.types.messages import KIND_NAMES
from cantrip_acp.types.records import new_id

if TYPE_CHECKING:
    from cantrip_acp.acp.sessions.session_interface import OpenSession
    from cantrip_acp.substrate.view import SessionView


def view_of(session: OpenSession) -> SessionView:
    """The session's view of the substrate. Raises `DefinitionError` if it has none."""
    from cantrip_acp.substrate.view import SessionView

    for contributor in session.entity.cantrip.contributors:
        if isinstance(contributor, SessionView):
            return contributor
    raise DefinitionError("this session reads nothing from the substrate: its recipe has no `memory: {culture: true}`")


async def scope(session: OpenSession, rest: str) -> str:
    """List the scopes that the session reads, or add one."""
    from cantrip_acp.substrate.recorder import flush

    view, entity = view_of(session), session.entity
    if view.address is not None:
        # Include facts that other sessions of this process have just recorded.
        await anyio.to_thread.run_sync(flush, view.address)
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


async def remember(session: OpenSession, rest: str) -> str:
    """Add a fact after asking where it belongs. The question shows the change."""
    from cantrip_acp.substrate.remembered_facts import make_fact
    from cantrip_acp.substrate.remembered_facts import remember as add

    view = view_of(session)
    if not rest.strip():
        return "Write what to remember: `/remember Ports begin at 4000.`"
    if await anyio.to_thread.run_sync(lambda: view.substrate and view.missing):
        return f"Nothing can be remembered: {view.missing}"
    # Refuse a text that cannot be stored before asking the user.
    make_fact(rest)
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
    session.send_now(
        acp.ToolCall(
            tool_call_id=call.tool_call_id, title=call.title, kind=call.kind, status="pending", content=call.content
        )
    )
    status: acp.ToolStatus = "failed"
    try:
        chosen = await choose(session.connection, acp.RequestPermission(session.id, call, options))
        if chosen == "unasked":
            return "The client could not ask. `cantrip substrate remember TEXT` adds a fact without a question."
        if chosen not in ("allow_once", "everywhere"):
            return "Nothing was remembered."
        everywhere = chosen == "everywhere"
        chunk, commit = await anyio.to_thread.run_sync(
            lambda: add(view.substrate, view.workspace, rest, everywhere=everywhere)
        )
        status = "completed"
    finally:
        # A call that was shown has an end.
        session.send_now(acp.ToolCallUpdate(tool_call_id=call.tool_call_id, status=status))
    where = "your own culture, for all projects" if everywhere else "the culture of this project"
    return f"Remembered in {where} (`{chunk.id}`, commit {commit.number}). The next query reads it."


@dataclass(frozen=True, slots=True)
class ContextRow:
    """A part of the next query: its name, its estimated tokens, and for a part of the knowledge its source and chunk."""

    what: str
    tokens: int
    source: str = ""
    chunk: str = ""


async def context_rows(session: OpenSession) -> list[ContextRow]:
    """The parts of the next query by source, in the order in which the crystal reads them."""
    entity = session.entity
    tokens: dict[str, int] = {}
    for message in entity.context.messages:
        if message.kind != "knowledge":
            what = KIND_NAMES.get(message.kind, message.kind)
            tokens[what] = tokens.get(what, 0) + tokens_of(message)
    tools = sum(len(str(tool.parameters)) + len(tool.description) for tool in entity.circle.tools) // CHARS_PER_TOKEN
    rows = [ContextRow(what, count) for what, count in tokens.items() if count]
    rows.insert(min(2, len(rows)), ContextRow(f"{len(entity.circle.tools)} tools", tools))
    try:
        knowledge = await anyio.to_thread.run_sync(view_of(session).knowledge, entity.id)
    except DefinitionError:
        return rows
    rows[3:3] = [
        ContextRow(f"knowledge: {part.name}", part.tokens, part.source, part.chunk)
        for part in knowledge.parts
        if part.tokens
    ]
    return rows


def _price(session: OpenSession) -> float | None:
    """Dollars for one token of a query, without a prompt cache; None if it is not known."""
    crystal = session.entity.crystal
    price = look_up(crystal.name, crystal.model, remark=False).price
    return price.input / 1_000_000 if price is not None else None


async def context_data(session: OpenSession) -> dict[str, Any]:
    """The parts of the next query as data: the answer to ``_cantrip/context``."""
    rows, each = await context_rows(session), _price(session)
    window = session.entity.crystal.context_window
    return {
        "rows": [
            {"what": row.what, "tokens": row.tokens}
            | ({"source": row.source, "chunk": row.chunk} if row.chunk else {})
            | ({"cost": row.tokens * each} if each is not None else {})
            for row in rows
        ],
        "tokens": sum(row.tokens for row in rows),
        **({"window": window} if window else {}),
    }


async def context(session: OpenSession, rest: str) -> str:
    """Show the parts of the next query by source, in tokens and money."""
    entity, rows, each = session.entity, await context_rows(session), _price(session)
    total = sum(row.tokens for row in rows)
    money = "" if each is None else " | US dollars"
    lines = [f"| in the next query | tokens{money} |", "|---|---" + ("|---|" if each is not None else "|")]
    for row in (*rows, ContextRow("**together**", total)):
        what = f"{row.what} ({row.source})" if row.source else row.what
        lines.append(
            f"| {_cell(what)} | {row.tokens:,} |" + (f" {row.tokens * each:.4f} |" if each is not None else "")
        )
    notes = ["\nTokens are estimates, rather too high than too low."]
    if each is None:
        notes.append(f"The price of `{entity.crystal.name}:{entity.crystal.model}` is not known.")
    else:
        notes.append("Money is the price without a prompt cache.")
    if entity.context.folded:
        notes.append(f"{len(entity.context.folded)} earlier turns are folded into a summary.")
    return "\n".join([*lines, " ".join(notes)])


def _cell(text: str) -> str:
    """A text in a cell of a Markdown table: no row, link, picture or element of its own."""
    return re.sub(r"[\\|`<\[]", r"\\\g<0>", " ".join(text.split()))
