"""Session factory: makes the entity of a new session, of a session from disk, or of a fork, from a recipe.

It reads files, so its methods run in a thread. It also makes gate sources from the MCP servers that a client names
(`mcp_sources`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, to_builtins
from msgspec.structs import replace

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.errors import SignedOut
from cantrip_acp.acp.permissions.patterns import grants_for_other_folder
from cantrip_acp.acp.sessions.options import modes
from cantrip_acp.acp.sessions.session_store import (
    FORK,
    ClientPrompt,
    ForkedFrom,
    Grant,
    NoSession,
    SessionMetadata,
    SessionStore,
    fork_point,
)
from cantrip_acp.acp.wire.jsonrpc import invalid_params
from cantrip_acp.gates.contract import GateSource
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.query.copied_path import records_on_path
from cantrip_acp.loom.stores.address import display_address, is_address
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import DefinitionError, LoomError, MissingKey, UntrustedRecipe
from cantrip_acp.types.records import ConfigRecord, ForkRecord, new_id, now

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.core.forking.resume import KeptState, ResumedEntity
    from cantrip_acp.crystals.contract import Crystal
    from cantrip_acp.gates.contract import Interceptor
    from cantrip_acp.gates.mcp.declaration import McpServer
    from cantrip_acp.loom.query.history import CastPart
    from cantrip_acp.recipes.recipe import Recipe
    from cantrip_acp.types.context_block import ContextBlock


log = logger(__name__)

CantripFactory = Callable[[Path], "Cantrip"]
"""Makes the cantrip of a session for its folder. Runs in a thread. Raises `MissingKey` if no crystal is available."""


class Restored(Struct):
    """What a session has of the time before it was opened.

    - ``turns``: the number of its turns.
    - ``state``: how the variables of the code medium were restored.
    - ``dropped_choice``: the problem if the chosen crystal or effort is no longer available, else empty.
    - ``definition_changes``: how the definition differs from that of the last answer (`definition_changes`).
    """

    turns: int = 0
    state: KeptState = "none"
    dropped_choice: str = ""
    definition_changes: Sequence[str] = ()


class OpenedSession(Struct):
    """An opened session: its entity, metadata, recipe and lock.

    - ``exports``: the folder for exports of the session.
    - ``lock``: a file descriptor that locks a session in a shared loom, or -1.
    - ``mode_reason``: why a new session does not have the usual mode, else empty.
    - ``context``: what the entity reads before the first intent.
    - ``history``: the entity's history as read from disk. None after it was sent, or if it is out of date.
    """

    metadata: SessionMetadata
    entity: Entity
    recipe: Recipe | None
    exports: Path
    restored: Restored
    lock: int = -1
    mode_reason: str = ""
    released: bool = False
    history: list[CastPart] | None = None
    context: Sequence[ContextBlock] = ()

    def release(self) -> None:
        """Close the loom and the lock, but not the entity's medium (`Entity.close` does that)."""
        self.released = True
        self.entity.loom.close()
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


