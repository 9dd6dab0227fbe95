"""The looms and tuple databases that a process has open: no command, cell, gate, child or server of its own reaches them.

They lie in the workspace, all of which may be written, under the names that the documentation uses.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.files import guarded
from cantrip_acp.sandbox import Sandbox, SandboxOptions
from cantrip_acp.tuplespace.errors import SpaceError
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.stores.base import BATCH_LANE
from cantrip_acp.tuplespace.tuples import Pattern
from cantrip_acp.types.errors import LoomError
from tests.sandbox.attack.attack_scene import Scene
from tests.support.command_line import Done, run, start

ATTACK = """
import os, sqlite3
for name in @NAMES@:
    try:
        with open(name, "rb") as file:
            said = file.read(16)
        if said.startswith((b"SQLite format", b'{"type":"loom"')):
            print("REA" + "CHED", name)
    except OSError:
        pass
    try:
        base = sqlite3.connect(name)
        for (n,) in list(base.execute("select name from sqlite_master where type='trigger'")):
            base.execute(f'drop trigger "{n}"')
        base.execute("update queue set state='done' where state='waiting'")
        base.commit()
    except sqlite3.Error:
        pass
    many = {"s.loom.jsonl": 1, "work.db": 4}.get(name, 5)
    for ending in ("", "-wal", "-shm", "-journal", "-casts")[:many]:
        for attack in (
            lambda path: open(path, "wb").write(b"evil"), os.unlink, lambda path: os.rename(path, "gone"),
            lambda path: os.replace("evil", path), lambda path: os.link(path, "second" + ending),
            lambda path: os.symlink("evil", path), os.mkdir,
        ):
            try:
                open("evil", "w").write("evil")
                attack(name + ending)
                print("REA" + "CHED", name + ending, attack)
            except OSError:
                pass
print("TRI" + "ED")
"""


def attack(*names: str) -> str:
    return ATTACK.replace("@NAMES@", repr(names))


def recipe(
    scene: Scene, *turns: str, names: tuple[str, ...] = (), medium: str = "bash", gates: str = "[done]", more: str = ""
) -> Path:
    path = scene.workspace / "r.cantrip.yaml"
    ward = "code_writable_paths" if medium == "code" else "bash_writable_paths"
    responses = "".join(f"\n    - {turn}" for turn in turns)
    path.write_text(
        f"crystal:\n  provider: scripted\n  responses:{responses}\n"
        f"circle: {{medium: {medium}, gates: {gates}, wards: [{{max_turns: 8}}, {{{ward}: [workspace]}}]}}\n{more}\n"
    )
    (scene.workspace / "attack.py").write_text(attack(*names))
    (scene.workspace / "i.jsonl").write_text('"one"\n"two"\n')
    return path


def intact(scene: Scene) -> None:
    """Everything is as the product wrote it, and nothing is left beside it."""
    work = scene.workspace
    if (work / "work.db").exists():
        with contextlib.closing(sqlite3.connect(work / "work.db")) as base:
            (triggers,) = base.execute("select count(*) from sqlite_master where type='trigger'").fetchone()
            assert triggers > 3
        store = open_store(work / "work.db")
        try:
            found, _ = store.after("", Pattern())
            # Beside the casts there is the log of the batch.
            assert [each.state for each in found if each.work.lane != BATCH_LANE] == ["done", "done"]
            assert all(store.receipts(each.work.id) for each in found)
        finally:
            store.close()
    for name in ("sqlite:work.loom.db", "s.loom.jsonl"):
        if (work / name.removeprefix("sqlite:")).exists():
            done = run("loom", "check", name, cwd=work)
            assert done.status == 0, done
    assert not list(work.glob("*-journal"))
    assert not [each for each in work.iterdir() if each.name.startswith("second")]


def shown(scene: Scene) -> str:
    """What the attacks of the loom's casts printed."""
    with Loom.open(f"sqlite:{scene.workspace}/work.loom.db", readonly=True) as loom:
        outputs = [turn.observation.output for turn in loom.turns() if turn.role == "crystal"]
        return "".join(each.stdout for each in outputs if each is not None)


def reached(done: Done) -> None:
    assert "REACHED" not in done.out, done.out


BASH = ("bash: python3 attack.py", "bash: cantrip_done x")
CODE = ("code: exec(open('attack.py').read(), {})", "code: done('x')")


