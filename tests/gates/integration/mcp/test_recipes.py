"""Servers in recipes: cast from the command line, refused where the recipe is not trusted, wrong ones told with their place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.recipes import recipe, trust
from cantrip_acp.recipes.build import build
from cantrip_acp.types.errors import RecipeError, UntrustedRecipe
from tests.support import processes

HEAD = """
crystal: {provider: scripted, responses: [
  {tool_calls: [{gate: tools.add, args: {a: 2, b: 3}}]},
  {tool_calls: [{gate: done, args: {answer: added}}]}]}
circle: {gates: [done], wards: [{max_turns: 3}]}
"""


def written(folder: Path, servers: str) -> Path:
    path = folder / "tools.cantrip.yaml"
    path.write_text(f"{HEAD}\nmcp_servers:\n{servers}\n")
    return path


def cast(path: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [
        sys.executable,
        "-m",
        "cantrip_acp.cli.main",
        "cast",
        str(path),
        "Add.",
        "--cwd",
        str(path.parent),
        *options,
    ]
    return processes.run(argv, capture_output=True, text=True, timeout=120, env={**os.environ, **env})


def test_a_cast_from_the_command_line_uses_a_server(program: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"  - {{name: tools, command: {sys.executable}, args: [{program}], start_s: 60}}")
    done = cast(path, "--json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert next(line for line in lines if line["event"] == "gate_result" and line["gate"] == "tools.add")["result"] == 5
    assert lines[-1]["result"] == "added"


def test_a_server_that_cannot_be_reached_is_named_on_the_terminal(tmp_path: Path) -> None:
    done = cast(written(tmp_path, "  - {name: broken, command: no-such-program-here}"))
    assert done.returncode == 0
    assert "MCP server 'broken' cannot be reached" in done.stdout + done.stderr


def test_variables_and_headers_come_from_the_environment_and_reach_no_record(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = f"  - {{name: tools, command: {sys.executable}, args: [{program}], env_names: [MY_TOKEN], start_s: 60}}"
    path = written(tmp_path, servers)
    path.write_text(path.read_text().replace("tools.add, args: {a: 2, b: 3}", "tools.variable, args: {name: MY_TOKEN}"))
    loom = tmp_path / "kept.loom.jsonl"
    done = cast(path, "--loom", str(loom), MY_TOKEN="a-very-secret-value-17")
    assert done.returncode == 0, done.stderr
    assert "a-very-secret-value-17" not in done.stdout + done.stderr + loom.read_text()
    assert "[redacted]" in loom.read_text()


@pytest.mark.parametrize(
    ("server", "told"),
    [
        ("{name: a}", "a server needs a command"),
        ("{name: a, command: x, url: 'http://h'}", "command and url cannot be used together"),
        ("{name: a, command: x, headers: {A: b}}", "headers can be used only with a url"),
        ("{name: a, url: 'http://h', args: [b]}", "args can be used only with a command"),
        ("{name: a, url: 'ftp://h'}", "http:// or https://"),
        ("{name: a, comand: x}", "comand"),
        ("{name: a, command: x, start_s: 0}", "start_s|above 0|greater"),
        ("{name: a, command: x, env_names: [NOT_SET_ANYWHERE]}", "variable NOT_SET_ANYWHERE is not set"),
        ("{name: '!!', command: x}", "no letter or digit"),
    ],
)
def test_a_wrong_server_is_told_with_its_place(tmp_path: Path, server: str, told: str) -> None:
    path = written(tmp_path, f"  - {server}")
    with pytest.raises(RecipeError, match=told) as caught:
        build.build(recipe.load(path), workspace=tmp_path)
    assert f"{path.name}:8:" in str(caught.value)


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ("{name: a, url: 'http://h'}", "over the network"),
        ("{name: a, command: x, sandbox: false}", "outside the sandbox"),
        ("{name: a, command: x, env_names: [HOME]}", "your variables"),
        ("{name: a, url: 'http://h', header_env: {A: HOME}}", "your variables"),
        ("{name: a, command: x, trusted: true}", "believed"),
        ("{name: a, command: /usr/bin/env}", "outside the workspace"),
        ("{name: a, command: ../x}", "outside the workspace"),
    ],
)
def test_what_only_a_trusted_recipe_may_have(tmp_path: Path, server: str, why: str) -> None:
    folder = tmp_path / ".cantrip"
    folder.mkdir()
    found = recipe.load(written(folder, f"  - {server}"))
    with pytest.raises(UntrustedRecipe, match=why):
        trust.require(found, tmp_path, tmp_path / "state")


def test_a_server_in_the_sandbox_needs_no_trust(tmp_path: Path) -> None:
    folder = tmp_path / ".cantrip"
    folder.mkdir()
    harmless: list[Any] = ["{name: a, command: npx, args: [server]}", "{name: a, command: ./tools/serve, env: {A: b}}"]
    for server in harmless:
        trust.require(recipe.load(written(folder, f"  - {server}")), tmp_path, tmp_path / "state")


def trusting(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cantrip_acp.cli.main", "trust", "--state-dir", str(state), *words]
    return processes.run(argv, capture_output=True, text=True, timeout=60)


def test_a_command_is_trusted_by_exactly_its_words(tmp_path: Path) -> None:
    ledger = trust.Ledger(tmp_path)
    workspace = tmp_path / "project"
    workspace.mkdir()
    ledger.grant(workspace)
    said = trusting(tmp_path, "--mcp", "--yes", "--", "npx", "-y", "a server")
    assert said.stdout.endswith("may run outside the sandbox as an MCP server: npx -y 'a server'\n")
    assert ledger.trusts_command(["npx", "-y", "a server"])
    assert not ledger.trusts_command(["npx", "-y", "a", "server"])
    assert not ledger.trusts_command(["npx", "-y"])
    assert ledger.state(workspace) == "trusted"
    assert "MCP server: npx -y 'a server'" in trusting(tmp_path, "--list").stdout
    assert trusting(tmp_path, "--mcp", "--revoke", "--", "npx", "-y", "a server").stdout.startswith("no longer trusted")
    assert not ledger.trusts_command(["npx", "-y", "a server"])
    assert trusting(tmp_path, "--mcp").returncode == 2
    assert trusting(tmp_path, "one", "two").returncode == 2
