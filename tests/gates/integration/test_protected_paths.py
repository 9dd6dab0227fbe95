"""The tests of `tests/gates/unit/test_protected_paths.py` that start processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cantrip_acp.files.env_files import is_env_file
from cantrip_acp.gates.files.edit_file import EDIT_FILE
from cantrip_acp.gates.files.read_file import READ_FILE
from cantrip_acp.gates.files.write_file import WRITE_FILE
from cantrip_acp.gates.search import ripgrep
from cantrip_acp.gates.search.search import SEARCH
from cantrip_acp.types.errors import GateError
from tests.gates.unit.test_protected_paths import Call

_CONFIG = """[core]
\tbare = false
[http "https://github.com/"] extraheader = AUTHORIZATION: \\
    basic hidden-value
[remote "origin"]
\turl = https://ada:hidden-value@ss@example.org/x.git?private_token=hidden-value
\tpushurl = ssh://git@example.org/x.git
[credential]
\thelper = "store --file=/hidden-value"
[github]
\tOAuthToken = hidden-value
"""


@pytest.mark.parametrize(
    "path",
    [".git/config", ".GIT/CONFIG", ".git/modules/a/config", ".git/worktrees/w/config.worktree", "deep/.git/config"],
)
def test_settings_of_git_are_shown_without_credentials(
    call: Call, workspace: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = workspace / path
    target.parent.mkdir(parents=True)
    target.write_text(_CONFIG)
    (workspace / "alias").symlink_to(path)
    (workspace / "folder").symlink_to(os.path.dirname(path))
    for name in (path, "alias", f"folder/{target.name}"):
        shown = call(READ_FILE, path=name).result
        assert "hidden-value" not in shown
        assert "bare = false" in shown
        assert "example.org/x.git" in shown
    for _ in range(2):
        for where in (path, os.path.dirname(path), "alias"):
            found = call(SEARCH, pattern="hidden-value|bare", path=where).result
            assert "hidden-value" not in found.replace("hidden-value|bare", "")
        monkeypatch.setattr(ripgrep, "find_ripgrep", lambda *_: None)
    assert target.read_text() == _CONFIG


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        ".env.local",
        ".ENV",
        ".env-prod",
        "sub/.env.production",
        ".netrc",
        ".npmrc",
        ".ssh/id_ed25519",
        ".ssh/config",
        "id_rsa",
        "ID_RSA",
        ".aws/credentials",
        "cert.p12",
        "server.key",
        "link.txt",
        ".envrc",
    ],
)
def test_hidden_files(call: Call, workspace: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = workspace / path
    if path == "link.txt":
        (workspace / ".env").write_text("TOKEN=hidden-value\n")
        target.symlink_to(".env")
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("TOKEN=hidden-value\n")
    target.chmod(0o600)
    for gate, args in (
        (READ_FILE, {}),
        (WRITE_FILE, {"content": "x"}),
        (EDIT_FILE, {"old_text": "nowhere", "new_text": "x"}),
        (SEARCH, {"pattern": "TOKEN"}),
    ):
        if gate is READ_FILE and is_env_file(path):
            assert call(gate, path=path).result == "TOKEN=masked-by-cantrip\n"
            continue
        with pytest.raises(GateError, match=r"hidden|protected") as caught:
            call(gate, path=path, **args)
        assert "hidden-value" not in str(caught.value)
    assert target.read_text() == "TOKEN=hidden-value\n"
    assert "no matches" in call(SEARCH, pattern="TOKEN").result
    monkeypatch.setattr(ripgrep, "find_ripgrep", lambda *_: None)
    assert "no matches" in call(SEARCH, pattern="TOKEN").result


@pytest.mark.parametrize(
    "path", [".env.example", ".env.sample", ".env.template", "fixtures/public.pem", "env", ".environment"]
)
def test_files_that_are_written_to_be_read(call: Call, workspace: Path, path: str) -> None:
    call(WRITE_FILE, path=path, content="TOKEN=\n")
    assert call(READ_FILE, path=path).result == "TOKEN=\n"
    assert call(SEARCH, pattern="TOKEN").result == f"{path}:1:TOKEN="


@pytest.mark.parametrize("written", ["gitdir: data\n", "gitdir: ./data", "gitdir: {workspace}/data"])
def test_a_git_folder_of_another_name_is_protected(call: Call, workspace: Path, written: str) -> None:
    (workspace / "data" / "hooks").mkdir(parents=True)
    (workspace / "data" / "config").write_text("[core]\n")
    (workspace / ".git").write_text(written.format(workspace=workspace))
    for path in ("data/config", "data/hooks/pre-commit", "data"):
        with pytest.raises(GateError, match=r"git folder that the file \.git names"):
            call(WRITE_FILE, path=path, content="x")
    call(WRITE_FILE, path="data2/config", content="x")
    (workspace / ".git").write_text("no link")
    call(WRITE_FILE, path="data/config", content="x")