@pytest.mark.parametrize(("medium", "turns"), [("bash", BASH), ("code", CODE)], ids=["bash", "code"])
@pytest.mark.parametrize("loom", ["s.loom.jsonl", "sqlite:work.loom.db"])
def test_a_cast_does_not_reach_its_loom(medium: str, turns: tuple[str, ...], loom: str, scene: Scene) -> None:
    path = recipe(scene, *turns, medium=medium, names=(loom.removeprefix("sqlite:"),))
    for _ in range(2):
        done = run("cast", path, "go", "--loom", loom, "--json", cwd=scene.workspace)
        assert done.status == 0, done
        assert "TRIED" in done.out
        reached(done)
    intact(scene)


@pytest.mark.parametrize(("medium", "turns"), [("bash", BASH), ("code", CODE)], ids=["bash", "code"])
def test_a_batch_does_not_reach_its_queue(medium: str, turns: tuple[str, ...], scene: Scene) -> None:
    path = recipe(scene, *turns, *turns, medium=medium, names=("work.db", "work.loom.db"))
    words = ["cast-batch", path, "i.jsonl", "--space", "work.db", "--loom", "sqlite:work.loom.db", "--concurrency", "1"]
    done = run(*words, "--json", cwd=scene.workspace, timeout=120)
    assert done.status == 0, done
    said = shown(scene)
    assert said.count("TRIED") == 2
    assert "REACHED" not in said
    intact(scene)


def test_a_worker_does_not_reach_its_queue(scene: Scene) -> None:
    """The commands of docs/tuples.md."""
    path = recipe(scene, *BASH, *BASH, names=("work.db", "work.loom.db"))
    words = ["worker", path, "--space", "work.db", "--loom", "sqlite:work.loom.db", "--lane", "x"]
    worker = start(*words, cwd=scene.workspace)
    try:
        batch = ["cast-batch", path, "i.jsonl", "--space", "work.db", "--lane", "x", "--json"]
        done = run(*batch, cwd=scene.workspace, timeout=120)
    finally:
        worker.terminate()
        worker.communicate(timeout=60)
    assert done.status == 0, done
    said = shown(scene)
    assert said.count("TRIED") == 2
    assert "REACHED" not in said
    intact(scene)


@pytest.mark.parametrize(
    "call",
    [
        {"gate": "read_file", "args": {"path": "s.loom.jsonl"}},
        {"gate": "write_file", "args": {"path": "s.loom.jsonl", "content": "evil"}},
        {"gate": "write_file", "args": {"path": "sub/../s.loom.jsonl.index", "content": "evil"}},
        {"gate": "edit_file", "args": {"path": "link", "old_text": "loom", "new_text": "evil"}},
        {"gate": "search", "args": {"pattern": "You greet nobody"}},
    ],
    ids=lambda call: call["gate"],
)
def test_a_gate_does_not_reach_the_loom(call: dict[str, object], scene: Scene) -> None:
    (scene.workspace / "link").symlink_to("s.loom.jsonl")
    path = recipe(
        scene, f"{{tool_calls: [{json.dumps(call)}]}}", "content: x", medium="conversation",
        gates="[done, read_file, write_file, edit_file, search]",
    )  # fmt: skip
    (scene.workspace / "r.cantrip.yaml").write_text(path.read_text() + "call: {system_prompt: You greet nobody}\n")
    done = run("cast", path, "go", "--loom", "s.loom.jsonl", "--json", cwd=scene.workspace)
    assert done.status == 0, done
    if call["gate"] == "search":
        rows = "".join(line for line in done.out.splitlines() if '"gate_result"' in line)
        assert "r.cantrip.yaml" in rows
        assert "s.loom.jsonl" not in rows
    else:
        assert "is open in this program, which keeps its records there, and is hidden" in done.out
    intact(scene)


def test_a_child_does_not_reach_the_loom(scene: Scene) -> None:
    path = recipe(
        scene, "bash: cantrip_call_agent --intent attack", "bash: cantrip_done x", names=("s.loom.jsonl",),
        gates="[done, call_agent]",
    )  # fmt: skip
    child = "\n  children:\n    - responses:\n      - bash: python3 attack.py\n      - bash: cantrip_done x\ncircle:"
    path.write_text(path.read_text().replace("\ncircle:", child, 1))
    done = run("cast", path, "go", "--loom", "s.loom.jsonl", "--json", cwd=scene.workspace, timeout=90)
    assert done.status == 0, done
    assert "TRIED" in done.out, done.out
    reached(done)
    intact(scene)


