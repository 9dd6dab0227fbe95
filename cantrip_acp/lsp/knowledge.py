"""What a session in a folder would read of the substrate: for a tree view in the editor, and in the hover of a recipe.

The requests are ``cantrip/substrate/…``, the commands ``cantrip.substrate.…``; the language server's README.md lists their
parameters and answers. Before each answer, documents and skills of the folder are brought into the substrate, as a session
does at its start.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygls.exceptions import JsonRpcInvalidParams
from pygls.uris import from_fs_path

from cantrip_acp.files.paths import config_dir, state_dir, substrate_address
from cantrip_acp.lsp.looms.requests import RequestFailed, RequestParams
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.lsp.commands.arguments import CommandArguments
    from cantrip_acp.lsp.commands.command_run import CommandRun
    from cantrip_acp.lsp.server.language_server import Server
    from cantrip_acp.substrate.chunks import Chunk, Placed
    from cantrip_acp.substrate.knowledge import Knowledge
    from cantrip_acp.substrate.view import SessionView

_MOST_ROWS = 12
"""How many sources a hover lists."""
_MOST_FOUND = 50


def view_of(folder: Path, *, documents: bool = True, most_tokens: int | None = None) -> SessionView:
    """The knowledge that sessions of a folder read; by default as sessions of the Familiar. Raises `DefinitionError` if there
    is no substrate."""
    from cantrip_acp.substrate.knowledge import MOST_TOKENS
    from cantrip_acp.substrate.view import SessionView

    address = substrate_address(state_dir())
    if address is None:
        raise DefinitionError("the substrate is turned off: the variable CANTRIP_SUBSTRATE is `off`; unset it")
    most = MOST_TOKENS if most_tokens is None else most_tokens
    return SessionView(
        address, folder.resolve(), config_dir=config_dir(), documents=documents, sessions=0, most_tokens=most
    )


# --- Requests


def _tree(folder: Path, asked: RequestParams) -> dict[str, Any]:
    """The scopes that a session reads from the beginning, with their parts; and those in which `recall` finds more."""
    from cantrip_acp.substrate.knowledge import MOST_TOKENS

    view = view_of(folder)
    knowledge = view.knowledge("")
    project, substrate = view.project, view.substrate
    pins = {each.chunk.id for each in substrate.scope(project.pins).placed}
    scopes: list[dict[str, Any]] = []
    for scope_id in view.scopes(""):
        chunk = substrate.chunk(scope_id)
        parts = [part for part in knowledge.parts if scope_id in (part.chunk, part.scope)]
        # Parts of scopes inside this one follow it.
        inside = {part.chunk for part in parts}
        parts += [part for part in knowledge.parts if part.scope in inside and part not in parts]
        placed = [
            {
                "id": part.chunk,
                "name": part.name,
                "tokens": part.tokens,
                "source": part.source,
                "cut": part.cut,
                "leftOut": part.left_out,
                "uri": _file_uri(substrate.chunk(part.chunk), view),
            }
            for part in parts
            if part.chunk != scope_id
        ]
        scopes.append(
            _about(chunk, view)
            | {"tokens": sum(part.tokens for part in parts), "pinned": scope_id in pins, "placed": placed}
        )
    more = []
    for scope_id in (project.nested, project.sessions, project.runs):
        scope = substrate.scope(scope_id)
        if scope.placed and scope_id not in view.scopes(""):
            more.append(_about(scope.chunk, view) | {"count": len(scope.placed), "pinned": False})
    return {
        "commit": substrate.latest(),
        "location": substrate.location,
        "tokens": knowledge.tokens,
        "maxTokens": MOST_TOKENS,
        "reads": scopes,
        "finds": more,
    }


def _scope(folder: Path, asked: RequestParams) -> dict[str, Any]:
    """A page of the chunks on a scope; for sessions and runs, the latest first."""
    view, page = view_of(folder), asked.page()
    view.bring_files()
    scope = view.substrate.scope(asked.text("id") or view.project.id)
    placed = list(scope.placed)
    if scope.chunk.id in (view.project.sessions, view.project.runs):
        placed.sort(key=lambda each: -each.chunk.commit)
    return {"total": len(placed), "offset": page.start, "chunks": [_placed(each, view) for each in placed[page]]}


def _chunk(folder: Path, asked: RequestParams) -> dict[str, Any]:
    """One chunk, with its text or its fields as the model reads them."""
    from cantrip_acp.substrate.knowledge import render_chunk

    view, chunk_id = view_of(folder), asked.text("id")
    if not chunk_id:
        raise JsonRpcInvalidParams("'id' is the id of a chunk")
    chunk = view.substrate.chunk(chunk_id)
    placed = [_placed(each, view) for each in view.substrate.scope(chunk_id).placed[:_MOST_FOUND]]
    return _about(chunk, view) | {"commit": chunk.commit, "text": render_chunk(chunk), "placed": placed}


def _search(folder: Path, asked: RequestParams) -> dict[str, Any]:
    """The results of `recall` for a query."""
    view = view_of(folder)
    view.bring_files()
    hits = view.substrate.search(
        asked.text("query") or "", boundary=view.boundary, limit=asked.count("limit", 20, _MOST_FOUND)
    )
    return {"chunks": [_about(hit.chunk, view) | {"text": hit.snippet} for hit in hits]}


_ANSWERS: dict[str, Callable[[Path, RequestParams], dict[str, Any]]] = {
    "tree": _tree,
    "scope": _scope,
    "chunk": _chunk,
    "search": _search,
}


async def answer(name: str, ls: Server, params: object) -> dict[str, Any]:
    """Answer a request. ``uri`` is the folder; by default the first of the workspace."""
    asked = RequestParams(params if params is not None else {})
    if asked.text("uri") is not None:
        folder = asked.path()
    elif ls.documents.folders:
        folder = ls.documents.folders[0]
    else:
        raise JsonRpcInvalidParams("'uri' is the address of a folder (file:///…); no folder is open")
    try:
        return await asyncio.to_thread(_ANSWERS[name], folder, asked)
    except (DefinitionError, OSError) as error:
        raise RequestFailed(str(error), data={"error": type(error).__name__}) from None


def _about(chunk: Chunk, view: SessionView) -> dict[str, Any]:
    from cantrip_acp.substrate.knowledge import chunk_tokens

    return {
        "id": chunk.id,
        "name": chunk.name,
        "source": chunk.source,
        "tokens": chunk_tokens(chunk),
        "uri": _file_uri(chunk, view),
    }


def _placed(each: Placed, view: SessionView) -> dict[str, Any]:
    count = len(view.substrate.scope(each.chunk.id).placed)
    return _about(each.chunk, view) | {"kind": each.kind, "sequence": each.sequence, "count": count}


def _file_uri(chunk: Chunk, view: SessionView) -> str | None:
    """The address of a document's source file, if the file still exists."""
    name = chunk.body.get("path")
    if not isinstance(name, str):
        return None
    # A document's source says which folder its path is in; other chunks may claim any path.
    if not chunk.id.startswith(("file:", "skill:")):
        return None
    path = os.path.join(view.workspace if chunk.source.startswith("repository:") else config_dir(), name)
    return from_fs_path(path) if os.path.isfile(path) else None


