"""Gates from programs, skills and agents: real casts of recipes, with real sandboxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import ScriptedCrystal
from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.core.entity import Entity
from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.loom.loom import Loom
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.substrate.chunks import Change, NewChunk, NewPlacement, Spec
from cantrip_acp.substrate.engine.program_gates import gate_name
from cantrip_acp.substrate.projects import Project, create, session_id
from cantrip_acp.substrate.recorder import flush
from cantrip_acp.substrate.substrate import Substrate, shared_substrate
from cantrip_acp.substrate.types import AGENT, of_type

pytestmark = pytest.mark.anyio

SKILL = """\
---
name: word-count
description: Counts the words of a text file.
---
# How

Run the script with the file's name.
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    return folder


@pytest.fixture
def substrate(state: Path, workspace: Path) -> Substrate:
    state.mkdir()
    opened = shared_substrate(state / "substrate.db")
    create(opened, workspace)
    return opened


def cantrip(
    workspace: Path, state: Path, crystal: Crystal, loom: Loom, *, wards: str = "{max_turns: 9}, {max_depth: 3}"
) -> Cantrip:
    file = workspace.parent / "r.cantrip.yaml"
    file.write_text(
        f"call: {{system_prompt: Help.}}\ncircle: {{gates: [done], wards: [{wards}]}}\n"
        "memory: {culture: true, programs: true}\n"
    )
    return build(load(file, state_dir=state), workspace=workspace, loom=loom, crystal=crystal)


def call(gate: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args}]}


def pin(substrate: Substrate, workspace: Path, chunk: str) -> None:
    substrate.commit(Change(placements=[NewPlacement(chunk, Project.of(workspace).pins, "relates")]), author="user")


def results(entity: Entity) -> list[Any]:
    """The results of the gates that were called, as the crystal saw them."""
    return [message.content for message in entity.context.messages if message.role == "tool"]


async def test_a_program_is_a_gate_with_the_schema_of_its_types(
    substrate: Substrate, workspace: Path, state: Path
) -> None:
    schema = {
        "operation": {"type": "string", "enum": ["read", "write", "edit", "glob", "grep"]},
        "path": {"type": "string", "description": "File or directory path"},
    }
    program = {"text": "Read and write files", "executable": "./filesystem", "runtime": "vm"}
    view = {"text": "Shown to people", "executable": "./view", "runtime": "view"}
    chunks = [
        NewChunk("filesystem", "filesystem", Spec(True, accepts=("fs-command",)), program),
        NewChunk("fs-command", "fs-command", Spec(required=("operation", "path")), {"text": "…", "schema": schema}),
        NewChunk("shown", "shown", Spec(True), view),
        NewChunk("elsewhere", "elsewhere", Spec(True), program),
    ]
    placements = [of_type("program", each) for each in ("filesystem", "shown", "elsewhere")]
    placements.append(NewPlacement("fs-command", "filesystem", "relates"))
    substrate.commit(Change(chunks, placements), author="user")
    for each in ("filesystem", "shown"):
        pin(substrate, workspace, each)
    (workspace / "filesystem").write_text('#!/bin/sh\necho "$CANTRIP_INPUT"\n')
    (workspace / "filesystem").chmod(0o755)
    crystal = ScriptedCrystal(
        [
            call("filesystem", operation="read", path="/foo"),
            call("filesystem", operation="burn", path="/foo"),
            call("done", answer="ok"),
        ]
    )
    with Loom.memory() as loom:
        async with cantrip(workspace, state, crystal, loom).invoke() as entity:
            await entity.cast("Go.")
            gates = entity.circle.gates
            assert {"filesystem", "recall", "add_scope", "done"} == set(gates)
            assert gates["filesystem"].description.startswith("Read and write files\n")
            assert gates["filesystem"].record()["parameters"] == {
                "type": "object",
                "properties": schema,
                "required": ["operation", "path"],
                "additionalProperties": False,
            }
            first, second = results(entity)[:2]
    found = json.loads(first)
    assert json.loads(found["text"]) == {"operation": "read", "path": "/foo"}
    process = substrate.chunk(found["process"])
    assert (process.body["state"], process.body["program"]) == ("ended", "filesystem")
    assert "burn" in second, "the schema of the type is the gate's"


