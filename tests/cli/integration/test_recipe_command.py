"""`cantrip recipe` and `cantrip trust`."""

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

from cantrip_acp import Circle, DefinitionError
from cantrip_acp.core import exports
from cantrip_acp.recipes import cache
from tests.support.command_line import GREETER, recipe, run


def test_new_writes_what_checks_and_casts(tmp_path: Path) -> None:
    done = run("recipe", "new", "greeter", cwd=tmp_path)
    assert done.status == 0, done.err
    (path,) = (tmp_path / ".cantrip").iterdir()
    assert path.name == ("greeter.cantrip.yaml")
    assert run("recipe", "check", ".", cwd=tmp_path).status == 0
    cast = run("cast", "greeter", "Say hello.", "--json", cwd=tmp_path)
    assert cast.lines[-1]["result"] == "Hello from your recipe."
    shown = json.loads(run("recipe", "show", "greeter", "--json", cwd=tmp_path).out)
    assert shown["name"] == "greeter"
    assert "NAME" not in path.read_text()


@pytest.mark.parametrize("name", ["true", "12", "with space", 'a"b', "a: b", "ünïcode"])
def test_new_takes_odd_names(tmp_path: Path, name: str) -> None:
    assert run("recipe", "new", name, cwd=tmp_path).status == 0
    assert run("recipe", "check", ".cantrip", cwd=tmp_path).status == 0
    assert json.loads(run("recipe", "show", name, "--json", cwd=tmp_path).out)["name"] == name


def test_check_shows_no_key_that_stands_in_the_wrong_place(tmp_path: Path) -> None:
    key = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"
    recipe(
        tmp_path, f"name: x\ncrystal: {key}\ncircle: {{gates: [done], wards: [{{max_turns: 2}}]}}\n", "x.cantrip.yaml"
    )
    for flags in ([], ["--json"]):
        done = run("recipe", "check", "x.cantrip.yaml", *flags, cwd=tmp_path)
        assert done.status == 2
        assert "unknown provider '[redacted]'" in done.out
        assert key not in done.out + done.err


def test_new_writes_over_nothing(tmp_path: Path) -> None:
    path = recipe(tmp_path, "mine", ".cantrip/greeter.cantrip.yaml")
    done = run("recipe", "new", "greeter", cwd=tmp_path)
    assert done.status == 2
    assert "exists already" in done.err
    assert path.read_text() == "mine"
    assert run("recipe", "new", "greeter", "--force", cwd=tmp_path).status == 0
    assert run("recipe", "new", "./x.txt", cwd=tmp_path).status == 2
    assert run("recipe", "new", "sub/y.cantrip.yaml", cwd=tmp_path).status == 0
    assert run("recipe", "check", "sub/y.cantrip.yaml", cwd=tmp_path).status == 0
    printed = run("recipe", "new", "-", cwd=tmp_path)
    assert "circle:" in printed.out


OLD = """\
# A recipe of an earlier version.
# intent: Say hello.
name = "old" # its name
[crystal]
provider = "scripted"
responses = [{content = "Hello.", tool_calls = [{gate = "done", args = {answer = "a\\nb # no comment"}}]}]
[circle]
gates = [
  "done", # to end
  {name = "echo", ephemeral = "on"},
]
[[circle.wards]]
max_turns = 3
[[circle.wards]]
# This one is strict.
require_done = true
"""


def test_convert_writes_yaml_with_comments(tmp_path: Path) -> None:
    path = recipe(tmp_path, OLD, "old.cantrip.toml")
    refused = run("recipe", "check", "old.cantrip.toml", cwd=tmp_path)
    assert refused.status == 2
    assert "cantrip recipe convert" in refused.out
    done = run("recipe", "convert", "old.cantrip.toml", cwd=tmp_path)
    assert done.status == 0, done.err
    text = path.with_suffix(".yaml").read_text()
    assert YAML(typ="safe").load(text) == tomllib.loads(OLD)
    comments = [line.strip() for line in text.splitlines() if line.lstrip().startswith("# ")]
    assert comments == [
        "# A recipe of an earlier version.",
        "# intent: Say hello.",
        "# its name",
        "# to end",
        "# This one is strict.",
    ]
    assert run("recipe", "check", "old.cantrip.yaml", cwd=tmp_path).status == 0
    assert "exists already" in run("recipe", "convert", "old.cantrip.toml", cwd=tmp_path).err
    assert path.read_text() == OLD
    path.write_text("name = \n")
    assert "not TOML" in run("recipe", "convert", "old.cantrip.toml", cwd=tmp_path).err


