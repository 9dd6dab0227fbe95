"""Session config options: lists and sets the options mode, model, effort and recipe (ACP, Session Config Options).

A mode applies at once. A model or an effort applies from the next prompt on. Another recipe makes a fork: in the same
session, a new entity continues from the last turn. Every change is stored as a ``config`` record in the loom.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.errors import auth_required
from cantrip_acp.acp.permissions.request import choose
from cantrip_acp.acp.sessions.factory import SessionFactory, apply_mode, with_client_prompt
from cantrip_acp.acp.sessions.options import modes
from cantrip_acp.acp.sessions.session_store import title_record
from cantrip_acp.acp.wire.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, RpcError, invalid_params
from cantrip_acp.crystals.contract import CrystalBase, takes
from cantrip_acp.text.defaults import complete
from cantrip_acp.types.context_block import ContextBlock
from cantrip_acp.types.errors import CantripError, LoomError, MissingKey, UntrustedRecipe
from cantrip_acp.types.records import ConfigRecord, ForkRecord, new_id, now

if TYPE_CHECKING:
    from pathlib import Path

    from cantrip_acp.acp.sessions.session_interface import OpenSession
    from cantrip_acp.acp.wire.connection import Connection
    from cantrip_acp.crystals.contract import Crystal
    from cantrip_acp.recipes.build.crystal_choices import Choice
    from cantrip_acp.tuplespace.reuse.gate_results import SwitchableCache


MODE, MODEL, EFFORT, RECIPE, REUSE = "mode", "model", "effort", "recipe", "reuse_results"
DEFAULT_EFFORT = "default"


class SessionOptions:
    """The config options of one session."""

    def __init__(self, session: OpenSession, factory: SessionFactory) -> None:
        self._session = session
        self._factory = factory
        self._next_crystal: Crystal | None = None
        """The crystal that was chosen for the next prompt."""
        self._next_recipe = ""
        """The recipe that was chosen for the next prompt, or ""."""
        self._served: list[Choice] = []
        """The models that the server of the session's crystal lists."""

    def _crystal(self) -> Crystal:
        """The crystal that the next prompt will use."""
        return self._session.entity.crystal if self._next_crystal is None else self._next_crystal

    def listed(self) -> list[acp.AnyOption]:
        """Every option with its current value, including choices for the next prompt."""
        from cantrip_acp.recipes.build import crystal_choices as choosing

        metadata = self._session.metadata
        crystal = self._crystal()
        choices = {c.value: c for c in choosing.list_choices(self._session.opened.recipe, crystal, self._served)}
        chosen = metadata.crystal if metadata.crystal in choices else choosing.value_of(crystal)
        accepted = {
            "images": takes(crystal, "image"),
            "audio": takes(crystal, "audio"),
            "documents": takes(crystal, "document"),
        }
        known = {name: value for name, value in accepted.items() if value is not None}
        found: list[acp.AnyOption] = [
            acp.ConfigOption(
                id=MODE,
                name="Mode",
                current_value=metadata.mode,
                options=[acp.OptionValue(mode.id, mode.name, mode.description) for mode in modes.MODES],
                description="What the agent may change, and when it asks you first",
                category="mode",
            ),
            acp.ConfigOption(
                id=MODEL,
                name="Model",
                current_value=chosen,
                options=[acp.OptionValue(c.value, c.name, c.description) for c in choices.values()],
                description="The model that answers, from the next prompt on",
                category="model",
                meta={"cantrip": known} if known else None,
            ),
        ]
        efforts = choosing.efforts_of(crystal)
        if efforts:
            found.append(
                acp.ConfigOption(
                    id=EFFORT,
                    name="Effort",
                    current_value=metadata.effort or DEFAULT_EFFORT,
                    options=[acp.OptionValue(e, e.capitalize()) for e in (DEFAULT_EFFORT, *efforts)],
                    description="How much the model thinks, from the next prompt on",
                    category="thought_level",
                )
            )
        names = dict(self._factory.recipes.names(_folder(self._session)))
        current = self._next_recipe or metadata.recipe or self._factory.recipes.default_name
        if names:
            names.setdefault(current, "")
            found.append(
                acp.ConfigOption(
                    id=RECIPE,
                    name="Recipe",
                    current_value=current,
                    options=[acp.OptionValue(name, _short(name), about or None) for name, about in names.items()],
                    description="The agent's instructions and tools. Another recipe continues this session as a fork",
                    category="_recipe",
                )
            )
        if self._session.client.boolean_options and _cache_of(self._session) is not None:
            found.append(
                acp.BooleanOption(
                    id=REUSE,
                    name="Reuse results",
                    current_value=metadata.reuse_results,
                    description="A tool that declares its inputs, such as run_tests, does not run again if nothing changed",
                    category="_recipe",
                )
            )
        return found

    def models(self) -> acp.ModelState | None:
        """The models for the unstable field `models`, which is for clients that do not read the options."""
        option = next((each for each in self.listed() if each.id == MODEL), None)
        if not isinstance(option, acp.ConfigOption):
            return None
        offered = [acp.Model(each.value, each.name, each.description) for each in option.options]
        return acp.ModelState(offered, option.current_value)

    async def set(self, option: str, value: Any) -> None:
        """Set an option. Raises `RpcError` -32602 for an unknown option or value."""
        if option == REUSE and self._session.client.boolean_options:
            self._set_reuse(value)
            return
        if not isinstance(value, str):
            raise invalid_params("must be the id of one of the option's values", "value")
        try:
            match option:
                case "mode":
                    self.set_mode(value)
                    self._session.mode_chosen = True
                    self._session.send_now(acp.CurrentMode(value))
                case "model" | "effort":
                    await self._set_crystal(option, value)
                case "recipe":
                    await self._set_recipe(value)
                case _:
                    raise invalid_params(
                        f"unknown option {option[:100]!r}; known: mode, model, effort, recipe", "configId"
                    )
        except LoomError as problem:
            raise _not_saved(problem) from None
        except MissingKey as missing:
            raise auth_required(missing) from None
        except CantripError as problem:
            raise invalid_params(str(problem), "value") from None

    def set_mode(self, mode: str) -> None:
        """Set the mode at once, also for a running prompt. The entity is told with its next query.

        Raises `RpcError` for an unknown mode, and if the change cannot be recorded. A stricter mode applies even then.
        """
        if mode not in modes.NAMES:
            raise invalid_params(f"unknown mode {mode[:100]!r}; known: {', '.join(modes.NAMES)}", "modeId")
        if mode == self._session.metadata.mode:
            return
        unwritten: LoomError | None = None
        began = {} if self._session.metadata.known_mode is not None else {"known_mode": self._session.metadata.mode}
        try:
            self._append({MODE: mode, **began})
        except LoomError as problem:
            if not modes.tightens(self._session.metadata.mode, mode):
                raise _not_saved(problem) from None
            unwritten = problem
        self._session.metadata.known_mode = self._session.metadata.known_mode or self._session.metadata.mode
        self._session.metadata.mode = self._session.permissions.mode = mode
        apply_mode(self._session.entity, mode)
        self._session.permissions.settle_open_questions()
        self._session.save()
        if unwritten is not None:
            raise _not_saved(unwritten)

    def _set_reuse(self, value: Any) -> None:
        cache = _cache_of(self._session)
        if cache is None:
            raise invalid_params("this agent was started without reuse of results (--no-cache)", "configId")
        if not isinstance(value, bool):
            raise invalid_params("must be true or false", "value")
        if value != self._session.metadata.reuse_results:
            try:
                self._append({REUSE: value})
            except LoomError as problem:
                raise _not_saved(problem) from None
            self._session.metadata.reuse_results = cache.enabled = value
            self._session.save()

    def set_title(self, title: str) -> None:
        """Set a title that the user chose. Raises `LoomError` or OSError if it cannot be recorded."""
        self._session.entity.loom.append(title_record(self._session.entity.id, title))
        self._session.metadata.title, self._session.metadata.title_chosen = title, True
        self._factory.save_metadata(self._session.opened)

    async def _set_crystal(self, option: str, value: str) -> None:
        from cantrip_acp.recipes.build import crystal_choices as choosing

        metadata, recipe = self._session.metadata, self._session.opened.recipe
        current = choosing.value_of(self._crystal())
        crystal, effort = metadata.crystal, metadata.effort
        if option == MODEL:
            if value == (metadata.crystal or current):
                return
            crystal = value
        else:
            known = (DEFAULT_EFFORT, *choosing.efforts_of(self._crystal()))
            if len(known) == 1:
                raise invalid_params(
                    f"{current} has no setting for the effort: Cantrip does not know that this model can think",
                    "configId",
                )
            if value not in known:
                raise invalid_params(
                    f"{current} does not have the effort {value[:100]!r}; known: {', '.join(known)}", "value"
                )
            effort = None if value == DEFAULT_EFFORT else value
        if recipe is None:
            raise invalid_params(
                "the program that embeds this agent sets the crystal; it cannot be changed here", "configId"
            )
        make = self._factory.make_crystal
        new_crystal = await anyio.to_thread.run_sync(make, recipe, crystal, effort if option == EFFORT else None)
        if option == MODEL and effort is not None:
            # Keep the effort for the new model, if that model supports it.
            if effort in choosing.efforts_of(new_crystal):
                new_crystal = await anyio.to_thread.run_sync(make, recipe, crystal, effort)
            else:
                effort = None
        self._factory.recipes.require_signed_in(new_crystal)
        metadata.crystal, metadata.effort = crystal, effort
        self._next_crystal = new_crystal
        self._record_change({"crystal": crystal or current, "effort": effort or DEFAULT_EFFORT})
        if not self._session.prompts.running:
            self._apply_crystal()

    async def renew_crystal(self) -> None:
        """Make the session's crystal again, so that it uses a key that was saved meanwhile. The model stays the same."""
        from cantrip_acp.recipes.build import crystal_choices as choosing
        from cantrip_acp.recipes.parse.names import MODEL_PROVIDERS

        recipe, metadata = self._session.opened.recipe, self._session.metadata
        old = self._crystal()
        if recipe is None or old.name not in MODEL_PROVIDERS:
            return
        try:
            make = choosing.make_chosen_crystal
            new = await anyio.to_thread.run_sync(make, recipe, metadata.crystal, metadata.effort)
        except CantripError:
            # The next prompt reports the error.
            return
        if (new.name, new.model) != (old.name, old.model):
            return
        self._next_crystal = new
        if not self._session.prompts.running:
            self._apply_crystal()

    def _apply_crystal(self) -> None:
        new_crystal, self._next_crystal = self._next_crystal, None
        if new_crystal is None:
            return
        entity = self._session.entity
        old = entity.crystal
        entity.use_crystal(new_crystal)
        if old.name == new_crystal.name == "scripted" and old.model == new_crystal.model:
            complete(new_crystal, CrystalBase).skip(complete(old, CrystalBase).queries)

    async def _set_recipe(self, value: str) -> None:
        if value == (self._next_recipe or self._session.metadata.recipe or self._factory.recipes.default_name):
            return
        offered = [
            name
            for name, _ in await anyio.to_thread.run_sync(list, self._factory.recipes.names(_folder(self._session)))
        ]
        if value not in (*offered, self._factory.recipes.default_name):
            # A path is not accepted, because nobody has checked that file. Start the agent with it instead.
            raise invalid_params(
                f"no recipe {value[:100]!r} is offered here; known: {', '.join(map(_short, offered))}", "value"
            )
        await ask_for_trust(self._factory, self._session.connection, self._session.id, _folder(self._session), value)
        self._next_recipe = value
        if not self._session.prompts.running:
            await self._apply_recipe()

    async def _apply_recipe(self) -> None:
        """Switch the session to an entity of another recipe."""
        from cantrip_acp.core.forking.resume import resume_entity

        value, self._next_recipe = self._next_recipe, ""
        metadata, old = self._session.metadata, self._session.entity
        self._next_crystal = None
        base, recipe = await anyio.to_thread.run_sync(self._factory.recipes.cantrip, _folder(self._session), value)
        cantrip = base.for_session([_path(folder) for folder in metadata.directories], self._session.permissions)
        cantrip = cantrip.replace(sources=(*cantrip.sources, *self._session.sources))
        cantrip = with_client_prompt(self._factory.with_cache(cantrip, metadata), metadata.system_prompt)
        fork_turn = old.last_turn if old.sequence or self._session.opened.restored.turns else None
        found = await anyio.to_thread.run_sync(resume_entity, cantrip, old.loom, new_id("e"), fork_turn)
        apply_mode(found.entity, metadata.mode, known=metadata.known_mode or metadata.mode)
        self._session.use_entity(found.entity, recipe)
        metadata.entity_id, metadata.recipe, metadata.crystal, metadata.effort = found.entity.id, value, None, None
        metadata.from_turn = fork_turn
        if fork_turn is not None:
            old.loom.append(ForkRecord(new_id("k"), fork_turn, found.entity.id, found.kept, (), now()))
        self._record_change({RECIPE: value, "from_turn": fork_turn})
        await old.close()

    async def look_for_local_servers(self) -> None:
        """Search for models of local servers. The client gets an update if there are new ones."""
        from cantrip_acp.crystals.local import discovery

        before = discovery.last_found()
        found = await anyio.to_thread.run_sync(discovery.find_running, abandon_on_cancel=True)
        # If they were known before, the reply that opened the session has them.
        if found != before and not self._session.closing and self._session.opened.recipe is not None:
            self._session.send_now(acp.ConfigOptionsChanged(self.listed()))

    async def look_for_served_models(self) -> None:
        """Ask the server of the session's crystal for its models. The client gets an update if there are new ones.

        This does not run at the start of each session, because the server may be far away or count requests.
        """
        from cantrip_acp.recipes.build import crystal_choices as choosing

        recipe = self._session.opened.recipe
        if recipe is None:
            return
        value = self._session.metadata.crystal or choosing.value_of(self._session.entity.crystal)
        served = await anyio.to_thread.run_sync(choosing.served_choices, recipe, value, abandon_on_cancel=True)
        if served != self._served and not self._session.closing:
            self._served = served
            self._session.send_now(acp.ConfigOptionsChanged(self.listed()))

    async def before_cast(self) -> Sequence[ContextBlock]:
        """Apply the pending options before a cast. Returns context that tells the entity about the changes."""
        if self._next_recipe:
            try:
                await self._apply_recipe()
            finally:
                # Send the options again: another recipe has other models, or the recipe could not be loaded.
                self._session.send_now(acp.ConfigOptionsChanged(self.listed()))
        self._apply_crystal()
        if self._session.metadata.system_prompt is not None and not self._session.entity.last_turn:
            # Not earlier: a session whose loom is empty is not listed.
            self._append({"system_prompt": msgspec.to_builtins(self._session.metadata.system_prompt)})
        text, self._session.notes.entity = self._session.notes.entity, []
        told = [ContextBlock("\n".join(text), "This session", "session")] if text else []
        if self._session.metadata.mode != modes.PLAN or self._session.entity.due_note is not None:
            return told  # the note says it
        from cantrip_acp.acp.sessions.options.plan_mode import INSTRUCTION

        return [*told, INSTRUCTION]

    def _record_change(self, changes: dict[str, Any]) -> None:
        """Record a change in the loom and in the session's metadata."""
        self._append(changes)
        self._session.save()

    def _append(self, changes: dict[str, Any]) -> None:
        self._session.entity.loom.append(ConfigRecord(new_id("g"), self._session.entity.id, changes, now()))