async def test_skills_are_knowledge_and_programs(substrate: Substrate, workspace: Path, state: Path) -> None:
    folder = workspace / ".claude" / "skills" / "count"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    (folder / "scripts" / "count.py").write_text("import sys\nprint(len(open(sys.argv[1]).read().split()))\n")
    (folder / "scripts" / "notes.txt").write_text("no program")
    (workspace / "a.txt").write_text("one two three")
    script = [
        call("word-count.count", args=["a.txt"]),
        call("recall", query="counts words"),
        call("add_scope", scope="word-count"),
        call("done", answer="3"),
    ]
    with Loom.memory() as loom:
        async with cantrip(workspace, state, ScriptedCrystal(script), loom).invoke() as entity:
            await entity.cast("How many words?")
            counted, recalled, _, _ = results(entity)
            known = next(each.content for each in entity.context.messages if each.kind == "knowledge")
    assert json.loads(counted)["text"] == "3\n"
    (skill, *_) = [each["scope"] for each in json.loads(recalled) if each["name"] == "word-count"]
    source = "source: repository:.claude/skills/count/SKILL.md"
    assert f"## word-count (instance) · {source}\nCounts the words of a text file." in known
    assert f"# instructions (instance) · {source}\n" in known
    assert "Run the script with the file's name." in known
    # What is gone from the folder is gone from the next session; its history stays.
    (folder / "SKILL.md").unlink()
    with Loom.memory() as loom:
        async with cantrip(workspace, state, ScriptedCrystal([call("done", answer="")]), loom).invoke() as entity:
            await entity.cast("And now?")
            assert "word-count.count" not in entity.circle.gates
    assert substrate.chunk(skill).name == "word-count"
    assert [each.chunk.id for each in substrate.scope(Project.of(workspace).skills).placed] == []


async def test_an_agent_reads_less_and_its_parent_reads_its_session(
    substrate: Substrate, workspace: Path, state: Path
) -> None:
    (workspace / "AGENTS.md").write_text("Secret of the parent: walrus.")
    project = Project.of(workspace)
    substrate.put(NewChunk("notes", "notes", Spec(), {"text": "The port is 4000."}), project.culture)
    pin(substrate, workspace, AGENT)
    child = [
        call("recall", query="walrus"),
        call("add_scope", scope=project.documents),
        call("done", answer="The port is 4000, says the note."),
    ]
    parent = [call("agent", intent="Which port?", scopes=["notes"]), call("done", answer="4000")]
    with Loom.memory() as loom:
        crystal = ScriptedCrystal(parent, children=[child])
        async with cantrip(workspace, state, crystal, loom).invoke() as entity:
            await entity.cast("Ask an agent.")
            answered = json.loads(results(entity)[0])
        turns = [turn for turn in loom.turns() if turn.entity_id != entity.id]
        knowledge = [
            each.text
            for each in loom.records()
            if getattr(each, "source", "") == "knowledge" and each.entity_id == turns[0].entity_id
        ]
    assert answered["text"] == "The port is 4000, says the note."
    assert len(knowledge) == 1
    assert "The port is 4000." in knowledge[0]
    assert "walrus" not in knowledge[0]
    searched, refused = (
        turn.observation.results[0].result for turn in turns if turn.role == "crystal" and turn.sequence < 3
    )
    assert searched == []
    assert "inside the read boundary" in str(refused)
    assert substrate.refusals()[0].author == answered["process"]
    # The parent scopes into the process, and finds the session of the agent.
    flush(state / "substrate.db")
    process = substrate.scope(answered["process"])
    placed = {each.chunk.id for each in process.placed}
    assert session_id(turns[0].entity_id) in placed
    names = [each.chunk.name for each in substrate.scope(session_id(turns[0].entity_id)).placed]
    assert names[0] == "prompt"
    assert "recall" in names


async def test_an_agent_has_any_crystal_and_three_are_the_deepest(
    substrate: Substrate, workspace: Path, state: Path
) -> None:
    pin(substrate, workspace, AGENT)
    below = workspace.parent / "below.json"
    deeper = [call("agent", intent="Deeper.", crystal=f"scripted:{below}"), call("done", answer="back")]
    below.write_text(json.dumps({"responses": deeper}))
    script = [
        call("agent", intent="Deeper.", crystal=f"scripted:{below}"),
        call("agent", intent="Go.", crystal="nobody:nothing"),
        call("done", answer="ok"),
    ]
    with Loom.memory() as loom:
        made = cantrip(workspace, state, ScriptedCrystal(script), loom, wards="{max_turns: 9}, {max_depth: 5}")
        async with made.invoke() as entity:
            await entity.cast("Go down.")
            first, second = results(entity)[:2]
        entities = {turn.entity_id for turn in loom.turns()}
        said = [str(each.result) for turn in loom.turns() for each in turn.observation.results if each.gate == "agent"]
    assert json.loads(first)["text"] == "back"
    assert "nobody" in second
    assert len(entities) == 4
    assert sum("agents run at most 3 deep inside each other" in each for each in said) == 1


def test_names_of_gates() -> None:
    names = {"a b": "a_b", "pdf.extract": "pdf.extract", "3d": "_3d", "é!": "_", "x..y": "x_y", "-a-": "a"}
    assert {name: gate_name(name) for name in names} == names