def test_check_of_many(tmp_path: Path) -> None:
    recipe(tmp_path, GREETER, "a.cantrip.yaml")
    recipe(tmp_path, GREETER.replace("echo]", "ecko]"), ".cantrip/b.cantrip.yaml")
    done = run("recipe", "check", ".", "coding", cwd=tmp_path)
    assert done.status == 2
    assert ".cantrip/b.cantrip.yaml:13:17: circle.gates[1]: unknown gate 'ecko'; did you mean 'echo'?" in done.out
    assert "a.cantrip.yaml" in done.out
    lines = run("recipe", "check", ".", "coding", "--json", cwd=tmp_path).lines
    assert [line["ok"] for line in lines] == [True, False, True]


def test_check_refuses_what_this_version_lacks(tmp_path: Path) -> None:
    """A cast refuses it, so the check does too. What this machine lacks is a note."""
    recipe(
        tmp_path,
        """
name: word-count
description: Counts words in text files.
crystal:
  provider: anthropic
  model: claude-sonnet-4-5
call:
  system_prompt: You are a file-processing assistant.
  temperature: 0.2
  require_done_tool: true
circle:
  medium: code
  gates: [done, read_context, call_agent, list_dir, {name: read_file, root: data}]
  wards: [{max_turns: 10}, {bash_network: false}, {max_depth: 1}]
folding: {at_fraction: 0.8}
retry: {max_retries: 3}
loom: {store: postgresql://localhost/looms}
""",
    )
    done = run("recipe", "check", "r.cantrip.yaml", "--json", cwd=tmp_path)
    assert done.status == 2
    (line,) = done.lines
    (problem,) = line["problems"]
    assert "r.cantrip.yaml:13:17: circle.gates[1]: gate read_context is not available in this version yet" in problem
    assert any("no key for anthropic" in note for note in line["notes"])
    cast = run("cast", "r.cantrip.yaml", "x", cwd=tmp_path)
    assert cast.status == 2
    assert "r.cantrip.yaml:13:17: circle.gates[1]: gate read_context is not available in this version yet" in cast.err


def test_check_looks_into_the_files_that_a_recipe_names(tmp_path: Path) -> None:
    text = GREETER[: GREETER.index("crystal:")] + "crystal: scripted:s.yaml\n" + GREETER[GREETER.index("circle:") :]
    recipe(tmp_path, text + "call: {system_prompt_file: p.md}\n")
    recipe(tmp_path, "- contents: x\n", "s.yaml")
    done = run("recipe", "check", "r.cantrip.yaml", cwd=tmp_path)
    assert done.status == 2
    assert "call.system_prompt_file" in done.out
    assert "s.yaml:1:3: [0].contents: unknown key in response: 'contents'" in done.out


@pytest.mark.parametrize("target", ["nothing.cantrip.yaml", "nobody", "empty"])
def test_check_of_what_is_not_there(tmp_path: Path, target: str) -> None:
    (tmp_path / "empty").mkdir()
    done = run("recipe", "check", target, cwd=tmp_path)
    assert done.status == 2
    assert target in done.out + done.err


def test_schema_is_the_published_one(tmp_path: Path) -> None:
    done = run("recipe", "schema", cwd=tmp_path)
    assert done.out == cache.SCHEMA.read_text(encoding="utf-8")
    jsonschema.Draft202012Validator.check_schema(json.loads(done.out))


def test_show(tmp_path: Path) -> None:
    done = run("recipe", "show", "coding", cwd=tmp_path)
    assert done.status == 0, done.err
    for part in (
        "built in",
        "CANTRIP_CRYSTAL",
        "read_file(path",
        "bash_writable_paths",
        str(tmp_path),
        "max_turns  100",
    ):
        assert part in done.out
    assert run("recipe", "show", "coding", "--source", cwd=tmp_path).out.startswith("# A coding entity")
    assert "tool bash" in done.out


def test_list(tmp_path: Path) -> None:
    run("recipe", "new", "greeter", cwd=tmp_path)
    done = run("recipe", "list", cwd=tmp_path)
    listed = [line.split()[:2] for line in done.out.splitlines()]
    for row in (["coding", "built-in"], ["familiar", "built-in"], ["longtext", "built-in"], ["greeter", "workspace"]):
        assert row in listed


def test_trust(tmp_path: Path) -> None:
    text = GREETER.replace("{max_turns: 3}", "{max_turns: 3}, {bash_network: true}")
    path = recipe(tmp_path, text, ".cantrip/theirs.cantrip.yaml")
    assert "no folder is trusted" in run("trust", "--list", cwd=tmp_path).out
    assert "not trusted" in run("recipe", "show", "theirs", cwd=tmp_path).out
    done = run("trust", "--yes", cwd=tmp_path)
    assert done.status == 0
    assert "circle.wards[1].bash_network: it allows the network" in done.out
    assert str(tmp_path) in run("trust", "--list", cwd=tmp_path).out
    assert "trust    trusted" in run("recipe", "show", "theirs", cwd=tmp_path).out
    path.write_text(text + "# changed\n")
    assert "changed since" in run("trust", "--list", cwd=tmp_path).out
    assert "changed since it was trusted" in run("recipe", "show", "theirs", cwd=tmp_path).out
    assert run("cast", "theirs", "x", cwd=tmp_path).status == 2
    assert run("trust", "--yes", ".", cwd=tmp_path).status == 0
    assert run("cast", "theirs", "x", cwd=tmp_path).status == 0
    assert "no longer trusted" in run("trust", "--revoke", cwd=tmp_path).out
    assert "was not trusted" in run("trust", "--revoke", ".", cwd=tmp_path).out


