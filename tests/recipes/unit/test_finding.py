"""Where recipes are looked for, and the built-in ones."""

from pathlib import Path

import pytest

from cantrip_acp.recipes import DEFAULT, load, load_for_session
from cantrip_acp.recipes.recipe import BUILT_IN, built_in, names, recipe_files
from cantrip_acp.types.errors import DefinitionError
from tests.support.recipe_writer import write

TEXT = "description: {}\ncircle: {{gates: [done], wards: [{{max_turns: 1}}]}}\n"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "config"
    monkeypatch.setenv("CANTRIP_CONFIG_DIR", str(folder))
    return folder


def test_workspace_then_user_then_built_in(tmp_path: Path, config: Path) -> None:
    workspace = tmp_path / "ws"
    assert load("coding", workspace).source == "built-in"
    write(config, TEXT.format("user"), "coding.cantrip.yaml")
    assert load("coding", workspace).source == "user"
    write(workspace, TEXT.format("workspace"), ".cantrip/coding.cantrip.toml".replace("toml", "yaml"))
    assert load("coding", workspace).source == "workspace"
    assert load("coding").source == "user"
    assert built_in("coding").source == "built-in"
    assert names(workspace)["coding"][0] == "workspace"


def test_the_users_folder_is_the_platforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    write(tmp_path / "xdg" / "cantrip", TEXT.format("x"), "mine.cantrip.yaml")
    assert load("mine").source == "user"


def test_a_path_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, TEXT.format("x"), "mine.cantrip.yaml")
    assert load("mine.cantrip.yaml").source == "path"
    assert load("./mine.cantrip.yaml").file == "./mine.cantrip.yaml"
    with pytest.raises(DefinitionError, match="no recipe is named 'mine'"):
        load("mine")


def test_an_unknown_name_says_where_it_looked_and_what_is_near(tmp_path: Path, config: Path) -> None:
    with pytest.raises(DefinitionError) as caught:
        load("codng", tmp_path)
    said = str(caught.value)
    assert "did you mean 'coding'?" in said
    assert str(tmp_path / ".cantrip") in said
    assert str(config) in said


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a\0b"])
def test_names_that_are_no_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(DefinitionError, match="no recipe is named"):
        load(name, tmp_path)


@pytest.mark.parametrize("path", recipe_files(BUILT_IN), ids=lambda p: p.name)
def test_built_in_recipes_are_whole(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = write(tmp_path, "[{content: hello}]", "s.yaml")
    monkeypatch.setenv("CANTRIP_CRYSTAL", f"scripted:{script}")
    name = path.name.removesuffix(".cantrip.yaml")
    cantrip = load_for_session(name, tmp_path, tmp_path / "state", trusted=False)
    assert cantrip.name == name
    assert load(name).description


def test_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTRIP_CRYSTAL", f"scripted:{write(tmp_path, '[]', 's.yaml')}")
    # Whatever lies in the workspace under its name.
    write(tmp_path, TEXT.format("not mine"), f".cantrip/{DEFAULT}.cantrip.yaml")
    cantrip = load_for_session(None, tmp_path, tmp_path / "state", trusted=False)
    assert cantrip.name == "familiar"
    assert cantrip.circle.medium.name == "code"
    assert {
        "read_file",
        "edit_file",
        "search",
        "git_diff",
        "git_commit",
        "run_tests",
        "fetch",
        "plan",
        "call_agent",
    } <= set(cantrip.circle.gates)
    assert cantrip.circle.wards.code_writable_paths == ()
    assert cantrip.circle.wards.bash_writable_paths == (str(tmp_path),)
    assert cantrip.circle.wards.bash_network is False
    assert len(cantrip.call.system_prompt or "") < 6000