class Recipes:
    """Makes cantrips from a recipe named at the start, from a recipe chosen later, or by a function of an embedding program.

    A recipe that the start command names by a path is trusted, because the person who started the agent chose it. A
    recipe found by its name may need the user's trust.
    """

    def __init__(self, named: str | None, state_dir: Path, factory: CantripFactory | None = None) -> None:
        from cantrip_acp.recipes.build import crystal_choices

        self._by_path = named is not None and crystal_choices.is_file(named)
        # A path is relative to the folder in which the agent was started, not to a session's folder.
        self.named = os.path.abspath(os.path.expanduser(named)) if named is not None and self._by_path else named
        self._state_dir = state_dir
        self._factory = factory
        self.crystal_of: Callable[[Recipe], Crystal] | None = None
        """Makes the crystal that takes the place of a recipe's own, if the user named one at the start."""
        self.signed_out = False
        """Whether the user has signed out. Then crystals that need a key are not available."""

    def cantrip(
        self, workspace: Path, name: str | None = None, crystal: str | None = None, effort: str | None = None
    ) -> tuple[Cantrip, Recipe | None]:
        """Make a cantrip for a folder from the recipe ``name``, or from the agent's default recipe if it is None.

        Raises `UntrustedRecipe`, `MissingKey` or `DefinitionError`.
        """
        cantrip, recipe = self._build(workspace, name, crystal, effort)
        self.require_signed_in(cantrip.crystal)
        return cantrip, recipe

    def require_signed_in(self, crystal: Crystal) -> None:
        """Raise `SignedOut` if the crystal needs a key and the user has signed out."""
        if not self.signed_out:
            return
        from cantrip_acp.recipes.build.crystal_factory import KEYS, routes

        if crystal.name in KEYS and routes().get(crystal.name) is None:
            raise SignedOut("you have signed out; choose a way to sign in again")

    def _build(
        self, workspace: Path, name: str | None, crystal: str | None, effort: str | None
    ) -> tuple[Cantrip, Recipe | None]:
        if self._factory is not None:
            return self._factory(workspace), None
        from cantrip_acp.recipes import DEFAULT, trust
        from cantrip_acp.recipes import recipe as recipes
        from cantrip_acp.recipes.build import build, crystal_choices

        chosen = name if name is not None else self.named
        if chosen is None:
            found = recipes.built_in(DEFAULT, state_dir=self._state_dir)
        else:
            found = recipes.load(chosen, workspace, state_dir=self._state_dir)
            if chosen != self.named or not self._by_path:
                trust.require(found, workspace, self._state_dir)
        other = None
        if crystal is not None or effort is not None:
            other = crystal_choices.make_chosen_crystal(found, crystal, effort)
        elif self.crystal_of is not None:
            other = self.crystal_of(found)
        return build.build(found, workspace=workspace, crystal=other), found

    @property
    def default_name(self) -> str:
        """The name of the default recipe, as a value of the option `recipe`."""
        from cantrip_acp.recipes import DEFAULT

        return self.named or DEFAULT

    def names(self, workspace: Path) -> Iterator[tuple[str, str]]:
        """The recipes that can be chosen in a folder, with the default recipe: pairs of name and origin."""
        if self._factory is not None:
            return
        from cantrip_acp.recipes import recipe as recipes

        known = recipes.names(workspace)
        if self.default_name not in known:
            yield self.default_name, "named when the agent was started"
        for name, (source, _) in known.items():
            yield name, {"workspace": "in this folder's .cantrip", "user": "your own"}.get(source, "built in")


