"""Resume in the terminal a session that began elsewhere, such as in an editor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cantrip_acp.cli.session.setup import Opening
from cantrip_acp.core.errors import DefinitionError, LoomLocked, MissingKey

if TYPE_CHECKING:
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.gates.contract import Interceptor
    from cantrip_acp.gates.web.named_hosts import NamedHosts


def open_session(
    session_id: str, recipe: str | None, state_dir: Path | None, hosts: NamedHosts, *, ask: bool = False
) -> tuple[Opening, Entity]:
    """The session's recipe, cantrip, loom and folder, and its entity with all its earlier casts.
    Requests may go only to ``hosts`` and to hosts that the session's earlier prompts name. With ``ask`` it asks in the terminal,
    except about what the session always allows or always refuses.
    ``recipe`` overrides the session's own. Raises DefinitionError if there is no such session, and LoomLocked
    while another process works in it.
    """
    import click

    from cantrip_acp.acp.sessions.factory import hold
    from cantrip_acp.acp.sessions.session_store import SessionStore
    from cantrip_acp.core.forking.resume import TOLD, reopen
    from cantrip_acp.files import paths
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.stores.address import is_address, shown
    from cantrip_acp.recipes import DEFAULT, load, trust
    from cantrip_acp.recipes.build import build, choices
    from cantrip_acp.recipes.recipe import built_in, is_path

    state = paths.state_dir(state_dir)
    sessions = SessionStore(state)
    note = sessions.find(session_id)
    if note is None:
        raise DefinitionError(
            f"there is no session {session_id[:100]!r} in {state}; an editor shows its sessions, and `cantrip loom list` "
            "the looms that are here"
        )
    workspace = Path(note.cwd)
    if not workspace.is_dir():
        raise DefinitionError(f"the session's folder is not there any more: {workspace}")
    name = recipe or note.recipe or note.started
    found = load(name, workspace, state_dir=state) if name is not None else built_in(DEFAULT, state_dir=state)
    if recipe is None or not is_path(recipe):
        trust.require(found, workspace, state)
    crystal = None
    if recipe is None and (note.crystal is not None or note.effort is not None):
        try:
            crystal = choices.chosen(found, note.crystal, note.effort)
        except MissingKey:
            raise
        except DefinitionError as problem:
            click.echo(f"the session's crystal is gone, the recipe's own has its place: {problem}", err=True)
    made = build.build(found, workspace=workspace, crystal=crystal)
    asker: Interceptor = hosts
    if ask:
        from cantrip_acp.cli.session.ask import permissions

        asker = permissions(hosts, note.mode)
        asker.granted.extend(note.granted)
    cantrip = made.reaching([Path(folder) for folder in note.directories], asker)
    held = -1
    try:
        store = cantrip.loom_settings.get("store", "jsonl")
        # A session's note contains no password; the session's recipe has it.
        where = store if is_address(store) and shown(store) == note.loom else note.loom
        if is_address(where):
            # Such a loom allows many writers, but this session allows only one.
            held = sessions.lock(session_id)
            sessions.touch(session_id)
        loom = Loom.open(where, fsync=bool(cantrip.loom_settings.get("fsync", False)))
    except LoomLocked:
        raise LoomLocked(
            f"session {session_id} is open in another process, such as an editor; close it there first"
        ) from None
    begun = loom.last_turn(note.entity_id) is not None
    again = reopen(cantrip, loom, note.entity_id, at=None if begun else note.from_turn)
    hold(again.entity, note.mode)
    hosts.hear_thread(loom, again.entity.last_turn)
    if again.kept in TOLD:
        # The first cell says this too, but the user needs to read it now.
        click.echo(f"opened again: {TOLD[again.kept]}", err=True)
    return Opening(found, cantrip, loom, workspace, state, held), again.entity
