"""The agent of `cantrip repl`: it runs in this process, and opens sessions as the command line says. A session is in the lists
of sessions from its first turn on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
from msgspec.structs import replace as changed

from cantrip_acp.acp.sessions.factory import OpenedSession, Recipes, SessionFactory
from cantrip_acp.acp.sessions.options.modes import TRUSTED
from cantrip_acp.acp.sessions.session_store import Grant, SessionMetadata, SessionStore, metadata_from_loom
from cantrip_acp.cli.session.setup import ContextFiles
from cantrip_acp.loom.stores.address import is_address
from cantrip_acp.types.errors import CantripError, DefinitionError, LoomLocked
from cantrip_acp.types.records import new_id

if TYPE_CHECKING:
    from cantrip_acp.acp.permissions.interceptor import Permissions
    from cantrip_acp.acp.sessions.session_store import ClientPrompt, ForkedFrom
    from cantrip_acp.acp.wire.connection import ByteReceiver
    from cantrip_acp.acp.wire.send_queue import ByteSender
    from cantrip_acp.cli.session.setup import BuiltRecipe
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.crystals.contract import Crystal
    from cantrip_acp.gates.contract import GateSource, Interceptor
    from cantrip_acp.gates.web.named_hosts import NamedHosts
    from cantrip_acp.loom.query.history import CastPart
    from cantrip_acp.recipes.recipe import Recipe


class OwnAgent(SessionFactory):
    """Opens the sessions of one command. ``asks``: whether the user can be asked for permissions."""

    def __init__(self, named: str | None, state_dir: Path, hosts: NamedHosts, *, asks: bool) -> None:
        super().__init__(Recipes(named, state_dir), SessionStore(state_dir))
        self.state_dir = state_dir
        self.opened: OpenedSession | None = None
        """The session that was opened last."""
        self.problem: CantripError | None = None
        """Why the last session could not be opened."""
        self.earlier: Sequence[CastPart] = ()
        """The earlier casts of a session that is continued."""
        self.finds_servers = asks
        self._hosts, self._asks = hosts, asks
        self._given = ContextFiles()
        """The context that the entity reads before the first intent."""
        self._loom_file: str | None = None
        self._allowed_hosts: list[Grant] = []

    async def serve(self, receive: ByteReceiver, send: ByteSender) -> None:
        """Serve ACP on two streams (`acp.client.in_process`)."""
        from cantrip_acp.acp.server import Server
        from cantrip_acp.acp.wire.connection import Connection

        agent = Server(self)
        await agent.serve(Connection(receive, send, agent.methods(), masked=True))

    def make_crystal(self, recipe: Recipe, value: str | None, effort: str | None) -> Crystal:
        if value is None or effort is not None:
            return super().make_crystal(recipe, value, effort)
        from cantrip_acp.recipes.build.crystal_choices import crystal_for_run

        # Any model, as on the command line.
        return crystal_for_run(recipe, value, "/model")[0]

    def save_metadata(self, opened: OpenedSession) -> None:
        """Save a session that can be continued: not one without a turn, and not the hosts of ``--allow-host``."""
        metadata, where = opened.metadata, opened.entity.loom.location
        if where is None or opened.released or not (opened.entity.last_turn or self.store.has(metadata.id)):
            return
        kept = [each for each in metadata.granted if each not in self._allowed_hosts]
        self.store.save(changed(metadata, loom=where if is_address(where) else os.path.abspath(where), granted=kept))

    def _interceptor(self, permissions: Interceptor) -> Interceptor:
        """The interceptor that decides about calls. If nobody can be asked, everything that the recipe allows is allowed,
        except requests to hosts that nobody named."""
        cast("Permissions", permissions).hosts = self._hosts
        return permissions if self._asks else self._hosts

    def _definition(self, cwd: Path) -> tuple[Cantrip, Recipe | None]:
        """The definition of a new session."""
        cantrip, recipe = self.recipes.cantrip(cwd)
        return self.with_cache(cantrip), recipe

    def _next(self, cantrip: Cantrip) -> tuple[Cantrip, str, str, list[Grant]]:
        """Take the cantrip, the chosen model, the mode and the "always" answers of the previous session for the next new one."""
        assert self.opened is not None, "the first session is as the command line says"
        before = self.opened.metadata
        cantrip = cantrip.replace(crystal=self.opened.entity.crystal)
        return cantrip, before.crystal or "", before.mode, list(before.granted)

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
        """Begin a session as `_next` says, in a loom of its own unless the user named one."""
        from cantrip_acp.cli.session.setup import record_model
        from cantrip_acp.recipes.build.build import looms_folder, open_loom

        with self._noting_problems():
            base, recipe = self._definition(cwd)
            cantrip = base.for_session(directories, self._interceptor(interceptor))
            cantrip, model, mode, granted = self._next(cantrip)
            if self._loom_file is not None:
                loom, lock = open_loom(cantrip.loom_settings, self._loom_file, self.state_dir), -1
            else:
                if cantrip.loom_settings.get("store", "jsonl") == "jsonl":
                    looms_folder(self.state_dir)
                loom, lock = self._open_loom(cantrip, session_id)
            entity = cantrip.invoke(loom=loom)
            if model:
                record_model(entity, model)
        opened = self.begin(entity, recipe, mode, id=session_id, cwd=str(cwd), crystal=model or None, granted=granted)
        opened.lock, opened.context = lock, self._given.blocks if self.opened is None else ()
        self.opened = opened
        return opened

    @contextmanager
    def _noting_problems(self) -> Iterator[None]:
        self.problem = None
        try:
            yield
        except CantripError as problem:
            self.problem = problem
            raise


class NewSessions(OwnAgent):
    """Begins sessions of one recipe in one folder. The first one gets the options of the command line."""

    def __init__(
        self,
        opening: BuiltRecipe,
        given: ContextFiles,
        hosts: NamedHosts,
        *,
        asks: bool,
        mode: str,
        loom_file: str | None = None,
    ) -> None:
        recipe = opening.recipe
        named = str(recipe.file) if recipe.file is not None else recipe.name
        super().__init__(named, opening.state_dir, hosts, asks=asks)
        self._opening, self._given, self._mode, self._loom_file = opening, given, mode, loom_file

    def _definition(self, cwd: Path) -> tuple[Cantrip, Recipe | None]:
        return self._given.to(self._opening.cantrip), self._opening.recipe

    def _next(self, cantrip: Cantrip) -> tuple[Cantrip, str, str, list[Grant]]:
        if self.opened is not None:
            return super()._next(cantrip)
        self._allowed_hosts = [Grant("fetch", pattern, True) for pattern in sorted(self._hosts.patterns)]
        return cantrip, self._opening.model, self._mode, list(self._allowed_hosts)


class EarlierSession(OwnAgent):
    """Continues a session of an editor or a terminal, or a cast (`find_session`). ``recipe`` and ``model`` replace those of
    the session."""

    def __init__(
        self,
        session_id: str,
        recipe: str | None,
        state_dir: Path,
        folder: Path,
        hosts: NamedHosts,
        *,
        asks: bool,
        given: ContextFiles,
        model: str | None = None,
    ) -> None:
        from cantrip_acp.cli.session.setup import model_for_run

        found = find_session(session_id, state_dir, folder)
        if not Path(found.cwd).is_dir():
            raise DefinitionError(f"the session's folder does not exist any more: {found.cwd}")
        super().__init__(recipe or found.recipe or found.started, state_dir, hosts, asks=asks)
        self.metadata, self._given = found, given
        self._other_recipe, self._model = recipe is not None, ""
        if model is not None:

            def crystal_of(recipe: Recipe) -> Crystal:
                crystal, self._model = model_for_run(recipe, model)
                assert crystal is not None, "a model was named"
                return crystal

            self.recipes.crystal_of = crystal_of

    def load(
        self,
        metadata: SessionMetadata,
        cwd: Path,
        directories: Sequence[Path],
        interceptor: Interceptor,
        sources: Sequence[GateSource] = (),
    ) -> OpenedSession:
        from cantrip_acp.core.forking.resume import STATE_NOTES

        own = (metadata.recipe, metadata.crystal, metadata.effort)
        if self._other_recipe or self.recipes.crystal_of is not None:
            metadata.crystal = metadata.effort = None
        # The agent was started with it, or it was named in its place.
        metadata.recipe = None
        with self._noting_problems():
            try:
                opened = super().load(metadata, cwd, directories, self._interceptor(interceptor), sources)
            except LoomLocked:
                raise LoomLocked(
                    f"session {metadata.id} is open in another process, such as an editor; close it there first"
                ) from None
        if opened.restored.dropped_choice:
            metadata.recipe = own[0]
        else:
            metadata.recipe, metadata.crystal, metadata.effort = own
        self._hosts.add_from_thread(opened.entity.loom, opened.entity.last_turn or None)
        if self._model:
            from cantrip_acp.cli.session.setup import record_model

            record_model(opened.entity, self._model)
        if opened.restored.definition_changes:
            changes = ", ".join(opened.restored.definition_changes)
            click.echo(
                f"the definition of this session has changed since its last answer ({changes}): it goes on as a fork of that "
                "answer",
                err=True,
            )
            opened.restored.definition_changes = ()
        if opened.restored.state in STATE_NOTES and opened.restored.state != "lost":
            # The output of the first cell says this too, but the user should know it now.
            click.echo(f"opened again: {STATE_NOTES[opened.restored.state]}", err=True)
        opened.context = self._given.blocks
        self.opened = opened
        self.earlier = list(opened.history or ())
        return opened


def find_session(wanted: str, state_dir: Path, folder: Path) -> SessionMetadata:
    """The session that a user names: by its id, by an id or the name of a loom that `cantrip loom list` shows, by the beginning of
    one of these, or as ``last``, the newest one of the folder. A cast that belongs to no session becomes one.

    Raises `DefinitionError` with the nearest ids.
    """
    from cantrip_acp.loom.find_loom import ENDING, list_looms, open_readonly

    store = SessionStore(state_dir)
    if (found := store.find(wanted)) is not None:
        return found
    page, cursor = store.list(None, None, open_ids=frozenset())
    sessions = [each.metadata for each in page]
    while cursor is not None:
        page, cursor = store.list(None, cursor, open_ids=frozenset())
        sessions += [each.metadata for each in page]
    if wanted == "last":
        here = [each for each in sessions if os.path.realpath(each.cwd) == os.path.realpath(folder)]
        if not here:
            raise DefinitionError(f"there is no session of {folder} yet; `cantrip loom list` shows all casts")
        return here[0]
    looms: dict[str, str] = {each.id: "" for each in sessions}
    """The place of the loom by each id; empty for a session."""
    for path in list_looms(state_dir):
        with suppress(CantripError), open_readonly(path) as loom:
            looms |= {leaf: str(path) for leaf in loom.leaves()}
            looms.setdefault(path.name.removesuffix(ENDING), str(path))
    near = [wanted] if wanted in looms else [each for each in looms if wanted and each.startswith(wanted)]
    if len(near) != 1:
        shown = near[:5] or get_close_matches(wanted, looms, n=3, cutoff=0.4) or list(looms)[:3]
        what = f"{len(near)} ids begin with" if near else "there is no session or thread"
        nearest = f"; the nearest: {', '.join(shown)}" if shown else ""
        raise DefinitionError(f"{what} {wanted[:100]!r} in {state_dir}{nearest}; `cantrip loom list` shows all")
    if not (where := looms[near[0]]):
        return next(each for each in sessions if each.id == near[0])
    with open_readonly(Path(where)) as loom:
        leaf = near[0] if near[0] in loom else loom.leaves()[-1]
        entity = loom.places[leaf].entity_id
        for each in sessions:
            own = os.path.join(store.folder, f"{each.id}{ENDING}")
            if where in (each.loom, own) and each.entity_id == entity and loom.last_turn(entity) == leaf:
                return each
        metadata = metadata_from_loom(new_id("sess"), loom)
        assert metadata is not None, "it has a turn"
        if loom.last_turn(entity) == leaf:
            metadata.entity_id, metadata.from_turn = entity, None
        else:
            metadata.entity_id, metadata.from_turn = new_id("e"), leaf
        metadata.mode = TRUSTED
    store.save(metadata)
    return metadata