class SessionFactory:
    """Opens sessions of one agent."""

    def __init__(self, recipes: Recipes, store: SessionStore) -> None:
        self.recipes = recipes
        self.store = store
        self.asks_user = False
        """Whether the client can show questions of MCP servers (`gates.mcp.declaration.ServerQuestion`)."""
        self.finds_servers = True
        """Whether each session looks for model servers on this machine when it is opened."""

    def new(
        self,
        session_id: str,
        cwd: Path,
        directories: Sequence[Path],
        interceptor: Interceptor,
        sources: Sequence[GateSource] = (),
        system_prompt: ClientPrompt | None = None,
        forked_from: ForkedFrom | None = None,
    ) -> OpenedSession:
        """Open a new, empty session. ``forked_from`` is for the fork of a session that has no turn."""
        cantrip, recipe = self._cantrip(cwd, directories, interceptor, sources)
        cantrip = with_client_prompt(cantrip, system_prompt)
        loom, lock = self._open_loom(cantrip, session_id)
        entity = cantrip.invoke(loom=loom)
        mode, reason = modes.default_mode(entity)
        opened = self.begin(
            entity,
            recipe,
            mode,
            id=session_id,
            cwd=str(cwd),
            directories=[str(folder) for folder in directories],
            system_prompt=system_prompt,
            forked_from=forked_from,
        )
        opened.lock, opened.mode_reason = lock, reason
        return opened

    def begin(self, entity: Entity, recipe: Recipe | None, mode: str, **metadata: Any) -> OpenedSession:
        """Begin a session with a new entity. ``metadata``: more fields of `SessionMetadata`."""
        apply_mode(entity, mode, known=mode)
        location, named = entity.loom.location or "", self.recipes.named
        about = SessionMetadata(entity_id=entity.id, loom=location, started=named, mode=mode, **metadata)
        opened = OpenedSession(about, entity, recipe, self.store.exports, Restored())
        self.save_metadata(opened)
        return opened

    def load(
        self,
        metadata: SessionMetadata,
        cwd: Path,
        directories: Sequence[Path],
        interceptor: Interceptor,
        sources: Sequence[GateSource] = (),
    ) -> OpenedSession:
        """Open a session from disk.

        Raises `LoomLocked` if another process has it open, and `NoSession` if another process has deleted it.
        """
        if metadata.cwd != str(cwd):
            metadata.granted = grants_for_other_folder(metadata.granted)
        metadata.cwd, metadata.directories = str(cwd), [str(folder) for folder in directories]
        cantrip, recipe, lost = self._cantrip_with_choices(cwd, directories, interceptor, sources, metadata)
        loom, lock = self._open_loom(cantrip, metadata.id, metadata)
        try:
            if not self.store.has(metadata.id):
                raise NoSession(metadata.id)
            found, edited = reopen(cantrip, loom, metadata)
        except BaseException:
            loom.close()
            if lock >= 0:
                os.close(lock)
            raise
        apply_mode(found.entity, metadata.mode, known=metadata.known_mode or metadata.mode)
        restored = Restored(found.turns, found.kept, lost, edited)
        opened = OpenedSession(metadata, found.entity, recipe, self.store.exports, restored, lock, history=found.parts)
        if lost:
            crystal = found.entity.crystal
            changes = {"crystal": f"{crystal.name}:{crystal.model}", "effort": "default"}
            with suppress(LoomError):
                loom.append(ConfigRecord(new_id("g"), metadata.entity_id, changes, now()))
        self.try_save_metadata(opened)
        return opened

    def fork(
        self,
        session_id: str,
        source: OpenedSession,
        turn_id: str,
        cwd: Path,
        directories: Sequence[Path],
        interceptor: Interceptor,
        sources: Sequence[GateSource] = (),
        resumes: str | None = None,
        system_prompt: ClientPrompt | None = None,
    ) -> OpenedSession:
        """Open a fork: a new session that continues from a turn of another session (LOOM-4). The other does not change.

        ``resumes`` is the id of a cast that the fork continues without a new message. If the loom is a file, the records
        on the path to the turn, and those of its children, are copied into the file of the fork. ``system_prompt`` is the
        client's for the fork; None keeps that of the other session.
        """
        from cantrip_acp.core.forking.resume import resume_entity

        before = source.metadata
        forked_from = ForkedFrom(before.id, fork_point(source.entity.loom, turn_id), now())
        metadata = SessionMetadata(
            id=session_id,
            cwd=str(cwd),
            entity_id=new_id("e"),
            loom="",
            directories=[str(folder) for folder in directories],
            from_turn=turn_id,
            forked_from=forked_from,
            started=before.started,
            title=before.title.removesuffix(FORK) + FORK if before.title else None,
            title_chosen=before.title_chosen,
            reuse_results=before.reuse_results,
            system_prompt=system_prompt or before.system_prompt,
            mode=before.mode,
            known_mode=before.known_mode,
            recipe=before.recipe,
            crystal=before.crystal,
            effort=before.effort,
            granted=list(before.granted) if before.cwd == str(cwd) else grants_for_other_folder(before.granted),
        )
        cantrip, recipe = self._cantrip(cwd, directories, interceptor, sources, metadata)
        loom, lock = self._open_loom(cantrip, session_id)
        try:
            if loom.location is None or loom.location != source.entity.loom.location:
                for record in records_on_path(source.entity.loom, turn_id, resumes):
                    loom.append(record)
            metadata.loom = loom.location or ""
            found = resume_entity(cantrip, loom, metadata.entity_id, at=turn_id)
            loom.append(
                ForkRecord(
                    new_id("k"),
                    turn_id,
                    metadata.entity_id,
                    found.kept,
                    (),
                    now(),
                    resumes=resumes or UNSET,
                )
            )
            changes = {"fork_of": before.id, "from_turn": turn_id, **chosen_options(metadata)}
            loom.append(ConfigRecord(new_id("g"), metadata.entity_id, changes, forked_from.at))
            for granted in metadata.granted:
                loom.append(
                    ConfigRecord(new_id("g"), metadata.entity_id, {"permission": permission_change(granted)}, now())
                )
        except BaseException:
            loom.close()
            if lock >= 0:
                os.close(lock)
            raise
        apply_mode(found.entity, metadata.mode, known=metadata.known_mode or metadata.mode)
        opened = OpenedSession(
            metadata, found.entity, recipe, self.store.exports, Restored(found.turns, found.kept), lock
        )
        self.save_metadata(opened)
        return opened

    def make_crystal(self, recipe: Recipe, value: str | None, effort: str | None) -> Crystal:
        """Make the crystal that the user chose in a session. Raises `DefinitionError` and `MissingKey`."""
        from cantrip_acp.recipes.build.crystal_choices import make_chosen_crystal

        return make_chosen_crystal(recipe, value, effort)

    def save_metadata(self, opened: OpenedSession) -> None:
        """Save a session's metadata if its loom is on disk."""
        if opened.entity.loom.location is not None and not opened.released:
            self.store.save(opened.metadata)

    def try_save_metadata(self, opened: OpenedSession) -> None:
        """Save a session's metadata. A failure, for example a full disk, is only logged: the loom has the same facts."""
        try:
            self.save_metadata(opened)
        except OSError as problem:
            log.warning("the metadata of session %s could not be written: %s", opened.metadata.id, problem)

    def _cantrip_with_choices(
        self,
        cwd: Path,
        directories: Sequence[Path],
        interceptor: Interceptor,
        sources: Sequence[GateSource],
        metadata: SessionMetadata,
    ) -> tuple[Cantrip, Recipe | None, str]:
        """Make a session's cantrip with its chosen options. Returns the cantrip, the recipe and the problem, if any.

        If the chosen crystal or effort is no longer available, the recipe's own crystal is used. A missing recipe raises
        DefinitionError, because with another recipe it would be another entity.
        """
        try:
            return (*self._cantrip(cwd, directories, interceptor, sources, metadata), "")
        except (MissingKey, UntrustedRecipe):
            raise
        except DefinitionError as problem:
            why = problem
        if metadata.crystal is not None or metadata.effort is not None:
            own = replace(metadata, crystal=None, effort=None)
            with suppress(DefinitionError):
                found = self._cantrip(cwd, directories, interceptor, sources, own)
                metadata.crystal = metadata.effort = None
                return (*found, str(why))
        if metadata.recipe is None:
            raise why
        raise DefinitionError(
            f"it was switched to the recipe {metadata.recipe!r}, and {why}. Restore that recipe, or continue with another "
            f"recipe in a terminal: cantrip repl RECIPE --session {metadata.id}"
        ) from None

    def _cantrip(
        self,
        cwd: Path,
        directories: Sequence[Path],
        interceptor: Interceptor,
        sources: Sequence[GateSource],
        metadata: SessionMetadata | None = None,
    ) -> tuple[Cantrip, Recipe | None]:
        chosen = (metadata.recipe, metadata.crystal, metadata.effort) if metadata is not None else (None, None, None)
        cantrip, recipe = self.recipes.cantrip(cwd, *chosen)
        made = self.with_cache(cantrip.for_session(directories, interceptor), metadata)
        made = with_client_prompt(made, metadata.system_prompt if metadata is not None else None)
        if sources or (self.asks_user and made.sources):
            made = made.replace(sources=tuple(map(self._asking, (*made.sources, *sources))))
        return made, recipe

    def _asking(self, source: GateSource) -> GateSource:
        """The source with MCP servers that can ask the user, if the client can show questions."""
        if not self.asks_user:
            return source
        from cantrip_acp.gates.mcp.servers import McpServers

        if not isinstance(source, McpServers):
            return source
        asking = (dataclasses.replace(server, asks_user=True) for server in source.servers)
        return McpServers(asking, client_told=source.client_told)

    def with_cache(self, cantrip: Cantrip, metadata: SessionMetadata | None = None) -> Cantrip:
        """The cantrip with gates that reuse results, as long as the session's boolean option is on."""
        from cantrip_acp.tuplespace.reuse.gate_results import with_gate_cache

        enabled = metadata is None or metadata.reuse_results
        return with_gate_cache(cantrip, self.store.folder.parent, enabled=enabled)

    def _open_loom(
        self, cantrip: Cantrip, session_id: str, metadata: SessionMetadata | None = None
    ) -> tuple[Loom, int]:
        """Open the loom of a session. Returns it and a lock, which is -1 if the loom file itself allows only one writer."""
        store: Any = cantrip.loom_settings.get("store", "jsonl")
        fsync = bool(cantrip.loom_settings.get("fsync", False))
        if metadata is not None and metadata.loom:
            # The metadata holds no password. The session's recipe has it.
            store = store if is_address(store) and display_address(store) == metadata.loom else metadata.loom
        elif store == "memory":
            return Loom.memory(), -1
        if not is_address(store):
            path = self.store.loom_path(session_id)
            if metadata is not None and metadata.loom and not path.exists() and os.path.isfile(metadata.loom):
                # It began in a terminal, with a loom of another name.
                path = Path(metadata.loom)
            return Loom.open(path, fsync=fsync), -1
        lock = self.store.lock(session_id)
        try:
            return Loom.open(store, fsync=fsync), lock
        except BaseException:
            os.close(lock)
            raise


