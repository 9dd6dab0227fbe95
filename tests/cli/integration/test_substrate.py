"""`cantrip substrate`: the real command on real folders."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.substrate.view import SessionView
from tests.support import command_line, processes
from tests.support.command_line import run
from tests.support.processes import CANTRIP

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
    (data,) = run("substrate", "tree", "documents", "--json", cwd=project).lines
    (document,) = data["scopes"][0]["placed"]
    assert document["name"] == "AGENTS.md"
    assert ["", "* documents", f"{data['scopes'][0]['tokens']} tokens", "cantrip"] in [line[:4] for line in lines]
    assert f"    AGENTS.md  {document['tokens']} tokens  repository:AGENTS.md" in shown.out
    assert "    docs/AGENTS.md  " in shown.out
    # Nothing is in it, so a session does not read it.
    assert "* your culture  cantrip  culture:user\n" in shown.out
    # One way of counting: what the layer gets.
    view = SessionView(f"sqlite:{project.parent}/sizes.db", project)
    layer = view.knowledge("")
    assert document["tokens"] == {part.name: part.tokens for part in layer.parts}["AGENTS.md"]
    assert shown.out.endswith(f"together about {data['tokens']} tokens\n")


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


def test_casts_of_batches_and_workers_are_recorded_if_their_recipe_says_so(project: Path) -> None:
    (project / "before.jsonl").write_text('"Which heron?"\n')
    assert run("cast-batch", "r.cantrip.yaml", "before.jsonl", cwd=project).status == 0
    assert not [
        hit for hit in run("substrate", "search", "Which heron?", "--json", cwd=project).lines if "heron" in hit["text"]
    ]
    recipe = project / "r.cantrip.yaml"
    recipe.write_text(recipe.read_text().replace("sessions: 3}", "sessions: 3, batches: true}"))
    (project / "here.jsonl").write_text('"Which herring?"\n')
    (project / "there.jsonl").write_text('"Which walrus?"\n')
    assert run("cast-batch", "r.cantrip.yaml", "here.jsonl", cwd=project).status == 0
    worker = command_line.start("worker", "r.cantrip.yaml", "--lane", "knowing", cwd=project)
    try:
        assert run("cast-batch", "r.cantrip.yaml", "there.jsonl", "--lane", "knowing", cwd=project).status == 0
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.communicate()
    for intent in ("Which herring?", "Which walrus?"):
        hits = run("substrate", "search", intent, "--json", cwd=project).lines
        (session,) = {hit["source"] for hit in hits if hit["text"] == intent}
        (data,) = run("substrate", "show", session, "--json", cwd=project).lines
        assert [each["name"] for each in data["placed"]][0::7] == ["prompt", "answer"]


def test_what_was_read_at_a_turn(project: Path) -> None:
    assert run("cast", "r.cantrip.yaml", "Which port?", cwd=project).status == 0
    (loom,) = [line.split()[1] for line in run("loom", "show", cwd=project).out.splitlines() if line.startswith("file")]
    (project / "AGENTS.md").write_text("Use another port.\n")
    first, last = (run("loom", "context", loom, turn, "--json", cwd=project).lines[0] for turn in ("1", "3"))
    assert [part["source"] for part in first["knowledge"]] == ["cantrip", "repository:AGENTS.md"]
    assert [part["source"] for part in last["knowledge"]][-1] == "repository:docs/AGENTS.md"
    assert "Use port 4711." in str(first["messages"])
    shown = run("loom", "context", loom, "3", cwd=project).out
    assert shown.startswith(f"turn 3, {last['turn']}: the crystal read {len(last['messages'])} messages, about ")
    assert "AGENTS.md (instance)  repository:AGENTS.md" in shown
    assert run("loom", "context", loom, last["turn"], cwd=project).out == shown
    assert run("loom", "context", loom, cwd=project).out == shown
    full = run("loom", "context", loom, "2", "--full", cwd=project).out
    assert "--- tool: turns: answers, calls and results" in full
    wrong = run("loom", "context", loom, "4", cwd=project)
    assert (wrong.status, wrong.err) == (
        2,
        "cantrip: there is no turn 4: the thread that was written last has 3 turns\n",
    )


def test_long_scopes_are_listed_in_part_or_whole(project: Path) -> None:
    chunks = [{"id": f"note-{n}", "name": f"note {n}"} for n in range(25)]
    change = {"chunks": chunks, "placements": [{"chunk": each["id"], "scope": "culture:user"} for each in chunks]}
    (project / "notes.json").write_text(json.dumps(change))
    assert run("substrate", "tree", cwd=project).status == 0
    assert run("substrate", "commit", "notes.json", cwd=project).status == 0
    short = run("substrate", "tree", "culture:user", cwd=project).out
    assert "… 5 more: cantrip substrate tree culture:user --limit 25" in short
    assert "more" not in run("substrate", "tree", "culture:user", "--limit", "25", cwd=project).out
    (data,) = run("substrate", "tree", "culture:user", "--json", cwd=project).lines
    assert len(data["scopes"][0]["placed"]) == 25
    assert "… 5 more: --limit 25" in run("substrate", "show", "culture:user", cwd=project).out


NO_SUBSTRATE = [
    ("off", "CANTRIP_SUBSTRATE is `off`"),
    ("postgresql://nobody@127.0.0.1:1/none", "cannot open substrate postgresql://nobody@127.0.0.1:1/none"),
]


@pytest.mark.parametrize(("address", "why"), NO_SUBSTRATE)
def test_without_a_substrate_files_are_read_all_the_same(project: Path, address: str, why: str) -> None:
    """One notice says what is missing; documents and culture reach the model."""
    (project / ".cantrip" / "culture").mkdir(parents=True)
    (project / ".cantrip" / "culture" / "tone.md").write_text("Be kind.")
    done = run(
        "cast", "r.cantrip.yaml", "Which port?", "--loom", "x.loom.jsonl", cwd=project, CANTRIP_SUBSTRATE=address
    )
    assert done.status == 0, done.err
    shown = " ".join(f"{done.out} {done.err}".split())
    assert shown.count("This session reads documents and culture, but no remembered facts") == 1
    assert shown.count(why) == 1
    assert "SubstrateError" not in shown
    loom = (project / "x.loom.jsonl").read_text()
    assert "Be kind." in loom
    assert "Use port 4711." in loom
    # The first call was `recall`: documents can be searched.
    assert loom.count("repository:AGENTS.md") > 1


def test_a_name_means_a_project_only_if_nothing_else_has_it(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    assert run("substrate", "tree", cwd=folder).status == 0
    (pinned,) = run("substrate", "pin", "agent", "--json", cwd=folder).lines
    assert pinned["scope"] == "program:agent"
    (named,) = run("substrate", "pin", "documents", "--json", cwd=folder).lines
    assert named["scope"].startswith("folder:")
    other = tmp_path / "elsewhere"
    other.mkdir()
    (own,) = run("substrate", "show", "elsewhere", "--json", cwd=other).lines
    assert own["id"].startswith("project:")


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
    assert (off.status, "CANTRIP_SUBSTRATE is `off`" in off.err) == (2, True)


COUNT = {
    "chunks": [
        {
            "id": "count",
            "name": "count",
            "spec": {"propagate": True, "accepts": ["count-input"]},
            "body": {"text": "Counts.", "executable": "./count.sh", "runtime": "vm", "write": []},
        },
        {"id": "count-input", "name": "count-input", "spec": {"required": ["path"]}, "body": {"text": "What."}},
    ],
    "placements": [
        {"chunk": "count", "scope": "type:program"},
        {"chunk": "count-input", "scope": "count", "kind": "relates"},
    ],
}


def add_program(project: Path) -> None:
    (project / "count.sh").write_text('#!/bin/sh\necho "$CANTRIP_INPUT" | wc -w\nexec "$CANTRIP_ENGINE_CALL" scope\n')
    (project / "count.sh").chmod(0o755)
    done = run("substrate", "commit", "-", cwd=project, stdin=json.dumps(COUNT))
    assert (done.status, done.out.rpartition(": ")[2]) == (0, "4 changed\n")


def test_programs_run_and_their_mistakes_are_explained(project: Path) -> None:
    add_program(project)
    assert run("substrate", "commit", "-", cwd=project, stdin=json.dumps(COUNT)).out == "nothing changed\n"
    done = run("substrate", "run", "count", '{"path": "a b"}', cwd=project)
    assert (done.status, done.err) == (0, "")
    counted, own = done.out.splitlines()
    assert counted == "3"
    assert json.loads(own)["chunk"]["name"] == "run of count"
    again = run("substrate", "run", "count", "-", "--json", cwd=project, stdin='{"path": "a"}')
    (process,) = again.lines
    assert (process["state"], process["exit_code"], process["program"]) == ("ended", 0, "count")
    assert run("substrate", "show", process["process"], cwd=project).status == 0
    for given, why in (
        ("[]", "not a JSON object"),
        ("{", "not JSON"),
        ("{}", "lacks 'path', which 'count-input' requires"),
    ):
        wrong = run("substrate", "run", "count", given, cwd=project)
        assert (wrong.status, why in wrong.err) == (2, True), wrong.err
    assert "is not a program" in run("substrate", "run", "documents", cwd=project).err
    (project / "count.sh").write_text("#!/bin/sh\necho wrong >&2; exit 4\n")
    failed = run("substrate", "run", "count", '{"path": "a"}', cwd=project)
    assert (failed.status, "wrong" in failed.out, "exit status 4" in failed.err) == (1, True, True)


def test_a_commit_takes_names_and_what_it_places_nowhere_is_placed_on_the_project(project: Path) -> None:
    change = {
        "chunks": [
            {"id": name, "name": name, "body": {"text": f"A heron, {name}."}} for name in ("one", "two", "three")
        ],
        "placements": [{"chunk": "one", "scope": "culture of this project"}, {"chunk": "two", "scope": "project"}],
    }
    done = run("substrate", "commit", "-", cwd=project, stdin=json.dumps(change))
    assert done.status == 0, done.err
    assert done.out.endswith("placed on the project of this folder, because the change places it nowhere: three\n")
    found = {hit["id"] for hit in run("substrate", "search", "heron", "--json", cwd=project).lines}
    assert found == {"one", "two", "three"}
    moved = {
        "placements": [{"chunk": "three", "scope": "one", "kind": "relates"}],
        "removals": [{"chunk": "one", "scope": "culture of this project"}],
    }
    (data,) = run("substrate", "commit", "-", "--json", cwd=project, stdin=json.dumps(moved)).lines
    assert (data["changed"], data["placed"]) == (2, [])
    wrong = {"placements": [{"chunk": "three", "scope": "cultur of this project"}]}
    refused = run("substrate", "commit", "-", cwd=project, stdin=json.dumps(wrong))
    assert (refused.status, "similar names: culture of this project" in refused.err) == (2, True)


def test_projects_do_not_change_each_other(project: Path) -> None:
    """Ids are one space, so a change that another project would see needs a word; and a name means what is here."""
    add_program(project)
    assert run("substrate", "pin", "count", cwd=project).status == 0
    other = project.parent / "other"
    other.mkdir()
    (other / "AGENTS.md").write_text("Use port 9999.\n")
    changed = json.loads(json.dumps(COUNT))
    changed["chunks"][0]["body"]["text"] = "Counts otherwise."
    wrong = run("substrate", "commit", "-", cwd=other, stdin=json.dumps(changed))
    assert (wrong.status, "'count'" in wrong.err, str(project) in wrong.err, "--replace" in wrong.err) == (
        2,
        True,
        True,
        True,
    )
    assert "Counts." in run("substrate", "show", "count", cwd=project).out
    assert run("substrate", "commit", "-", cwd=project, stdin=json.dumps(changed)).status == 0
    assert run("substrate", "commit", "--replace", "-", cwd=other, stdin=json.dumps(COUNT)).status == 0
    # Names: both projects have scopes of these names.
    assert run("substrate", "tree", "sessions", cwd=project).status == 0
    assert ids(project, "documents") != ids(other, "documents")
    # What is found here is what sessions here could find.
    (found,) = run("substrate", "search", "port", "--json", cwd=other).lines
    assert found["text"] == "Use port 9999."
    hits = run("substrate", "search", "port", "--everywhere", "--json", cwd=other).lines
    assert {hit["text"]: hit["projects"] for hit in hits} == {
        "Use port 9999.": [str(other)],
        "Use port 4711.": [str(project)],
    }
    bad = run("substrate", "commit", "-", cwd=other, stdin="{")
    assert (bad.status, '"chunks"' in bad.err) == (2, True)


def test_a_skill_of_another_folder_says_where_it_runs(project: Path) -> None:
    script = project / ".claude" / "skills" / "greet" / "scripts" / "hello.sh"
    script.parent.mkdir(parents=True)
    (script.parent.parent / "SKILL.md").write_text("---\nname: greet\ndescription: Greets.\n---\nSay hello.\n")
    script.write_text("echo hello\n")
    assert run("substrate", "run", "greet.hello", cwd=project).out == "hello\n"
    wrong = run("substrate", "run", "greet.hello", cwd=project / "docs")
    assert (wrong.status, f"belongs to the project in {project}" in wrong.err) == (2, True), wrong.err


def test_an_agent_runs_with_the_model_that_is_named(project: Path) -> None:
    (project / "s.json").write_text(json.dumps({"responses": [{"content": "It is 4711."}]}))
    intent = json.dumps({"intent": "Which port?", "crystal": f"scripted:{project}/s.json"})
    done = run("substrate", "run", "agent", intent, cwd=project)
    assert (done.status, done.out) == (0, "It is 4711.\n")
    process, loom = (part.strip() for part in done.err.splitlines()[-1].split(": "))
    shown = run("substrate", "tree", process, "--depth", "2", cwd=project).out
    assert "Which port? (relates)" in shown
    assert "answer" in shown
    assert run("loom", "check", loom, cwd=project).status == 0
    wrong = run("substrate", "run", "agent", '{"intent": "x", "crystal": "nobody:x"}', cwd=project)
    assert (wrong.status, "nobody" in wrong.out + wrong.err) == (1, True)


def test_the_engine_is_served_on_a_socket(project: Path, tmp_path: Path) -> None:
    add_program(project)
    path = tmp_path / "engine.sock"

    def ask(method: str, **params: object) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(client.makefile("rb").readline())
            return answer

    serve = [*CANTRIP, "substrate", "serve", "--socket", str(path), "--read", "documents"]
    server = processes.Popen(serve, cwd=project)
    try:
        while not path.exists():
            assert server.poll() is None
            time.sleep(0.02)
        documents = ids(project, "documents")
        (document,) = ask("scope", id=documents)["result"]["placed"]
        assert document["chunk"]["body"]["text"] == "Use port 4711."
        assert ask("scope", id=ids(project, "nested"))["error"]["code"] == -32001
        assert ask("commit", chunks=[{"id": "x", "name": "x"}])["error"]["code"] == -32001
        # The program is not among what may be read here.
        assert (
            "no chunk has the id or name 'count'"
            in ask("run", program="count", input={"path": "a"})["error"]["message"]
        )
        second = run("substrate", "serve", "--socket", path, cwd=project)
        assert (second.status, "another process serves it" in second.err) == (2, True)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
    assert not path.exists()


def test_names_that_are_not_utf8_or_very_long_stop_nothing(tmp_path: Path) -> None:
    folder = tmp_path / (os.fsdecode(b"\xff") + "w" * 220)
    for name in ("AGENTS.md", ".cantrip/culture/\udcff.md", "d\udcff/AGENTS.md", ".cantrip/skills/s\udcff/SKILL.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"Read me {len(name)}.\n")
    script = folder / ".cantrip/skills/s\udcff/scripts/run.sh"
    script.parent.mkdir()
    script.write_text("echo\n")
    found = run("substrate", "search", "Read me", "--json", cwd=folder)
    assert (found.status, found.err) == (0, "")
    assert sorted(hit["name"] for hit in found.lines) == [
        ".cantrip/culture/?.md", "AGENTS.md", "d?/AGENTS.md", "instructions",
    ]  # fmt: skip
