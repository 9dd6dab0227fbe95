"""Projects: what a workspace shares with others, its documents as scopes, and the user's own culture.

A project is the same in each clone and for each user (`git.project_identity`). It has the scopes ``culture`` (facts that
somebody remembered for it), ``skills``, ``sessions``, ``runs`` and ``pinned``. What is read from files belongs to the
*folder*, as two clones have different files: ``culture`` (`.cantrip/culture/*.md`), ``documents`` (`AGENTS.md`, `CLAUDE.md`),
``nested`` (those of subfolders) and ``skills``. `sync` commits what changed in the files. What somebody placed on a scope
otherwise stays.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from msgspec import Struct

from cantrip_acp.gates.confinement import Root
from cantrip_acp.git.project_identity import known_ids, project_id
from cantrip_acp.substrate.chunks import (
    MOST_CHANGES,
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
from cantrip_acp.substrate.owners import USER_CULTURE, USER_SKILLS
from cantrip_acp.substrate.skills import FOLDERS, sync_skills
from cantrip_acp.substrate.substrate import Substrate, at_most_once, storable
from cantrip_acp.substrate.types import install, of_type

CULTURE = ".cantrip/culture"
_LONGEST = 300
"""Maximum number of characters of a quoted prompt or answer."""
_SCOPES = {
    "culture": ("culture of this project", "What everybody who works in this project should know."),
    "skills": ("skills of this project", "Skills of this project, each with its kind of task."),
    "sessions": ("sessions", "What was asked in this project before."),
    "runs": ("runs", "Programs that were run here."),
    "pinned": ("pinned", "Scopes that every session here reads from the beginning."),
}
_FOLDER_SCOPES = {
    "culture": ("culture of this repository", "What the repository asks of everybody who works in it."),
    "documents": ("documents", "Documents of the repository for agents."),
    "nested": ("nested", "Documents of subfolders."),
    "skills": (
        "skills of this repository",
        "Skills of this workspace, each with its kind of task. Read one with add_scope before such a task.",
    ),
}


class Project(Struct, frozen=True):
    """The ids of the scopes of a project, and of the scopes of one of its folders.

    ``earlier``: earlier ids of the project in this folder.
    """

    id: str
    folder: str
    earlier: tuple[str, ...] = ()

    @classmethod
    def of(cls, workspace: Path | str) -> Project:
        """The project of a folder, which need not be in the substrate yet.

        Until `settle` is called, its id may be that of the folder's path, which changes when the folder is moved.
        """
        path = short_hash(os.path.realpath(workspace))
        ids = [f"project:{short_hash(each)}" for each in known_ids(workspace)]
        ids.append(f"project:{path}")
        return cls(ids[0], f"folder:{path}", tuple(ids[1:]))

    @property
    def culture(self) -> str:
        """The facts of the project."""
        return f"{self.id}:culture"

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
        """The scope that refers to the user's pinned scopes, in order."""
        return f"{self.id}:pinned"

    @property
    def folder_culture(self) -> str:
        """The culture of the repository, from files."""
        return f"{self.folder}:culture"

    @property
    def documents(self) -> str:
        return f"{self.folder}:documents"

    @property
    def nested(self) -> str:
        return f"{self.folder}:nested"

    @property
    def folder_skills(self) -> str:
        """The skills of the repository, from files."""
        return f"{self.folder}:skills"

    @property
    def pinned(self) -> tuple[str, ...]:
        """The scopes that a session reads from the beginning: the user's culture first, then the project's, then skills by
        name."""
        culture = (USER_CULTURE, self.folder_culture, self.culture, self.documents)
        return (*culture, USER_SKILLS, self.folder_skills, self.skills)

    @property
    def near(self) -> tuple[str, ...]:
        """The scopes in which a name is looked up first: this project's and the user's. Nothing else is found from here."""
        return (self.id, self.folder, USER_CULTURE, USER_SKILLS)

    @property
    def tools(self) -> tuple[str, ...]:
        """The scopes whose programs sessions have as gates. Programs that were only run or mentioned here are not included."""
        return (*self.pinned, self.pins)


