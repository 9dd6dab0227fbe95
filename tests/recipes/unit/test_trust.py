"""A workspace's recipe may do what is harmless until the user says otherwise, and only for what the user saw."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.gates.mcp.declaration import program_files
from cantrip_acp.recipes import load, load_for_session
from cantrip_acp.recipes.build.python_files import Files
from cantrip_acp.recipes.trust import Ledger, demands, require
from cantrip_acp.types.errors import DefinitionError, RecipeError, UntrustedRecipe
from tests.support.recipe_writer import write

CRYSTAL = "crystal: {provider: scripted, responses: [{content: hi}]}\n"


def recipe(*wards: str, gates: str = "[done]", crystal: str = CRYSTAL, extra: str = "") -> str:
    lines = "".join(f"    - {ward}\n" for ward in ("max_turns: 3", *wards))
    return f"{crystal}{extra}circle:\n  gates: {gates}\n  wards:\n{lines}"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    (folder / ".cantrip").mkdir(parents=True)
    return folder


def at(workspace: Path, text: str, name: str = "theirs") -> Path:
    return write(workspace, text, f".cantrip/{name}.cantrip.yaml")


def session(workspace: Path, name: str = "theirs", *, trusted: bool = False) -> Any:
    return load_for_session(name, workspace, workspace.parent / "state", trusted=trusted)


REFUSED = [
    (recipe(crystal="crystal: {provider: local, model: m, base_url: 'http://x'}\n"), "crystal.base_url"),
    (recipe(crystal="crystal: {provider: openai, model: m, api_key_env: AWS_SECRET}\n"), "crystal.api_key_env"),
    (recipe(crystal="crystal: {provider: openai, model: m, headers: {x: s3cret}}\n"), "crystal.headers"),
    (recipe(crystal="crystals: {a: {provider: local, model: m, base_url: 'http://x'}}\n"), "crystals.a.base_url"),
    (recipe(crystal="crystal: scripted:../../outside.yaml\n"), "crystal"),
    (recipe(crystal="crystal: {provider: scripted, script: /etc/passwd}\n"), "crystal.script"),
    (recipe(crystal="crystal: {provider: scripted, script: ../escape/x.yaml}\n"), "crystal.script"),
    (recipe(extra="call: {system_prompt_file: ~/.ssh/id_rsa}\n"), "call.system_prompt_file"),
    (recipe(extra="call: {system_prompt_file: ../../../etc/hostname}\n"), "call.system_prompt_file"),
    (recipe(gates="[done, {python: gates.py}]"), "circle.gates[1].python"),
    (recipe(gates="[done, compile_and_load]"), "circle.gates[1]"),
    (recipe(gates="[done, fetch]"), "circle.gates[1]"),
    (recipe(gates="[done, {name: read_file, root: /etc}]"), "circle.gates[1].root"),
    (recipe(gates="[done, {name: read_file, root: ..}]"), "circle.gates[1].root"),
    (recipe(gates="[done, {name: read_file, root: escape}]"), "circle.gates[1].root"),
    (recipe(gates="[done, {name: read_file, root: '~'}]"), "circle.gates[1].root"),
    (recipe("bash_network: true"), "circle.wards[1].bash_network"),
    (recipe("bash_network: on"), "circle.wards[1].bash_network"),
    (recipe("bash_network: [example.org]"), "circle.wards[1].bash_network"),
    (recipe("bash_writable_paths: [workspace, /tmp]"), "circle.wards[1].bash_writable_paths"),
    (recipe("bash_writable_paths: ../other"), "circle.wards[1].bash_writable_paths"),
    (recipe("bash_writable_paths: [escape]"), "circle.wards[1].bash_writable_paths"),
    (recipe("code_readable_paths: [/]"), "circle.wards[1].code_readable_paths"),
    (recipe("code_writable_paths: [~]").replace("[~]", "['~']"), "circle.wards[1].code_writable_paths"),
    (recipe("bash_home: persistent"), "circle.wards[1].bash_home"),
    (recipe("allow_compile_modules: [a]"), "circle.wards[1].allow_compile_modules"),
    (recipe("allow_compile_paths: [workspace]"), "circle.wards[1].allow_compile_paths"),
    (recipe(extra="loom: {store: 'sqlite:/home/x/.bashrc'}\n"), "loom.store"),
    (recipe(extra="loom: {store: 'postgresql://stranger/x'}\n"), "loom.store"),
]


@pytest.mark.parametrize(("text", "key"), REFUSED, ids=[f"{n}-{key}" for n, (_, key) in enumerate(REFUSED)])
def test_what_only_a_trusted_recipe_may_have(workspace: Path, text: str, key: str) -> None:
    (workspace / "escape").symlink_to(workspace.parent)
    path = at(workspace, text)
    with pytest.raises(UntrustedRecipe) as caught:
        session(workspace)
    said = str(caught.value)
    assert said.startswith(f"{path}:")
    assert f": {key}: not allowed, because the recipe is not trusted: " in said
    assert f"cantrip trust {workspace}" in said
    assert caught.value.folder == str(workspace)
    assert "s3cret" not in said
    # The control: the same recipe passes once its folder is trusted.
    Ledger(workspace.parent / "state").grant(workspace)
    found = load("theirs", workspace)
    require(found, workspace, workspace.parent / "state")


HARMLESS = [
    recipe(),
    recipe(
        "bash_network: false",
        "bash_network: []",
        "bash_writable_paths: [workspace, sub/dir]",
        gates="[done, {name: read_file, root: sub}]",
    ),
    recipe("bash_home: private", "max_seconds: 10", "bash_submit: on", extra="loom: {store: memory}\n"),
    recipe(extra="call: {system_prompt_file: ../prompt.md}\n"),
    recipe(crystal="crystal: scripted:s.yaml\n"),
]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_harmless_needs_no_trust(workspace: Path, text: str) -> None:
    write(workspace, "a prompt", "prompt.md")
    write(workspace, "[]", ".cantrip/s.yaml")
    (workspace / "sub").mkdir()
    at(workspace, text)
    assert session(workspace).name == "theirs"


def test_the_word_workspace_is_the_sessions_folder_and_no_script() -> None:
    data = {"crystal": "scripted:workspace", "circle": {"gates": ["done"], "wards": []}}
    found = list(demands(data, Path("/elsewhere"), Path("/ws")))
    assert found == [(("crystal",), "it reads a file outside the workspace")]


def test_a_file_named_on_the_command_line_is_trusted_for_that_run(workspace: Path) -> None:
    path = at(workspace, recipe("bash_network: true"))
    cantrip = load_for_session(str(path), workspace, workspace.parent / "state", trusted=True)
    assert cantrip.circle.wards.bash_network is True
    with pytest.raises(UntrustedRecipe):
        session(workspace)


def test_a_path_that_nobody_vouched_for_is_not(workspace: Path, tmp_path: Path) -> None:
    path = write(tmp_path, recipe("bash_network: true"), "elsewhere.cantrip.yaml")
    Ledger(tmp_path / "state").grant(workspace)
    with pytest.raises(RecipeError, match="name the file on the command line") as caught:
        load_for_session(str(path), workspace, tmp_path / "state", trusted=False)
    assert not isinstance(caught.value, UntrustedRecipe)


def test_the_users_own_recipes_are_trusted(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTRIP_CONFIG_DIR", str(tmp_path / "config"))
    write(tmp_path / "config", recipe("bash_network: true"), "mine.cantrip.yaml")
    assert session(workspace, "mine").circle.wards.bash_network is True


def test_trust_ends_with_the_content_that_was_seen(workspace: Path) -> None:
    ledger = Ledger(workspace.parent / "state")
    write(workspace, "[{content: hi}]", ".cantrip/s.yaml")
    write(workspace, "a prompt", "prompt.md")
    text = recipe(
        "bash_network: true", crystal="crystal: scripted:s.yaml\n", extra="call: {system_prompt_file: ../prompt.md}\n"
    )
    path = at(workspace, text)
    ledger.grant(workspace)
    assert session(workspace).circle.wards.bash_network is True

    def changed(file: Path, content: str) -> None:
        before = file.read_text() if file.exists() else None
        file.write_text(content)
        assert ledger.state(workspace) == "changed"
        with pytest.raises(UntrustedRecipe):
            session(workspace)
        file.unlink() if before is None else file.write_text(before)
        assert ledger.state(workspace) == "trusted"

    changed(path, text.replace("true", "on"))
    changed(workspace / ".cantrip" / "s.yaml", "[{content: other}]")
    changed(workspace / "prompt.md", "another prompt")
    changed(workspace / ".cantrip" / "new.cantrip.yaml", recipe("bash_network: true"))
    changed(workspace / ".cantrip" / "broken.cantrip.yaml", "not: [yaml")
    # What is no recipe and is named by none is nobody's business.
    (workspace / ".cantrip" / "notes.md").write_text("x")
    assert ledger.state(workspace) == "trusted"
    path.unlink()
    assert ledger.state(workspace) == "changed"


def test_revoking(workspace: Path) -> None:
    ledger = Ledger(workspace.parent / "state")
    at(workspace, recipe("bash_network: true"))
    assert not ledger.revoke(workspace)
    ledger.grant(workspace)
    assert ledger.revoke(workspace)
    assert ledger.state(workspace) == "untrusted"
    with pytest.raises(UntrustedRecipe):
        session(workspace)


def test_trust_is_for_the_folder_and_not_for_a_copy(workspace: Path, tmp_path: Path) -> None:
    at(workspace, recipe("bash_network: true"))
    Ledger(tmp_path / "state").grant(workspace)
    other = tmp_path / "copy"
    write(other, (workspace / ".cantrip" / "theirs.cantrip.yaml").read_text(), ".cantrip/theirs.cantrip.yaml")
    with pytest.raises(UntrustedRecipe):
        session(other)
    # The same folder by another way is the same folder.
    (tmp_path / "link").symlink_to(workspace)
    assert session(tmp_path / "link").circle.wards.bash_network is True


def test_what_is_judged_is_what_is_used(workspace: Path) -> None:
    """A file swapped between the judgement and its use changes nothing: both read the same bytes."""
    path = at(workspace, recipe("bash_network: true"))
    state = workspace.parent / "state"
    Ledger(state).grant(workspace)
    found = load("theirs", workspace)
    path.write_text(recipe("bash_network: true", "bash_writable_paths: [/]"))
    require(found, workspace, state)
    assert "/" not in json.dumps(found.data["circle"])
    with pytest.raises(UntrustedRecipe):
        require(load("theirs", workspace), workspace, state)


def test_a_script_is_read_once_by_content(workspace: Path) -> None:
    files = Files()
    path = write(workspace, "[]", "s.yaml")
    assert files.read(path) == b"[]"
    path.write_text("[{}]")
    assert files.read(path) == b"[]"
    assert files.read(workspace / "." / "s.yaml") == b"[]"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"folders": []}', '{"folders": {"x": 1}}'])
def test_a_damaged_ledger_trusts_nobody_and_is_not_written_over(workspace: Path, content: str) -> None:
    ledger = Ledger(workspace.parent / "state")
    at(workspace, recipe("bash_network: true"))
    ledger.path.parent.mkdir()
    ledger.path.write_text(content)
    for act in (lambda: session(workspace), lambda: ledger.grant(workspace), lambda: ledger.revoke(workspace)):
        with pytest.raises(DefinitionError, match="correct or remove the file"):
            act()
    assert ledger.path.read_text() == content


def test_the_ledger_is_the_users_alone(workspace: Path) -> None:
    at(workspace, recipe())
    ledger = Ledger(workspace.parent / "state")
    ledger.grant(workspace)
    assert ledger.path.stat().st_mode & 0o077 == 0
    assert ledger.path.parent.stat().st_mode & 0o077 == 0
    assert os.path.realpath(workspace) in ledger.folders()


def test_grants_at_once_are_all_kept(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    spaces = [tmp_path / f"ws{n}" for n in range(20)]
    for space in spaces:
        at(space, recipe())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda space: Ledger(tmp_path / "state").grant(space), spaces))
    assert len(Ledger(tmp_path / "state").folders()) == 20


def test_the_files_of_a_command(tmp_path: Path) -> None:
    """Whatever an argument is: a text of a program, an option, a module, a path out of the workspace."""
    (tmp_path / "pkg").mkdir()
    for name in ("serve.py", "pkg/__main__.py", "conf.json"):
        (tmp_path / name).write_text("")

    def found(command: str, *args: str) -> list[str]:
        return [os.path.relpath(each, tmp_path) for each in program_files(command, args, tmp_path)]

    assert found("./serve", "--config=conf.json", "serve.py") == ["serve", "conf.json", "serve.py"]
    assert found("sh", "-c", "exec ./serve.py --x") == ["serve.py"]
    assert found("sh", "-m", "pkg") == ["pkg/__main__.py"]
    assert found("sh", "-c", "x" * 5000, "'", "", "../x", "/etc/passwd", "pkg") == []