def with_client_prompt(cantrip: Cantrip, prompt: ClientPrompt | None) -> Cantrip:
    """The cantrip with the client's part in its call, before an entity is made of it (CALL-1)."""
    if prompt is None:
        return cantrip
    own = cantrip.call.system_prompt
    text = f"{own}\n\n{prompt.text}" if own and prompt.mode == "append" else prompt.text
    return cantrip.replace(call=cantrip.call.replace(system_prompt=text))


def reopen(cantrip: Cantrip, loom: Loom, metadata: SessionMetadata) -> tuple[ResumedEntity, list[str]]:
    """The entity of a session from disk, and how its definition differs from that of its last answer.

    Another definition is another entity (CALL-1), so the session then goes on as a fork of that answer. ``metadata`` is
    changed, and the caller saves it.
    """
    from cantrip_acp.core.forking.resume import resume_entity
    from cantrip_acp.core.history.continuation import unfinished_cast
    from cantrip_acp.core.history.definition_changes import definition_changes
    from cantrip_acp.loom.recovery import complete_interrupted

    complete_interrupted(loom)
    last = loom.last_turn(metadata.entity_id)
    written = last or metadata.from_turn
    edited = definition_changes(loom, written, cantrip) if written is not None and written in loom else []
    if last is None or not edited:
        at = None if last is not None else metadata.from_turn
        return resume_entity(cantrip, loom, metadata.entity_id, at=at), edited
    resumes = unfinished_cast(loom, metadata.entity_id)
    metadata.entity_id, metadata.from_turn = new_id("e"), last
    found = resume_entity(cantrip, loom, metadata.entity_id, at=last)
    loom.append(ForkRecord(new_id("k"), last, metadata.entity_id, found.kept, (), now(), resumes=resumes or UNSET))
    change = {"definition": edited, "from_turn": last}
    loom.append(ConfigRecord(new_id("g"), metadata.entity_id, change, now()))
    return found, edited


