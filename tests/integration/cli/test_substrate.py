"""`cantrip substrate`: the real command on real folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import run

RECIPE = """\
name: knower
crystal:
  provider: scripted
  responses:
    - tool_calls: [{gate: recall, args: {query: port}}]
    - tool_calls: [{gate: add_scope, args: {scope: nested}}]
    - content: It is 4711.
circle: {gates: [done], wards: [{max_turns: 5}]}
memory: {culture: true, sessions: 3}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    (folder / "docs").mkdir(parents=True)
    (folder / "AGENTS.md").write_text("Use port 4711.\n")
    (folder / "docs" / "AGENTS.md").write_text("Short sentences.\n")
    (folder / "r.cantrip.yaml").write_text(RECIPE)
    return folder


def ids(project: Path, name: str) -> str:
    (data,) = run("substrate", "show", name, "--json", cwd=project).lines
    return str(data["id"])


def test_tree_shows_what_a_session_reads(project: Path) -> None:
    shown = run("substrate", "tree", cwd=project)
    assert (shown.status, shown.err) == (0, "")
    lines = [line.split("  ") for line in shown.out.splitlines()]
    assert ["", "* documents", "13 tokens", "cantrip"] in [line[:4] for line in lines]
    assert "    AGENTS.md  5 tokens  repository:AGENTS.md" in shown.out
    assert "    docs/AGENTS.md  6 tokens  repository:docs/AGENTS.md" in shown.out
    (data,) = run("substrate", "tree", "documents", "--json", cwd=project).lines
    assert [each["name"] for each in data["scopes"][0]["placed"]] == ["AGENTS.md"]


def test_a_cast_reads_searches_and_is_recorded(project: Path) -> None:
    assert run("cast", "r.cantrip.yaml", "Which port?", cwd=project).status == 0
    found = run("substrate", "search", "Which port", "--json", cwd=project)
    assert {(hit["name"], hit["text"]) for hit in found.lines} == {("Which port?", ""), ("prompt", "Which port?")}
    session = found.lines[0]["source"]
    (data,) = run("substrate", "show", session, "--json", cwd=project).lines
    kinds = [each["name"] for each in data["placed"]]
    assert kinds == ["prompt", "context", "recall", "recall", "add_scope", "add_scope", "context", "answer"]
    loom = data["body"]["loom"]
    checked = run("substrate", "record", "--check", loom, cwd=project)
    assert (checked.status, checked.out) == (0, f"{loom}: 0 differences\n")
    assert run("substrate", "record", loom, cwd=project).out == f"{loom}: 0 commits\n"
    # What it was reading, at the second context.
    (context,) = run("substrate", "show", data["placed"][6]["id"], "--json", cwd=project).lines
    assert [each["name"] for each in context["placed"]][-1] == "nested"


def test_facts_pins_history(project: Path) -> None:
    assert run("substrate", "remember", "Answer in French.", cwd=project).status == 0
    assert "Answer in French." in run("substrate", "tree", cwd=project).out
    (before,) = run("substrate", "log", "--limit", "1", "--json", cwd=project).lines
    assert run("substrate", "pin", "nested", cwd=project).out.endswith(
        f"from the beginning (commit {before['commit'] + 1})\n"
    )
    assert run("substrate", "pin", "nested", cwd=project).out.endswith("was pinned already\n")
    (data,) = run("substrate", "tree", "nested", "--json", cwd=project).lines
    assert data["scopes"][0]["pinned"]
    assert run("substrate", "pin", "--remove", "nested", cwd=project).status == 0
    (project / "AGENTS.md").write_text("Use port 4712.\n")
    changed = run("substrate", "diff", str(before["commit"]), cwd=project)
    assert changed.status == 1
    assert "    -Use port 4711.\n    +Use port 4712.\n" in changed.out
    old = run("substrate", "show", "AGENTS.md", "--at", str(before["commit"]), cwd=project)
    assert "Use port 4711." in old.out
    everywhere = run("substrate", "remember", "Be kind.", "--everywhere", "--json", cwd=project)
    other = project.parent / "other"
    other.mkdir()
    assert ids(other, "Be kind.") == everywhere.lines[0]["id"]


def test_mistakes_are_explained(project: Path) -> None:
    wrong = run("substrate", "show", "AGENT.md", cwd=project)
    assert (wrong.status, wrong.err.strip()) == (
        2,
        "cantrip: no chunk has the id or name 'AGENT.md'; similar names: AGENTS.md, docs/AGENTS.md",
    )
    wrong = run("substrate", "tree", "--at", "9999", cwd=project)
    assert (wrong.status, "there is no commit 9999: the latest is" in wrong.err) == (2, True)
    wrong = run("substrate", "remember", "  ", cwd=project)
    assert (wrong.status, "there is nothing to remember" in wrong.err) == (2, True)
    wrong = run("substrate", "remember", "the key is ghp_" + "a1B2" * 9, cwd=project)
    assert (wrong.status, "looks like a secret" in wrong.err, "ghp_" in wrong.err) == (2, True, False)
    assert run("substrate", "search", "zebra", cwd=project).status == 1
    off = run("substrate", "tree", cwd=project, CANTRIP_SUBSTRATE="off")
    assert (off.status, "CANTRIP_SUBSTRATE is off" in off.err) == (2, True)