def test_a_server_in_the_sandbox_does_not_reach_the_loom(scene: Scene) -> None:
    (scene.workspace / "serve.py").write_text(
        "from mcp.server.mcpserver import MCPServer\nimport contextlib, io\nserver = MCPServer('mine')\n\n\n"
        "@server.tool()\ndef attack() -> str:\n    'Attack.'\n    said = io.StringIO()\n"
        "    with contextlib.redirect_stdout(said):\n        exec(open('attack.py').read(), {})\n    return said.getvalue()\n\n\n"
        "server.run()\n"
    )
    import sys

    path = recipe(
        scene, "bash: cantrip_mine_attack", "bash: cantrip_done x", names=("s.loom.jsonl",),
        more=f"mcp_servers: [{{name: mine, command: {sys.executable}, args: [serve.py]}}]",
    )  # fmt: skip
    done = run("cast", path, "go", "--loom", "s.loom.jsonl", "--json", cwd=scene.workspace, timeout=90)
    assert done.status == 0, done
    assert "TRIED" in done.out, done.out
    reached(done)
    intact(scene)


def options(scene: Scene) -> SandboxOptions:
    return SandboxOptions(bash_writable_paths=(str(scene.workspace),))


async def test_a_loom_that_is_opened_later_is_hidden_from_later_commands(scene: Scene) -> None:
    box = Sandbox(options(scene), scene.workspace, host=scene.host)
    (scene.workspace / "attack.py").write_text(attack("s.loom.jsonl", "work.loom.db"))
    assert "TRIED" in (await box.run("python3 attack.py; rm -rf work* s.loom* second* evil gone")).stdout
    with Loom.open(scene.workspace / "s.loom.jsonl"), Loom.open(f"sqlite:{scene.workspace}/work.loom.db"):
        outcome = await box.run("python3 attack.py")
        assert "TRIED" in outcome.stdout
        assert "REACHED" not in outcome.stdout
    # The control: once they are closed, they are files like others.
    assert "REACHED work.loom.db" in (await box.run("python3 attack.py")).stdout


async def test_a_loom_is_not_opened_where_cells_write(scene: Scene) -> None:
    crystal = ScriptedCrystal([{"code": "x = 1"}, {"content": "x"}, {"code": "print(x)"}, {"content": "x"}])
    made = Cantrip(
        crystal,
        Call(),
        Circle("code", ["done"], {"max_turns": 4, "code_writable_paths": ["."]}, workspace=scene.workspace),
        loom=Loom.memory(),
    )
    async with made.invoke() as entity:
        await entity.cast("go")
        for open_it in (
            lambda: Loom.open(scene.workspace / "s.loom.jsonl"),
            lambda: Loom.open(f"sqlite:{scene.workspace}/work.loom.db"),
            lambda: open_store(scene.workspace / "work.db"),
        ):
            with pytest.raises((LoomError, SpaceError), match=r"cannot open .*may write .*Open it before they start"):
                open_it()
        assert not [each for each in scene.workspace.iterdir() if each.name.startswith(("s.loom", "work"))]
        Loom.open(scene.beside / "s.loom.jsonl").close()
    Loom.open(scene.workspace / "s.loom.jsonl").close()


@pytest.mark.parametrize("name", ["s.loom.jsonl", "sqlite:work.loom.db", "work.db"])
def test_a_second_name_from_earlier_is_refused(name: str, scene: Scene) -> None:
    """A command of an earlier session made it, when the file was not open."""
    import os

    def open_it() -> None:
        place = f"{scene.workspace}/{name.removeprefix('sqlite:')}"
        if name == "work.db":
            open_store(place).close()
            return
        with Loom.open(f"sqlite:{place}" if "sqlite" in name else place) as loom:
            from cantrip_acp.types.records import CantripRecord

            if not list(loom.turns()):
                loom.append(CantripRecord("c", {"system_prompt": "x"}, {}))

    open_it()
    os.link(scene.workspace / name.removeprefix("sqlite:"), scene.workspace / "second")
    with pytest.raises((LoomError, SpaceError), match="second name"):
        open_it()
    assert not guarded.is_held(str(scene.workspace / name.removeprefix("sqlite:")))
