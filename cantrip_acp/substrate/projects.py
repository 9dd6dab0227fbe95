"""Projects: a workspace's documents as scopes, and the user's own culture.

A project has a fixed id, made from the real path of its folder. Its scopes are ``culture`` (`.cantrip/culture/*.md`),
``documents`` (`AGENTS.md`, `CLAUDE.md`), ``nested`` (those of subfolders), ``skills``, ``sessions`` and ``runs``. `sync` commits
what changed in the files. What somebody placed on a scope otherwise, such as a remembered fact, stays.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

from cantrip_acp.gates.confinement import Root
from cantrip_acp.substrate.chunks import (
    Change,
    Chunk,
    Commit,
    CommitRefused,
    Kind,
    NewChunk,
    NewPlacement,
    Removal,
    Spec,
    is_project,
    one_line,
    refuse_secrets,
)
from cantrip_acp.substrate.documents import (
    DOCUMENTS,
    MOST_FILES,
    documents_below,
    file_name,
    folder_names,
    read_text,
    short_hash,
)
from cantrip_acp.substrate.owners import PRIVATE, USER_CULTURE, USER_SKILLS
from cantrip_acp.substrate.skills import FOLDERS, sync_skills
from cantrip_acp.substrate.substrate import Substrate, at_most_once, new_id, storable
from cantrip_acp.substrate.types import install, of_type
from cantrip_acp.text.dataclass import dataclass

CULTURE = ".cantrip/culture"
_LONGEST_TITLE = 60
_LONGEST = 300
"""Maximum number of characters of a quoted prompt or answer."""
_SCOPES = {
    "culture": "What the repository asks of everybody who works in it.",
    "documents": "Documents of the repository for agents.",
    "nested": "Documents of subfolders.",
    "skills": "Skills of this workspace, each with its kind of task. Read one with add_scope before such a task.",
    "sessions": "What was asked in this folder before.",
    "runs": "Programs that were run here.",
    "pinned": "Scopes that every session here reads from the beginning.",
}


@dataclass(frozen=True, slots=True)
class Project:
    """The ids of a project's scopes."""

    id: str

    @classmethod
    def of(cls, workspace: Path | str) -> Project:
        """The project of a folder. It need not be in the substrate yet."""
        return cls(f"project:{short_hash(os.path.realpath(workspace))}")

    @property
    def culture(self) -> str:
        return f"{self.id}:culture"

    @property
    def documents(self) -> str:
        return f"{self.id}:documents"

    @property
    def nested(self) -> str:
        return f"{self.id}:nested"

    @property
    def skills(self) -> str:
        return f"{self.id}:skills"

    @property
    def sessions(self) -> str:
        return f"{self.id}:sessions"

    @property
    def runs(self) -> str:
        return f"{self.id}:runs"

    @property
    def pins(self) -> str:
        """The scope to which relates what the user pinned, in order."""
        return f"{self.id}:pinned"

    @property
    def pinned(self) -> tuple[str, ...]:
        """What a session reads from the beginning: the user's culture first, then the project's, then skills by name."""
        return (USER_CULTURE, self.culture, self.documents, USER_SKILLS, self.skills)

    @property
    def near(self) -> tuple[str, ...]:
        """The scopes that a name means first: this project's and the user's own. Nothing else is found from here."""
        return (self.id, USER_CULTURE, USER_SKILLS)

    @property
    def tools(self) -> tuple[str, ...]:
        """Where the programs are that sessions have as gates. What was only run or said here is not among them."""
        return (*self.pinned, self.pins)