def test_trust_of_nothing(tmp_path: Path) -> None:
    done = run("trust", cwd=tmp_path)
    assert done.status == 2
    assert "nothing to trust" in done.err
    (tmp_path / ".cantrip").mkdir()
    assert run("trust", cwd=tmp_path).status == 2


@pytest.mark.parametrize(
    ("crystal", "by_text"),
    [
        ("ollama:phi4", True),
        ("{provider: ollama, model: phi4, tools: native}", False),
        ("{provider: local, model: x, base_url: 'http://127.0.0.1:9/v1', tools: text}", True),
        ("anthropic:claude-sonnet-5-5", False),
        ("{provider: scripted, responses: [{content: x}], tools: text}", True),
    ],
)
def test_the_capability_block_is_shown_for_the_crystal(tmp_path: Path, crystal: str, by_text: bool) -> None:
    text = f"crystal: {crystal}\ncircle: {{medium: bash, gates: [done], wards: [{{max_turns: 3}}]}}\n"
    done = run("recipe", "show", recipe(tmp_path, text), "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    shown = json.loads(done.out)["presentation"]
    assert ("exactly one ```bash block" in shown) is by_text
    assert ("Code in a message is text" in shown) is not by_text


BASE = """\
crystal: {crystal}
circle:
  medium: {medium}
  gates: [done]
  wards: [{{max_turns: 3}}]
{more}"""


def checked(folder: Path, crystal: str = "ollama:x", medium: str = "conversation", more: str = "") -> tuple[int, str]:
    (folder / "x.cantrip.yaml").write_text(BASE.format(crystal=crystal, medium=medium, more=more))
    done = run("recipe", "check", "x.cantrip.yaml", cwd=folder)
    return done.status, done.out + done.err


def test_weights_that_are_missing_are_a_problem(tmp_path: Path) -> None:
    for crystal, place in (
        ("embedded:unknown", "1:10: crystal"),
        ("{provider: embedded, model: unknown}", "crystal.model"),
    ):
        status, said = checked(tmp_path, crystal)
        assert status != 0
        assert place in said
        assert "there is no embedded model 'unknown', only: smollm2" in said
    status, said = checked(tmp_path, "gguf:none.gguf")
    assert status != 0
    assert f"none.gguf does not exist; name a .gguf file ({tmp_path} has no .gguf file)" in said
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    status, said = checked(tmp_path, "gguf:none.gguf")
    assert f"({tmp_path} has small.gguf)" in said
    assert checked(tmp_path, "gguf:small.gguf")[0] == 0
    status, said = checked(tmp_path, "ollama:x", more="crystals: {other: 'gguf:none.gguf'}\n")
    assert status != 0
    assert "crystals.other: gguf:none.gguf: the file" in said


@pytest.mark.parametrize(
    ("key", "meant"), [("model", "crystal"), ("prompt", "call.system_prompt"), ("tools", "circle.gates")]
)
def test_a_key_of_another_tool_names_ours(key: str, meant: str, tmp_path: Path) -> None:
    assert f"unknown key in recipe: {key!r}; did you mean {meant!r}?" in checked(tmp_path, more=f"{key}: x\n")[1]


def test_a_medium_and_a_format_of_another_name(tmp_path: Path) -> None:
    assert "unknown medium 'shell'; did you mean 'bash'?" in checked(tmp_path, medium="shell")[1]
    with pytest.raises(DefinitionError, match="unknown medium 'shell'; did you mean 'bash'"):
        Circle("shell", ["done"], [{"max_turns": 1}])
    with pytest.raises(DefinitionError, match="unknown export format 'trl-dpo'; did you mean 'trl-preference'"):
        exports.find("trl-dpo")


def test_show_names_the_mcp_servers(tmp_path: Path) -> None:
    servers = "mcp_servers:\n  - {name: notes, command: python3, args: [notes_server.py]}\n"
    servers += "  - {name: far, url: 'https://me:pass@far.example/mcp?key=1'}\n"
    (tmp_path / "x.cantrip.yaml").write_text(BASE.format(crystal="ollama:x", medium="conversation", more=servers))
    shown = run("recipe", "show", "x.cantrip.yaml", cwd=tmp_path).out
    assert "the tools of the MCP server notes  python3 notes_server.py, which is not started" in shown
    data = json.loads(run("recipe", "show", "x.cantrip.yaml", "--json", cwd=tmp_path).out)
    assert data["mcp_servers"][1] == {"name": "far", "runs": "https://far.example/mcp"}
