"""What no gate writes and what no gate shows, however it is spelled; and that the sandbox guards the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_acp.files import protected_paths
from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.files.edit_file import EDIT_FILE
from cantrip_acp.gates.files.list_dir import LIST_DIR
from cantrip_acp.gates.files.read_file import READ_FILE
from cantrip_acp.gates.files.write_file import WRITE_FILE
from cantrip_acp.gates.wards import Wards, compose
from cantrip_acp.types.errors import DefinitionError, GateError
from tests.support.fixtures.gates import call_in, context_of

Call = Callable[..., GateReply]


def test_each_row_has_a_reason_and_the_refusal_says_it(
    call: Call, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(workspace))
    for row in protected_paths.PROTECTED_FILES:
        path = row.name.replace("[23]*", "3").replace("[._]*", ".fish").replace("*", "x")
        for spelled in (path, f"deep/down/{path}", path.upper(), f"{path}/below"):
            with pytest.raises(GateError) as caught:
                call(WRITE_FILE, path=spelled, content="x")
            text = str(caught.value)
            # What holds secrets, too, is not written for that reason.
            assert "is hidden" in text or (row.reason in text and "is protected" in text), spelled


def test_the_documentation_names_each_row_with_its_reason() -> None:
    text = (Path(__file__).parents[3] / "docs" / "sandbox.md").read_text()
    table = [line for line in text.splitlines() if line.startswith("| `")]
    for row in protected_paths.PROTECTED_FILES:
        assert any(f"`{row.name}`" in line and row.reason in line for line in table), row


def test_a_ward_allows_a_row_by_name_and_nothing_else(workspace: Path) -> None:
    context = context_of(workspace)
    wards = Wards.of({"allow_protected": [".pre-commit-config.yaml", "pyvenv.cfg"]})
    context = dataclasses.replace(context, wards=wards)
    for path in (".pre-commit-config.yaml", ".venv/bin/python3", "deep/.pre-commit-config.yaml"):
        call_in(context, WRITE_FILE, path=path, content="x")
    for path in (".vscode/x", ".git/config", ".cantrip/x"):
        with pytest.raises(GateError, match="is protected"):
            call_in(context, WRITE_FILE, path=path, content="x")
    for name in (".git", ".cantrip", "README.md", ".vscod"):
        with pytest.raises(DefinitionError, match="allow_protected"):
            Wards.of({"allow_protected": [name]})
    assert compose(Wards(), wards).allow_protected == ()
    assert compose(wards, Wards()).allow_protected == ()


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".git/hooks/pre-commit",
        ".GIT/config",
        ".Git",
        "sub/deep/.git/config",
        ".g\u200cit/config",
        ".git./config",
        ".git /config",
        "git~1/config",
        ".git::$INDEX_ALLOCATION/config",
        "./sub/../.git/config",
        "alias/config",
        ".vscode/tasks.json",
        ".idea/workspace.xml",
        ".zed/settings.json",
        ".cantrip/evil.cantrip.yaml",
        ".mcp.json",
        "sub/.MCP.json",
        ".claude/settings.json",
        ".gitconfig",
        ".husky/pre-commit",
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_protected_names(call: Call, workspace: Path, path: str, exists: bool) -> None:
    (workspace / "sub" / "deep").mkdir(parents=True)
    (workspace / "alias").symlink_to(".git")
    if exists:
        (workspace / ".git").mkdir()
        target = workspace / path
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("old\n")
    before = sorted(str(p) for p in workspace.rglob("*"))
    with pytest.raises(GateError, match=r"is protected: what is in .* only a person changes it"):
        call(WRITE_FILE, path=path, content="x")
    with pytest.raises(GateError, match="is protected"):
        call(EDIT_FILE, path=path, old_text="old", new_text="x")
    assert sorted(str(p) for p in workspace.rglob("*")) == before
    if exists and (workspace / path).is_file():
        assert call(READ_FILE, path=path).result == "old\n"


def test_start_files_of_shells_are_protected_where_shells_read_them(
    call: Call, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(WRITE_FILE, path=".bashrc", content="x")
    monkeypatch.setenv("HOME", str(workspace / "home"))
    with pytest.raises(GateError, match="is protected"):
        call(WRITE_FILE, path="home/.bashrc", content="x")


def test_a_start_file_that_a_link_in_the_home_folder_names_is_protected(
    call: Call, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "another-home"
    home.mkdir()
    (workspace / "bashrc").write_text("mine\n")
    (home / ".bashrc").symlink_to(workspace / "bashrc")
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(GateError, match=r"the link ~/\.bashrc names it"):
        call(WRITE_FILE, path="bashrc", content="x")


def test_a_root_inside_what_is_protected_stays_protected(workspace: Path) -> None:
    (workspace / ".git" / "hooks").mkdir(parents=True)
    with pytest.raises(GateError, match="is protected"):
        call_in(context_of(workspace, root=".git/hooks"), WRITE_FILE, path="pre-commit", content="x")


@pytest.mark.parametrize("path", [".gitignore", ".github/workflows/ci.yml", "git/config", ".vscodeignore", "a.git"])
def test_names_that_only_look_like_it(call: Call, workspace: Path, path: str) -> None:
    call(WRITE_FILE, path=path, content="x")
    assert (workspace / path).read_text() == "x"


def test_a_hidden_name_hides_what_it_links_to(call: Call, workspace: Path) -> None:
    (workspace / "real-values").write_text("TOKEN=hidden-value\n")
    (workspace / ".env").symlink_to("real-values")
    with pytest.raises(GateError, match="hidden"):
        call(READ_FILE, path=".env")


def test_a_virtual_environment_named_env_is_no_environment_file(call: Call, workspace: Path) -> None:
    (workspace / ".env" / "bin").mkdir(parents=True)
    (workspace / ".env" / "bin" / "activate").write_text("PATH\n")
    assert call(READ_FILE, path=".env/bin/activate").result == "PATH\n"
    assert call(LIST_DIR, path=".env").result == ["bin/"]


def test_lists_name_what_is_hidden_and_say_so(call: Call, workspace: Path) -> None:
    (workspace / ".env").write_text("X=1\n")
    (workspace / ".ssh").mkdir()
    (workspace / ".ssh" / "id_rsa").write_text("")
    assert call(LIST_DIR).result == [".env", ".ssh/"]
    assert call(LIST_DIR, details=True).result == ".env  4 bytes  (hidden)\n.ssh/  (hidden)"
    assert call(LIST_DIR, depth=3).result == [".env", ".ssh/"]
    with pytest.raises(GateError, match="hidden"):
        call(LIST_DIR, path=".ssh")