def create(substrate: Substrate, workspace: Path | str) -> Project:
    """Commit the types and the scopes of a project, if they are not there yet."""
    project = Project.of(workspace)
    folder = os.path.realpath(workspace)
    if substrate.exists(project.runs) and substrate.exists(USER_SKILLS):
        return project
    install(substrate)
    chunks = [
        NewChunk(USER_CULTURE, "your culture", Spec(), {"text": "What the user wants from every agent."}),
        NewChunk(project.id, file_name(os.path.basename(folder) or folder), Spec(), {"folder": storable(folder)}),
    ]
    own = "The user's own skills, each with its kind of task. Read one with add_scope before such a task."
    chunks.append(NewChunk(USER_SKILLS, "your skills", Spec(), {"text": own}))
    placements = [of_type("culture", USER_CULTURE), of_type("project", project.id)]
    for name, text in _SCOPES.items():
        shown = {"culture": "culture of this repository", "skills": "skills of this repository"}.get(name, name)
        chunks.append(NewChunk(f"{project.id}:{name}", shown, Spec(ordered=name == "pinned"), {"text": text}))
        placements.append(NewPlacement(f"{project.id}:{name}", project.id))
    placements.append(of_type("culture", project.culture))
    substrate.commit(Change(chunks, placements), author="cantrip", source="cantrip", message=f"project {folder}")
    return project


def sync(
    substrate: Substrate,
    workspace: Path,
    config_dir: Path | None = None,
    *,
    nested: bool = True,
    hidden: tuple[str, ...] = (),
) -> Project:
    """Bring the documents of a workspace and of the user's configuration folder into the substrate: only what changed.

    Links that lead out of the workspace are not followed. ``nested`` searches subfolders too, and skills.
    ``hidden`` is the ward ``hidden_paths``: what it names is not there.
    """
    project = create(substrate, workspace)
    root = Root(str(workspace), (str(workspace),), hidden=hidden)
    _sync_scope(substrate, project.documents, root, DOCUMENTS, "repository")
    _sync_scope(substrate, project.culture, root, _markdown(root), "repository")
    if nested:
        _sync_scope(substrate, project.nested, root, list(documents_below(workspace)), "repository")
        sync_skills(substrate, project.skills, root, FOLDERS, "repository")
    if config_dir is not None:
        # The user's own files may be links.
        own = sorted((config_dir / "culture").glob("*.md"))
        _sync_scope(substrate, USER_CULTURE, config_dir, [f"culture/{path.name}" for path in own], "user")
        if nested:
            sync_skills(substrate, USER_SKILLS, config_dir, ("skills",), "user")
    return project


def earlier_sessions(substrate: Substrate, project: Project, most: int, *, without: str = "") -> list[str]:
    """What was asked in the latest sessions of a project, and how it ended: a line each, the latest first.

    ``without`` is the entity that asks. Old texts are quoted, so that they are seen as quotations.
    """
    lines: list[str] = []
    own = session_id(without)
    sessions = [each for each in substrate.newest(project.sessions, 4 * most + 1) if each.id != own]
    asked = dict[str, list[Chunk]]()
    for place, session in enumerate(sessions):
        if len(lines) == most:
            break
        if session.id not in asked:
            asked = substrate.instances([each.id for each in sessions[place : place + most]], "prompt:")
        prompts = [each for each in asked[session.id] if "from" not in each.body]
        if not prompts:
            continue
        ended = prompts[-1].body.get("outcome")
        outcome = "it did not end"
        if isinstance(ended, dict):
            outcome = (
                f"{ended.get('reason')}: {_quotation(ended['text'])}" if ended.get("text") else str(ended.get("reason"))
            )
        when = str(session.body.get("started", ""))[:16].replace("T", " ")
        lines.append(f"- {when} asked: {_quotation(prompts[-1].text)} → {outcome}")
    return lines


def make_fact(text: str, *, private: bool = False) -> NewChunk:
    """The chunk of a fact. Raises `CommitRefused` if the text is empty, too long, or looks like a secret."""
    said = text.strip()
    if not said:
        raise CommitRefused("text", "there is nothing to remember: give a text")
    chunk = NewChunk(
        new_id(f"{PRIVATE}fact" if private else "fact"),
        one_line(said, _LONGEST_TITLE) or "a fact",
        Spec(),
        {"text": said},
    )
    refuse_secrets(Change([chunk]))
    return chunk


def remember(substrate: Substrate, project: Project, text: str, *, everywhere: bool = False) -> tuple[NewChunk, Commit]:
    """Add a fact of the user to the culture of a project, or with ``everywhere`` to the user's own. Raises `CommitRefused`."""
    chunk = make_fact(text, private=everywhere)
    change = Change([chunk], [NewPlacement(chunk.id, USER_CULTURE if everywhere else project.culture)])
    # A fact that others read, too, says whose it is.
    who = "" if everywhere else substrate.tables.user
    source = f"user:{who}" if who else "user"
    return chunk, substrate.commit(change, author=source, source=source, message=f"remember {chunk.name}")


