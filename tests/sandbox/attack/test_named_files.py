"""What a recipe names: the sandbox cannot replace what the host will run, and a recipe reads no hidden file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.gates.mcp.declaration import McpServer
from cantrip_acp.gates.mcp.servers import McpServers
from cantrip_acp.gates.wards import Wards
from cantrip_acp.recipes.trust import Ledger
from tests.sandbox.attack.attack_scene import Scene
from tests.support.command_line import Done, run

SERVER = """#!/usr/bin/env python3
import answers
from mcp.server.mcpserver import MCPServer

server = MCPServer("mine")


@server.tool()
def ask() -> str:
    "Ask."
    return answers.TEXT


server.run()
"""


def server(scene: Scene, folder: str = "tools") -> None:
    place = scene.workspace / folder
    place.mkdir(exist_ok=True)
    (place / "serve.py").write_text(SERVER.replace("/usr/bin/env python3", sys.executable))
    (place / "serve.py").chmod(0o755)
    (place / "answers.py").write_text("TEXT = 'kind'\n")


def recipe(
    scene: Scene, words: str, *turns: str, name: str = "mine", medium: str = "bash", gates: str = "[done]"
) -> Path:
    responses = "".join(f"\n    - {turn}" for turn in turns)
    path = scene.workspace / f".cantrip/{name}.cantrip.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f"crystal:\n  provider: scripted\n  responses:{responses}\n"
        f"circle: {{medium: {medium}, gates: {gates}, wards: [{{max_turns: 8}}, {{bash_writable_paths: [workspace]}}]}}\n"
        f"{words}\n"
    )
    return path


def trust(scene: Scene) -> None:
    Ledger(Path(os.environ["CANTRIP_STATE_DIR"])).grant(scene.workspace)


def cast(scene: Scene, name: str = "mine") -> Done:
    return run("cast", name, "go", "--loom", scene.base / "l.loom.jsonl", "--json", cwd=scene.workspace, timeout=90)


WAYS = {
    "command": "mcp_servers: [{name: mine, command: ./tools/serve.py, sandbox: false}]",
    "argument": f"mcp_servers: [{{name: mine, command: {sys.executable}, args: [tools/serve.py], sandbox: false}}]",
    "shell": "mcp_servers: [{name: mine, command: sh, args: [-c, 'exec ./tools/serve.py'], sandbox: false}]",
}
EVIL = (
    "printf '#!/bin/sh\\ntouch @BESIDE@/ran\\n' > new; chmod 755 new; cp new tools/serve.py; mv new tools/serve.py;"
    "ln -sf ../new tools/serve.py; rm -f tools/serve.py; mv tools old; mkdir tools; cp new tools/serve.py;"
    "echo 'import os; os.system(\\\"touch @BESIDE@/ran\\\")' > tools/answers.py; tee -a tools/serve.py < new"
)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_command_does_not_replace_a_server_of_the_host(way: str, scene: Scene) -> None:
    server(scene)
    recipe(scene, way, f'bash: "{scene.fill(EVIL)}"', "bash: cantrip_mine_ask", "bash: cantrip_done x")
    trust(scene)
    before = {path: path.read_text() for path in (scene.workspace / "tools").iterdir() if path.is_file()}
    for _ in range(2):
        done = cast(scene)
        assert done.status == 0, done
        assert "kind" in done.out
        assert "protected here, because the recipe mine.cantrip.yaml names it" in done.out
    assert {path: path.read_text() for path in (scene.workspace / "tools").iterdir() if path.is_file()} == before
    assert not (scene.beside / "ran").exists()


def test_a_command_of_another_recipe_does_not_either(scene: Scene) -> None:
    server(scene)
    recipe(scene, WAYS["command"], "bash: cantrip_done x")
    recipe(scene, "", f'bash: "{scene.fill(EVIL)}"', "bash: cantrip_done x", name="other")
    trust(scene)
    assert cast(scene, "other").status == 0
    assert (scene.workspace / "tools/answers.py").read_text() == "TEXT = 'kind'\n"
    done = run("sandbox", "run", "--writable", ".", "--", "bash", "-c", "echo x > tools/serve.py", cwd=scene.workspace)
    assert done.status != 0
    assert (scene.workspace / "tools/serve.py").read_text().startswith("#!")


def test_a_program_that_is_missing_is_not_made(scene: Scene) -> None:
    (scene.workspace / "tools").mkdir()
    recipe(scene, WAYS["command"], "bash: cantrip_done x")
    recipe(scene, "", f'bash: "{scene.fill(EVIL)}; true"', "bash: cantrip_done x", name="other")
    trust(scene)
    assert cast(scene, "other").status == 0
    assert not (scene.workspace / "tools/serve.py").exists()
    assert Ledger(Path(os.environ["CANTRIP_STATE_DIR"])).state(scene.workspace) == "trusted"


@pytest.mark.parametrize("path", ["tools/serve.py", "tools/answers.py", "prompt.md", "tools/../prompt.md"])
def test_a_gate_does_not_write_what_a_recipe_names(path: str, scene: Scene) -> None:
    server(scene)
    (scene.workspace / "prompt.md").write_text("Be kind.\n")
    write = json.dumps({"gate": "write_file", "args": {"path": path, "content": "evil"}})
    recipe(
        scene, WAYS["command"] + "\ncall: {system_prompt_file: ../prompt.md}", f"{{tool_calls: [{write}]}}", "content: x",
        medium="conversation", gates="[done, write_file]",
    )  # fmt: skip
    trust(scene)
    done = cast(scene)
    assert "because the recipe mine.cantrip.yaml names it" in done.out
    assert "evil" not in (scene.workspace / path).read_text()
    # The control: what nobody names is written.
    assert run("sandbox", "run", "--writable", ".", "--", "touch", "plain", cwd=scene.workspace).status == 0
    assert (scene.workspace / "plain").exists()


@pytest.mark.parametrize("file", ["tools/serve.py", "tools/answers.py"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_change_of_a_server_asks_again(way: str, file: str, scene: Scene) -> None:
    server(scene)
    recipe(scene, way, "bash: cantrip_done x")
    trust(scene)
    assert cast(scene).status == 0
    with open(scene.workspace / file, "a") as changed:
        changed.write(f"open({str(scene.beside / 'ran')!r}, 'w')\n")
    done = cast(scene)
    assert done.status != 0
    assert "not trusted" in done.err + done.out
    assert not (scene.beside / "ran").exists()


def test_a_writable_folder_is_not_made(scene: Scene) -> None:
    before = scene.picture()
    words = ("sandbox", "run", "--writable", "typo/lib", "--writable", scene.beside / "none", "--", "true")
    done = run(*words, cwd=scene.workspace)
    assert done.status != 0
    assert "typo/lib does not exist. Make the folder (mkdir -p" in done.err
    for medium, ward in (("bash", "bash_writable_paths"), ("code", "code_writable_paths")):
        path = scene.workspace / "r.cantrip.yaml"
        path.write_text(
            f"crystal: {{provider: scripted, responses: [{{{'bash' if medium == 'bash' else 'code'}: 'x'}}, {{content: x}}]}}\n"
            f"circle: {{medium: {medium}, gates: [done], wards: [{{max_turns: 2}}, {{{ward}: [typo/lib]}}]}}\n"
        )
        done = run("cast", path, "go", "--loom", scene.base / "l.loom.jsonl", cwd=scene.workspace)
        path.unlink()
        assert done.status != 0
        assert "typo/lib does not exist. Make the folder" in done.err + done.out
    assert {each: text for each, text in scene.picture().items() if "l.loom" not in each} == before


async def test_a_server_of_an_editor_is_not_replaced(scene: Scene) -> None:
    """As one that an editor names, or a program: no recipe does."""
    server(scene)
    circle = Circle(
        "bash", ["done"], Wards.of({"max_turns": 3, "bash_writable_paths": ["workspace"]}, base=scene.workspace),
        workspace=scene.workspace,
    )  # fmt: skip
    named = McpServers([McpServer(name="mine", command="./tools/serve.py", sandboxed=False)])
    crystal = ScriptedCrystal(
        [{"bash": scene.fill(EVIL).replace('\\"', '"')}, {"bash": "cantrip_mine_ask"}, {"content": "x"}]
    )
    made = Cantrip(crystal, Call(), circle, loom=Loom.memory(), sources=(named,))
    await made.cast("go")
    assert made.loom is not None
    outputs = [turn.observation.output for turn in made.loom.turns() if turn.observation.output is not None]
    assert "serve.py is protected here, because the MCP server mine names it" in outputs[0].stderr
    assert outputs[1].stdout.strip() == "kind"
    assert (scene.workspace / "tools/serve.py").read_text().startswith("#!")


# Hidden files


def _git(scene: Scene) -> None:
    scene.repository(credential=True)


HIDDEN = {
    "an environment file": ".env",
    "a key": "sub/deep/id_ed25519",
    "the settings of git": ".git/config",
    "a way around": "sub/../.env",
    "a link": "link.md",
    "a link to a link": "second.md",
    "a link with a name of secrets": "sub/.env.local",
    "another case": ".ENV",
    "a folder that is a link": "way/.env.production",
}
KEYS = {
    "prompt": "call: {system_prompt_file: ../@PATH@}",
    "script": "crystal: {provider: scripted, script: ../@PATH@}",
    "schema": "result_schema: ../@PATH@",
}


@pytest.mark.parametrize("path", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_recipe_reads_no_hidden_file(key: str, path: str, scene: Scene) -> None:
    scene.repository(credential=True)
    work = scene.workspace
    (work / "link.md").symlink_to(".env")
    (work / "second.md").symlink_to("link.md")
    (work / "sub/.env.local").symlink_to("plain.txt")
    (work / "way").symlink_to("sub")
    (work / ".ENV").write_text(f"TOKEN={scene.secret}\n")
    (work / ".cantrip").mkdir()
    plain = "" if key.startswith("crystal") else "crystal: {provider: scripted, responses: [{content: x}]}\n"
    (work / ".cantrip/e.cantrip.yaml").write_text(
        f"{plain}{key.replace('@PATH@', path)}\ncircle: {{gates: [done], wards: [{{max_turns: 1}}]}}\n"
    )
    loom = scene.base / "l.loom.jsonl"
    done = run("cast", "e", "go", "--loom", loom, cwd=work)
    assert done.status == 2, done
    assert "not allowed, because the recipe is not trusted" in done.err
    assert scene.secret not in done.out + done.err
    assert not loom.exists() or scene.secret not in loom.read_text()


def test_a_recipe_reads_its_own_prompt(scene: Scene) -> None:
    """The control: a plain file needs no trust, and with the user's trust a hidden one is read."""
    (scene.workspace / ".cantrip").mkdir()
    for prompt in ("README.md", ".env"):
        (scene.workspace / ".cantrip/e.cantrip.yaml").write_text(
            "crystal: {provider: scripted, responses: [{content: x}]}\n"
            f"call: {{system_prompt_file: ../{prompt}}}\ncircle: {{gates: [done], wards: [{{max_turns: 1}}]}}\n"
        )
        if prompt == ".env":
            trust(scene)
        assert run("cast", "e", "go", "--loom", scene.base / "l.loom.jsonl", cwd=scene.workspace).status == 0