def create(substrate: Substrate, workspace: Path | str) -> Project:
    """Commit the types and the scopes of a project, if they are missing."""
    if substrate.tables.several_users:
        # In containers of several users, folders of different projects have the same path.
        project_id(workspace)
    project = Project.of(workspace)
    folder = os.path.realpath(workspace)
    name = file_name(os.path.basename(folder) or folder)
    if not substrate.exists(USER_SKILLS):
        install(substrate)
        own = "The user's own skills, each with its kind of task. Read one with add_scope before such a task."
        chunks = [
            NewChunk(USER_CULTURE, "your culture", Spec(), {"text": "What the user wants from every agent."}),
            NewChunk(USER_SKILLS, "your skills", Spec(), {"text": own}),
        ]
        _make(substrate, Change(chunks, [of_type("culture", USER_CULTURE)]), "your culture")
    if not substrate.exists(project.skills):
        change = _scopes(project.id, _SCOPES)
        change.chunks = [NewChunk(project.id, name, Spec(), {}), *change.chunks]
        change.placements = [of_type("project", project.id), *change.placements]
        _make(substrate, change, f"project {name}")
    of_folder = substrate.scope(project.folder).placed if substrate.exists(project.folder) else ()
    if not any(each.chunk.id == project.id for each in of_folder):
        change = _scopes(project.folder, _FOLDER_SCOPES)
        body = {"folder": storable(folder)}
        change.chunks = [NewChunk(project.folder, f"files of {name}"[:200], Spec(), body), *change.chunks]
        # The way leads down from the folder to its project: who reads the project reads no other folder of it.
        change.placements = [NewPlacement(project.id, project.folder, "relates"), *change.placements]
        change.removals = _old_files(substrate, project)
        change.removals += [
            Removal(each.chunk.id, project.folder, "relates") for each in of_folder if is_project(each.chunk.id)
        ]
        with at_most_once():
            _make(substrate, change, f"folder {folder}")
    for earlier in project.earlier:
        _adopt(substrate, project, earlier)
    return project


class _Draft:
    def __init__(self) -> None:
        self.chunks: list[NewChunk] = []
        self.placements: list[NewPlacement] = []
        self.removals: list[Removal] = []


def _scopes(above: str, scopes: Mapping[str, tuple[str, str]]) -> _Draft:
    draft = _Draft()
    for key, (name, text) in scopes.items():
        draft.chunks.append(NewChunk(f"{above}:{key}", name, Spec(ordered=key == "pinned"), {"text": text}))
        draft.placements.append(NewPlacement(f"{above}:{key}", above))
    draft.placements.append(of_type("culture", f"{above}:culture"))
    return draft


def _old_files(substrate: Substrate, project: Project) -> list[Removal]:
    """The files that an earlier version placed on the project; they now belong to the folder."""
    old = [f"{project.id}:{name}" for name in _FOLDER_SCOPES]
    return [
        Removal(each.id, scope)
        for scope, placed in substrate.instances(old).items()
        for each in placed
        if each.id.startswith(("file:", "skill:"))
    ]


def _adopt(substrate: Substrate, project: Project, earlier: str) -> None:
    """Place the chunks of an earlier project id on the project, including those that were added there since the last time."""
    done = f"{project.id}:{earlier.removeprefix('project:')}"
    if earlier == project.id or not substrate.exists(f"{earlier}:runs"):
        return
    until = int(substrate.chunk(done).body["until"]) if substrate.exists(done) else 0
    into = {
        "": project.id,
        ":culture": project.culture,
        ":documents": project.culture,
        ":nested": project.id,
        ":skills": project.skills,
        ":pinned": project.pins,
    }
    if until and not substrate.changed([f"{earlier}{each}" for each in into], until):
        return
    latest = substrate.latest()
    placements = [NewPlacement(f"{earlier}:{each}", project.id) for each in ("sessions", "runs")]
    for name, scope in into.items():
        if substrate.exists(f"{earlier}{name}"):
            for each in substrate.scope(f"{earlier}{name}").placed:
                own = each.chunk.id.startswith((f"{earlier}:", "file:", "skill:"))
                if not own and each.chunk.commit > until:
                    placements.append(NewPlacement(each.chunk.id, scope, each.kind))
    # Names mean the scopes of the project, not those from before.
    renamed = [
        NewChunk(f"{earlier}:{each}", f"earlier {each}", Spec(), {"text": _SCOPES[each][1]})
        for each in ("sessions", "runs")
    ]
    marker = NewChunk(done, "facts of an earlier id", Spec(), {"from": earlier, "until": latest})
    _make(substrate, Change([marker, *renamed], placements[:MOST_CHANGES]), "facts of an earlier id of the project")


def _make(substrate: Substrate, change: Change | _Draft, message: str) -> None:
    made = Change(change.chunks, change.placements, change.removals)
    substrate.commit(made, author="cantrip", source="cantrip", message=message)


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
    _sync_scope(substrate, project.folder_culture, root, _markdown(root), "repository")
    if nested:
        _sync_scope(substrate, project.nested, root, list(documents_below(workspace)), "repository")
        sync_skills(substrate, project.folder_skills, root, FOLDERS, "repository")
    if config_dir is not None:
        # The user's own files may be links.
        own = sorted((config_dir / "culture").glob("*.md"))
        _sync_scope(substrate, USER_CULTURE, config_dir, [f"culture/{path.name}" for path in own], "user")
        if nested:
            sync_skills(substrate, USER_SKILLS, config_dir, ("skills",), "user")
    return project