async def ask_for_trust(
    factory: SessionFactory, connection: Connection, session_id: str, workspace: Path, name: str | None
) -> None:
    """Ask for the user's trust if a workspace's recipe needs it. The answer holds for the present content of the files.

    Raises `RpcError` if the user does not trust the recipe.
    """
    try:
        await anyio.to_thread.run_sync(factory.recipes.cantrip, workspace, name)
        return
    except UntrustedRecipe as problem:
        wanted = str(problem)
    from cantrip_acp.gates.confinement import one_line
    from cantrip_acp.recipes import trust
    from cantrip_acp.recipes.build.python_files import Files

    ledger = trust.Ledger(factory.store.folder.parent)
    shown = await anyio.to_thread.run_sync(lambda: trust.content(workspace, Files()))
    wanted = "\n".join(map(one_line, wanted.splitlines()))
    call = acp.PermissionToolCall(
        tool_call_id=f"trust_{shown.digest[:16]}",
        title=one_line(f"Trust the recipes in {workspace}/{trust.FOLDER}"),
        kind="other",
        status="pending",
        content=[
            acp.Content(
                acp.TextContent(f"They came with the folder, and they need rights that could do harm:\n\n{wanted}")
            )
        ],
    )
    answers = [
        acp.PermissionOption("trust", "Trust them as they are now", "allow_always"),
        acp.PermissionOption("refuse", "Do not trust them", "reject_once"),
    ]
    answer = await choose(connection, acp.RequestPermission(session_id, call, answers))
    if answer != "trust":
        raise RpcError(INVALID_REQUEST, f"The recipe is not trusted: {wanted}", {"reason": "untrusted_recipe"})
    if not await anyio.to_thread.run_sync(ledger.grant_seen, workspace, shown):
        raise RpcError(INVALID_REQUEST, "The recipes changed while you were asked about them; read them and try again")


def _not_saved(problem: LoomError) -> RpcError:
    text = str(problem)
    return RpcError(INTERNAL_ERROR, f"The change cannot be recorded: {text}", {"details": text})


def _cache_of(session: OpenSession) -> SwitchableCache | None:
    """The part of the session's entity that reuses gate results. None if the agent was started without it."""
    from cantrip_acp.tuplespace.reuse.gate_results import SwitchableCache

    return next((i for i in session.entity.cantrip.interceptors if isinstance(i, SwitchableCache)), None)


def _short(recipe: str) -> str:
    """The display name of a recipe: the name of its file."""
    return _path(recipe).name


def _folder(session: OpenSession) -> Path:
    return _path(session.metadata.cwd)


def _path(path: str) -> Path:
    from pathlib import Path

    return Path(path)
