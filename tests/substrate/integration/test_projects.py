"""A project is the same in each clone and after a move; what is read from files belongs to a folder."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cantrip_acp.substrate.chunks import Change, NewChunk, NewPlacement, Removal, Spec
from cantrip_acp.substrate.documents import short_hash
from cantrip_acp.substrate.projects import create, earlier_sessions, pin, sync
from cantrip_acp.substrate.remembered_facts import remember
from cantrip_acp.substrate.substrate import Substrate, open_substrate
from cantrip_acp.substrate.types import install, of_type
from cantrip_acp.substrate.view import SessionView
from cantrip_acp.types.context_block import CastInfo
from tests.support.command_line import run
from tests.support.git_repositories import git, repository

REMOTE = "https://git.example/team/app.git"


@pytest.fixture
def clones(tmp_path: Path) -> list[Path]:
    found = []
    for name in ("one", "two"):
        clone = repository(tmp_path / name, {"AGENTS.md": f"Of clone {name}.\n", "web/AGENTS.md": "Of the page.\n"})
        git(clone, "remote", "add", "origin", REMOTE)
        found.append(clone)
    return found


def texts(substrate: Substrate, scope: str) -> list[str]:
    return [each.chunk.text for each in substrate.scope(scope).placed]


def as_before(substrate: Substrate, folder: Path) -> str:
    """A project as earlier versions made it, with a fact, a file, a pin, a program and a session. Returns its id."""
    install(substrate)
    project, made = f"project:{short_hash(str(folder.resolve()))}", {"folder": str(folder)}
    chunks = [NewChunk(project, folder.name, Spec(), made)]
    placements = [of_type("project", project)]
    for name in ("culture", "documents", "nested", "skills", "sessions", "runs", "pinned"):
        chunks.append(NewChunk(f"{project}:{name}", name, Spec(ordered=name == "pinned"), {"text": name}))
        placements.append(NewPlacement(f"{project}:{name}", project))
    substrate.commit(Change(chunks, placements), author="cantrip")
    substrate.put(NewChunk("fact-1", "f", body={"text": "Deploys happen on Tuesday."}), f"{project}:culture")
    substrate.put(NewChunk("file:1:1", "AGENTS.md", body={"text": "An old copy."}), f"{project}:documents")
    substrate.put(NewChunk("tool", "tool", body={"text": "t", "executable": "true"}), f"{project}:skills")
    substrate.put(NewChunk("notes", "notes", body={"text": "Notes."}), project)
    substrate.put(NewChunk("session:1", "Which heron?", body={"started": "2026-01-01"}), f"{project}:sessions")
    substrate.put(NewChunk("prompt:1", "prompt", body={"text": "Which heron?"}), "session:1")
    substrate.commit(Change(placements=[NewPlacement("notes", f"{project}:pinned", "relates")]), author="user")
    return project


def test_clones_of_a_repository_share_facts_and_pins_and_read_their_own_files(
    clones: list[Path], substrate: Substrate
) -> None:
    one, two = (sync(substrate, clone) for clone in clones)
    assert (one.id, one.folder == two.folder) == (two.id, False)
    remember(substrate, clones[0], "Deploys happen on Tuesday.")
    substrate.put(NewChunk("notes", "notes", body={"text": "Notes."}), one.id)
    pin(substrate, clones[0], "notes")
    for clone, name, other in ((clones[1], "two", "one"), (clones[0], "one", "two")):
        sync(substrate, clone)
        view = SessionView(None, clone)
        view._opened = substrate
        text = view.knowledge("").text
        assert "Deploys happen on Tuesday." in text
        assert "Notes." in text
        assert (f"Of clone {name}." in text, f"Of clone {other}." in text) == (True, False)
        found = [hit.chunk.text for hit in substrate.search("of clone", boundary=view.boundary) if hit.chunk.text]
        assert found == [f"Of clone {name}."]
    # A folder inside is a project of its own.
    assert create(substrate, clones[0] / "web").id not in (one.id, create(substrate, clones[0]).folder)


def test_a_folder_that_is_moved_keeps_what_was_remembered(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    assert run("substrate", "tree", cwd=folder).status == 0
    # Nothing is written to a folder for which nothing is kept.
    assert [*folder.iterdir()] == []
    assert run("substrate", "remember", "Ports begin at 4000.", cwd=folder).status == 0
    (folder / ".cantrip" / "project-id").stat()
    folder.rename(tmp_path / "moved")
    (hit,) = run("substrate", "search", "ports", "--json", cwd=tmp_path / "moved").lines
    assert hit["text"] == "Ports begin at 4000."
    (tmp_path / "app").mkdir()
    assert run("substrate", "search", "ports", cwd=tmp_path / "app").status == 1


@pytest.mark.anyio
async def test_a_running_session_reads_what_another_process_remembers_first(
    tmp_path: Path, substrate: Substrate
) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    view = SessionView(None, folder)
    view._opened = substrate
    cast = CastInfo("me", "c1", "Go.", "trace")
    assert (await view.refresh(cast)) is not None
    before = view.project
    remember(substrate, folder, "Ports begin at 4000.")
    block = await view.refresh(cast)
    assert block is not None
    assert "Ports begin at 4000." in block.text
    assert (view.project.id == before.id) is substrate.tables.several_users
    # A remote makes it another project, and what was known goes with it.
    git(folder, "init", "-q")
    git(folder, "remote", "add", "origin", REMOTE)
    block = await view.refresh(cast)
    assert block is not None
    assert "Ports begin at 4000." in block.text
    assert view.project.earlier[:1] != ()


def test_what_an_earlier_version_kept_for_a_folder_is_found_and_others_are_told_nothing_twice(
    clones: list[Path], substrate: Substrate
) -> None:
    earlier = as_before(substrate, clones[0])
    project = sync(substrate, clones[0])
    assert texts(substrate, project.culture) == ["Deploys happen on Tuesday."]
    assert [each.chunk.id for each in substrate.scope(project.skills).placed] == ["tool"]
    assert [each.chunk.id for each in substrate.scope(project.pins).placed] == ["notes"]
    # The sessions and files that are private in a shared database are nobody's there (test_teams.py).
    own = ['- 2026-01-01 asked: "Which heron?" → it did not end']
    view = SessionView(None, clones[1])
    view._opened = substrate
    found = {hit.chunk.id for hit in substrate.search("heron deploys notes copy", boundary=view.boundary)}
    assert earlier_sessions(substrate, project, 3) == own
    assert found == {"fact-1", "notes", "prompt:1", "session:1"}
    assert substrate.one("sessions", prefer=project.near).id == project.sessions
    latest = substrate.latest()
    assert sync(substrate, clones[0]) == project
    assert substrate.latest() == latest
    # What the user takes away stays away, and what an earlier version still adds comes.
    substrate.commit(Change(removals=[Removal("fact-1", project.culture)]), author="user")
    substrate.put(NewChunk("fact-2", "f", body={"text": "From an old process."}), f"{earlier}:culture")
    assert sync(substrate, clones[0]) == project
    assert texts(substrate, project.culture) == ["From an old process."]


def test_a_folder_without_a_remote_shows_no_old_copies_of_its_files(tmp_path: Path, substrate: Substrate) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "AGENTS.md").write_text("The new text.")
    earlier = as_before(substrate, folder)
    project = sync(substrate, folder)
    assert (project.id == earlier) is not substrate.tables.several_users
    view = SessionView(None, folder)
    view._opened = substrate
    assert [hit.chunk.text for hit in substrate.search("copy text", boundary=view.boundary)] == ["The new text."]
    assert "Deploys happen on Tuesday." in view.knowledge("").text


def test_two_processes_that_open_an_old_project_at_once_make_it_once(clones: list[Path], address: str) -> None:
    with open_substrate(address) as first:
        as_before(first, clones[0])
    opened = [open_substrate(address) for _ in range(4)]
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda each: sync(each, clones[0]), opened))
        assert len(set(found)) == 1
        for each in opened:
            assert texts(each, found[0].culture) == ["Deploys happen on Tuesday."]
            assert [one.chunk.id for one in each.scope(found[0].pins).placed] == ["notes"]
            assert texts(each, found[0].documents) == ["Of clone one."]
    finally:
        for each in opened:
            each.close()


def test_all_projects_are_searched_with_their_folders(clones: list[Path], tmp_path: Path) -> None:
    for clone in clones:
        assert run("substrate", "tree", cwd=clone).status == 0
    assert run("substrate", "remember", "Deploys happen on Tuesday.", cwd=clones[0]).status == 0
    (hit,) = run("substrate", "search", "deploys", "--everywhere", "--json", cwd=tmp_path).lines
    assert sorted(hit["projects"]) == sorted(map(str, clones))
    change = {"chunks": [{"id": "notes", "name": "notes"}], "placements": [{"chunk": "notes", "scope": hit["id"]}]}
    refused = run("substrate", "commit", "-", cwd=tmp_path, stdin=json.dumps(change))
    assert (refused.status, " and 1 more reads it too; choose another id" in refused.err) == (2, True)
    assert run("substrate", "commit", "-", cwd=clones[1], stdin=json.dumps(change)).status == 0