def earlier_sessions(substrate: Substrate, project: Project, most: int, *, without: str = "") -> list[str]:
    """Summarize the latest sessions of a project, a line each, the latest first: the question, and how it ended.

    ``without`` is the asking entity. Old texts are quoted, so that they are seen as quotations.
    """
    lines: list[str] = []
    own = session_id(without)
    scopes = [each.id for each in substrate.instances([project.id])[project.id] if each.id.endswith(":sessions")]
    sessions = [each for scope in scopes for each in substrate.newest(scope, 4 * most + 1) if each.id != own]
    sessions.sort(key=lambda each: -each.commit)
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


def settle(substrate: Substrate, workspace: Path) -> Project:
    """The project of a folder, with an id that stays when the folder is moved. Call it before storing anything for the
    project."""
    project_id(workspace)
    return create(substrate, workspace)


def folders_of(
    substrate: Substrate, chunk_id: str, kinds: Collection[Kind] = ("instance", "relates")
) -> dict[str, list[str]]:
    """The projects and folders that hold a chunk (``instance``) or read it: the id of each, and its folders on this machine."""
    found: dict[str, list[str]] = {}
    for each in sorted(substrate.above(chunk_id, kinds)):
        if is_project(each):
            above = [placed.scope for placed in substrate.placements(each) if placed.scope.startswith("folder:")]
            found[each] = [_path(substrate, folder) for folder in above] or [_path(substrate, each)]
        elif each.startswith("folder:") and each.count(":") == 1:
            found[each] = [_path(substrate, each)]
    return found


def _path(substrate: Substrate, chunk_id: str) -> str:
    chunk = substrate.chunk(chunk_id)
    return str(chunk.body.get("folder") or chunk.name)


def check_own(substrate: Substrate, project: Project, change: Change) -> None:
    """Raise `CommitRefused` if a change touches a chunk that another project holds or reads, because all projects share one
    space of ids."""
    touched = [each.id for each in change.chunks if substrate.exists(each.id) and not substrate.holds(each)]
    for each in change.touched():
        if substrate.exists(each.scope) and not substrate.chunk(each.scope).spec.archetype:
            there = {(placed.scope, placed.kind) for placed in substrate.placements(each.chunk)}
            if isinstance(each, Removal) or (each.scope, each.kind) not in there:
                touched.append(each.scope)
    own = {project.id, project.folder, *project.earlier}
    own |= {each.scope for each in substrate.placements(project.id)}
    for chunk_id in dict.fromkeys(touched):
        others = [each for id_, each in folders_of(substrate, chunk_id).items() if id_ not in own]
        if others:
            names = list(dict.fromkeys(name for each in others for name in each))
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            text = (
                f"the project in {names[0]}{more} reads it too; choose another id, or change it for all with --replace"
            )
            raise CommitRefused("project", text, chunk=chunk_id)


def named(substrate: Substrate, project: Project, change: Change) -> tuple[Change, list[str]]:
    """Replace the names in a user's change by ids. Also returns the ids of new chunks without a placement; these are placed
    on the project, because nobody could find them otherwise. Raises `ChunkNotFound` for an unknown name."""
    new = {each.id for each in change.chunks}
    ids: dict[str, str] = {}

    def id_of(text: str) -> str:
        if text not in ids:
            known = text in new or substrate.exists(text)
            ids[text] = (
                text if known else project.id if text == "project" else substrate.one(text, prefer=project.near).id
            )
        return ids[text]

    placements = [
        NewPlacement(id_of(each.chunk), id_of(each.scope), each.kind, each.sequence) for each in change.placements
    ]
    removals = [Removal(id_of(each.chunk), id_of(each.scope), each.kind) for each in change.removals]
    placed = {each.chunk for each in placements}
    alone = [each.id for each in change.chunks if each.id not in placed and not substrate.exists(each.id)]
    placements += [NewPlacement(each, project.id) for each in alone]
    return Change(change.chunks, placements, removals), alone


def pin(substrate: Substrate, workspace: Path, name: str, *, remove: bool = False) -> tuple[Chunk, Commit]:
    """Let every session of a project read a scope, by id or name, from the beginning; with ``remove``, no longer.

    Raises `ChunkNotFound`, or `CommitRefused` if it is to be removed and was not pinned.
    """
    chunk = substrate.one(name, prefer=Project.of(workspace).near)
    project = settle(substrate, workspace)
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