def apply_mode(entity: Entity, mode: str, *, known: str | None = None) -> None:
    """Apply the wards of a mode to an entity, and tell it so with its next query. ``known``: the mode of which it need not be
    told, because it began in it."""
    from cantrip_acp.acp.sessions.options.plan_mode import mode_note

    for each in dict.fromkeys((known or mode, mode)):
        note, for_children = mode_note(each)
        entity.set_wards(
            lambda circle, each=each: modes.wards_of(each, circle),  # type: ignore[misc]
            note,
            for_children=for_children,
            known=each == known,
        )


def chosen_options(metadata: SessionMetadata) -> dict[str, Any]:
    """The chosen options of a session, as changes for a ``config`` record."""
    found = {"mode": metadata.mode, "recipe": metadata.recipe, "crystal": metadata.crystal, "effort": metadata.effort}
    found["known_mode"] = metadata.known_mode
    changes: dict[str, Any] = {
        name: value for name, value in found.items() if value is not None and (name, value) != ("mode", modes.FALLBACK)
    }
    if metadata.system_prompt is not None:
        changes["system_prompt"] = to_builtins(metadata.system_prompt)
    return changes


def permission_change(granted: Grant) -> dict[str, Any]:
    """A remembered permission, as a change for a ``config`` record."""
    return {"tool": granted.tool, "pattern": granted.pattern, "allowed": granted.allowed}


# --- MCP servers that a client names for a session (ACP, Session Setup)
#
# A server program runs in the sandbox, unless the user trusts this exact command (``cantrip trust --mcp``). A server over
# HTTP needs no such trust, because the user's own client named it.


def mcp_sources(named: Sequence[acp.McpServer] | None, state_dir: Path, told: set[str]) -> list[GateSource]:
    """Make gate sources for these MCP servers. Reads a file, so it runs in a thread.

    Raises `RpcError` -32602 with the place of a server that cannot be used, and `DefinitionError` if the trust file cannot
    be read.
    """
    if not named:
        return []
    from cantrip_acp.gates.mcp.servers import McpServers

    return [McpServers([_mcp_server(server, place, state_dir) for place, server in enumerate(named)], client_told=told)]


def _mcp_server(server: acp.McpServer, place: int, state_dir: Path) -> McpServer:
    from cantrip_acp.gates.mcp.declaration import McpServer
    from cantrip_acp.recipes.trust import Ledger

    try:
        if server.type in ("http", "sse"):
            headers = {pair.name: pair.value for pair in server.headers or ()}
            return McpServer(
                name=server.name,
                transport="http" if server.type == "http" else "sse",
                url=server.url or "",
                headers=headers,
            )
        if server.type != "stdio":
            raise invalid_params(f"must be stdio, http or sse, not {server.type[:40]!r}", f"mcpServers[{place}].type")
        argv = (server.command or "", *(server.args or ()))
        trusted = Ledger(state_dir).trusts_command(argv)
        env = {pair.name: pair.value for pair in server.env or ()}
        return McpServer(name=server.name, command=argv[0], args=argv[1:], env=env, sandboxed=not trusted)
    except DefinitionError as error:
        if error.where:
            raise
        raise invalid_params(str(error), f"mcpServers[{place}]") from None