# --- Commands


async def pin(server: Server, given: CommandArguments, work: CommandRun) -> dict[str, Any]:
    """Make every session of a folder read a scope from the beginning, or stop that."""
    from cantrip_acp.substrate.projects import pin as set_pin

    view, name, remove = view_of(given.file()), given.text("scope"), given.flag("remove")

    def change() -> dict[str, Any]:
        view.bring_files()
        chunk, commit = set_pin(view.substrate, view.workspace, name, remove=remove)
        return {"scope": chunk.id, "pinned": not remove, "commit": commit.number}

    return await asyncio.to_thread(change)


async def remember(server: Server, given: CommandArguments, work: CommandRun) -> dict[str, Any]:
    """Add a fact of the user to the knowledge of a folder's sessions, or of all sessions."""
    from cantrip_acp.substrate.remembered_facts import remember as add

    view, text, everywhere = view_of(given.file()), given.text("text"), given.flag("everywhere")

    def change() -> dict[str, Any]:
        view.bring_files()
        chunk, commit = add(view.substrate, view.workspace, text, everywhere=everywhere)
        return {"id": chunk.id, "name": chunk.name, "commit": commit.number}

    return await asyncio.to_thread(change)


# --- In recipes


def read_by(memory: object, folder: Path) -> Knowledge | None:
    """The knowledge that a session of a recipe with this `memory` would read in a folder. None if it reads none, or cannot."""
    values = memory if isinstance(memory, dict) else {}
    documents, most = values.get("culture") is True, values.get("max_tokens")
    if not (documents or values.get("sessions")):
        return None
    try:
        view = view_of(folder, documents=documents, most_tokens=most if type(most) is int and most >= 500 else None)
        return view.knowledge("")
    except (DefinitionError, OSError):
        return None


def hover_text(memory: object, folder: Path) -> str:
    """A Markdown table of the knowledge that a session would read; empty if there is none."""
    found = read_by(memory, folder)
    if found is None or not found.parts:
        return ""
    rows = ["| read now | tokens | source |", "|---|---|---|"]
    for part in found.parts[:_MOST_ROWS]:
        note = " (left out: no room)" if part.left_out else " (cut)" if part.cut else ""
        rows.append(f"| {_cell(part.name)}{note} | {part.tokens:,} | {_cell(part.source)} |")
    more = len(found.parts) - _MOST_ROWS
    rows += [f"| and {more} more | | |"] if more > 0 else []
    return "\n".join([*rows, "", f"In this folder together about {found.tokens:,} tokens, in each query."])


def _cell(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>()#+-.!|~&" else letter for letter in text)
