"""The agent's own folders: sessions, permissions, trust and settings are out of reach from any folder around them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import Start

END = {"content": "Done."}


def call(gate: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args}]}


def failures(agent: RawClient) -> list[str]:
    return [str(u.get("rawOutput")) for u in agent.updates("tool_call_update") if u.get("status") == "failed"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config = tmp_path / "home" / ".config" / "cantrip"
    config.mkdir(parents=True)
    (config / "settings.toml").write_text("")
    monkeypatch.setenv("CANTRIP_CONFIG_DIR", str(config))
    return config


def test_gates_do_not_reach_them(start: Start, tmp_path: Path, config: Path) -> None:
    home, state = tmp_path / "home", tmp_path / "home" / "state"
    (home / "way").symlink_to("state")
    paths = [
        "state/trust.json",
        "state/looms/x.session.json",
        "way/looms/x",
        ".config/cantrip/evil.cantrip.yaml",
        f"{state}/new",
    ]
    script = [*(call("write_file", path=path, content="x") for path in paths), call("read_file", path="way/looms")]
    script += [
        call("read_file", path=".config/cantrip/settings.toml"),
        call("write_file", path="statement.txt", content="x"),
    ]
    agent = start([*script, END], "--state-dir", str(state), gates=["done", "read_file", "write_file"])
    session = agent.session(home)
    agent.call("session/set_mode", {"sessionId": session, "modeId": "trusted"})
    agent.prompt(session)
    assert len(failures(agent)) == 6
    assert all("belongs to this program" in each for each in failures(agent))
    assert (home / "statement.txt").exists()
    assert [path.name for path in config.iterdir()] == ["settings.toml"]
    assert not (state / "trust.json").exists()


@pytest.mark.sandbox
@pytest.mark.parametrize("medium", ["bash", "code"])
def test_commands_and_cells_do_not_see_them(start: Start, tmp_path: Path, config: Path, medium: str) -> None:
    home, state = tmp_path / "home", tmp_path / "home" / "state"
    look = "ls -A state .config/cantrip; echo x > state/y; echo x > .config/cantrip/z; echo x > free"
    code = (
        "import os\nprint(os.listdir('state'), os.listdir('.config/cantrip'))\n"
        "for path in ('free', 'state/y', '.config/cantrip/z'):\n"
        "    try: open(path, 'w').write('x')\n    except OSError as e: print(e)"
    )
    agent = start(
        [{"bash": look} if medium == "bash" else {"code": code}, END], "--state-dir", str(state),
        medium=medium, gates=["done"], wards=[{"max_turns": 5}, {f"{medium}_writable_paths": ["."]}],
    )  # fmt: skip
    session = agent.session(home)
    agent.call("session/set_mode", {"sessionId": session, "modeId": "trusted"})
    agent.prompt(session)
    said = json.dumps([u.get("rawOutput") for u in agent.updates("tool_call_update")])
    assert "settings.toml" not in said
    assert "looms" not in said
    assert (home / "free").read_text().strip() == "x"
    assert not (state / "y").exists()
    assert not (config / "z").exists()


def test_folders_that_nobody_means_to_lay_open(start: Start, folder: Path, tmp_path: Path, config: Path) -> None:
    state = tmp_path / "state"
    agent = start([END], "--state-dir", str(state))
    agent.session(folder)
    (tmp_path / "way").symlink_to("/")
    for bad in (
        "/",
        str(tmp_path / "way"),
        "//",
        "/proc",
        "/proc/self",
        "/sys",
        "/dev",
        str(state),
        str(state / "looms"),
        str(config),
    ):
        params = {"cwd": str(folder), "mcpServers": [], "additionalDirectories": [bad]}
        error = agent.error("session/new", params)
        assert (error["code"], error["data"]["field"]) == (-32602, "additionalDirectories[0]"), bad
    # What is around them may be named: they stay closed in it.
    agent.session(folder, additionalDirectories=[str(tmp_path), "/etc"])