def folders_of(
    substrate: Substrate, chunk_id: str, kinds: Collection[Kind] = ("instance", "relates")
) -> dict[str, str]:
    """The projects that hold a chunk (``instance``) or read it: the id of each, and its folder."""
    projects = sorted(each for each in substrate.above(chunk_id, kinds) if is_project(each))
    return {each: str(substrate.chunk(each).body.get("folder", "")) for each in projects}


def check_own(substrate: Substrate, project: Project, change: Change) -> None:
    """Raise `CommitRefused` if a change touches a chunk that another project holds or reads: ids are one space for all."""
    touched = [each.id for each in change.chunks if substrate.exists(each.id) and not substrate.holds(each)]
    for each in change.touched():
        if substrate.exists(each.scope) and not substrate.chunk(each.scope).spec.archetype:
            there = {(placed.scope, placed.kind) for placed in substrate.placements(each.chunk)}
            if isinstance(each, Removal) or (each.scope, each.kind) not in there:
                touched.append(each.scope)
    for chunk_id in dict.fromkeys(touched):
        others = {id_: folder for id_, folder in folders_of(substrate, chunk_id).items() if id_ != project.id}
        if others:
            folder = next(iter(others.values()))
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            text = f"the project in {folder}{more} reads it too; choose another id, or change it for all with --replace"
            raise CommitRefused("project", text, chunk=chunk_id)


def pin(substrate: Substrate, project: Project, name: str, *, remove: bool = False) -> tuple[Chunk, Commit]:
    """Let every session of a project read a scope, by id or name, from the beginning; with ``remove``, no longer.

    Raises `ChunkNotFound`, or `CommitRefused` if it is to be removed and was not pinned.
    """
    chunk = substrate.one(name, prefer=project.near)
    if remove:
        change = Change(removals=[Removal(chunk.id, project.pins, "relates")])
    else:
        change = Change(placements=[NewPlacement(chunk.id, project.pins, "relates")])
    message = f"{'do not pin' if remove else 'pin'} {chunk.name}"
    return chunk, substrate.commit(change, author="user", message=message)


def session_id(entity_id: str) -> str:
    """The id of the substrate chunk that stands for this entity's session."""
    return f"session:{entity_id}"


def _quotation(text: str) -> str:
    line = " ".join(text.split())
    return json.dumps(line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…", ensure_ascii=False)


def _sync_scope(
    substrate: Substrate, scope: str, root: Root | Path, names: list[str] | tuple[str, ...], source: str
) -> None:
    prefix = f"file:{short_hash(scope)}:"
    before = {each.chunk.id: each.chunk for each in substrate.scope(scope).placed if each.chunk.id.startswith(prefix)}
    found: dict[str, NewChunk] = {}
    for name in names[:MOST_FILES]:
        text = read_text(root, name)
        if text is None:
            continue
        chunk = NewChunk(f"{prefix}{short_hash(name)}", file_name(name), Spec(), {"text": text, "path": storable(name)})
        found[chunk.id] = chunk
    # Each file has its own label, so each is a commit of its own; most often none changed.
    for chunk in found.values():
        if _changed(before.get(chunk.id), chunk):
            label = f"repository:{chunk.body['path']}" if source == "repository" else source
            placements = [NewPlacement(chunk.id, scope), of_type("document", chunk.id)]
            change = Change([chunk], placements)
            substrate.commit(change, author="cantrip", source=label, message=f"{chunk.name} changed")
    gone = [Removal(chunk_id, scope) for chunk_id in before if chunk_id not in found]
    if gone:
        message = f"{len(gone)} removed"
        with at_most_once():
            substrate.commit(Change(removals=gone), author="cantrip", source=source, message=message)


def _markdown(root: Root) -> list[str]:
    return [f"{CULTURE}/{name}" for name in folder_names(root, CULTURE) if name.endswith(".md")]


def _changed(before: Chunk | None, now: NewChunk) -> bool:
    return before is None or dict(before.body) != now.body
