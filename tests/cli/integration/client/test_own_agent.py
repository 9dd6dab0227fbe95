"""The client with our own agent: scripted recipes, a real sandbox, cancel, several prompts, and the loom it names."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.integration.client.client_processes import CLIENT, Terminal, environment, run_client

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def agent(tmp_path: Path, *responses: dict[str, Any], gates: tuple[str, ...] = ("done", "write_file")) -> list[str]:
    """Our agent with a script. JSON is YAML."""
    recipe = tmp_path / "r.cantrip.yaml"
    circle = {"medium": "bash", "gates": list(gates), "wards": [{"max_turns": 3}, {"bash_writable_paths": ["."]}]}
    crystal = {"provider": "scripted", "responses": list(responses)}
    recipe.write_text(json.dumps({"name": "r", "crystal": crystal, "circle": circle}))
    return [sys.executable, "-m", "cantrip_acp.acp.start", "--recipe", str(recipe)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def test_a_session_of_two_prompts(tmp_path: Path, folder: Path) -> None:
    argv = agent(
        tmp_path,
        {"bash": "printf '\\033[31mred\\033[0m\\n'; printf more >&2; false", "usage": {"prompt_tokens": 5}},
        {"content": "That failed."},
        {"tool_calls": [{"gate": "write_file", "args": {"path": "n.txt", "content": "new\n"}}]},
        {"bash": "cat n.txt; cantrip_done written"},
    )
    done = run_client("--allow", "once", "--cwd", str(folder), "--prompt", "one", "--prompt", "two", agent=argv)
    assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert "  │ red\n" in out
    assert "  ✗ failed · exit 1" in out
    assert "● That failed.\n" in out
    assert "  │ +new\n" in out
    assert "● written\n" in out
    assert out.count("■ end_turn · 2 turns") == 2
    where = f"{folder} (the workspace)"
    assert f"writes   commands in {where}; write_file in {where}\n" in out
    assert "network  none\nchildren none\nservers  none\n" in out
    assert (folder / "n.txt").read_text() == "new\n"
    loom = next(line.split()[1] for line in out.splitlines() if line.startswith("loom "))
    turns = [json.loads(line) for line in Path(loom).read_text().splitlines()]
    assert sum(turn["type"] == "turn" and turn.get("role") == "crystal" for turn in turns) == 4


def test_truncation_is_status_1(tmp_path: Path, folder: Path) -> None:
    argv = agent(tmp_path, {"bash": "true", "repeat": True})
    done = run_client("--allow", "once", "--cwd", str(folder), "--json", "--prompt", "go", agent=argv)
    assert done.returncode == 1
    assert json.loads(done.stdout.splitlines()[-1])["stop_reason"] == "max_turn_requests"


def test_a_script_that_runs_out_is_a_clear_error(tmp_path: Path, folder: Path) -> None:
    done = run_client("--cwd", str(folder), "--prompt", "go", agent=agent(tmp_path, {"bash": "true"}))
    assert done.returncode == 1
    assert "the script has run out" in done.stderr


def test_interrupt_ends_the_command(tmp_path: Path, folder: Path) -> None:
    argv = agent(tmp_path, {"bash": "echo started; sleep 300"})
    client = subprocess.Popen(
        [*CLIENT, "--allow", "once", "--json", "--cwd", str(folder), "--prompt", "x", "--", *argv],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert client.stdout is not None
    while "started" not in client.stdout.readline():
        pass
    # The command's text names it as well; its output is what comes next.
    while "terminal_output" not in (line := client.stdout.readline()):
        assert line
    client.send_signal(signal.SIGINT)
    rest = client.stdout.read().splitlines()
    assert client.wait(60) == 130
    client.stdout.close()
    assert json.loads(rest[-1])["stop_reason"] == "cancelled"
    assert json.loads(rest[-1])["seconds"] < 60


def test_one_key_switches_to_ask_and_a_rejection_has_a_reason(
    tmp_path: Path, folder: Path, terminal: Callable[..., Terminal]
) -> None:
    write = {"tool_calls": [{"gate": "write_file", "args": {"path": "n.txt", "content": "new\n"}}]}
    argv = agent(tmp_path, write, {"content": "Written."}, write, {"content": "Not written."})
    at = terminal([*CLIENT, "--cwd", str(folder), "--", *argv])
    at.until("Shift-Tab asks")
    at.until("❯ ")
    at.type("one\n")
    # In the mode sandboxed nothing is asked.
    assert "which?" not in at.until("Written.")
    at.until("❯ ")
    (folder / "n.txt").unlink()
    at.type("two\x1b[Z")
    at.until("mode ask")
    at.type("\n")
    at.until("which?")
    at.type("r")
    at.until("reason:")
    at.type("Write Docs/ instead.\n")
    at.until("Not written.")
    at.until("❯ ")
    at.type(":ask\n")
    at.until("mode sandboxed")
    at.until("❯ ")
    at.type("\x04")
    assert at.wait() == 0
    assert not (folder / "n.txt").exists()
    [loom] = re.findall(r"/\S+\.loom\.jsonl", at.seen)
    assert "The user's reason: Write Docs/ instead." in Path(loom).read_text()


def test_output_in_colours_live_and_loaded(tmp_path: Path, folder: Path) -> None:
    text = r"\033[31mred\033[0m \033]0;title\007plain\tand \033[1;38;2;1;2;3mmore than one row: "
    argv = agent(tmp_path, {"bash": f"printf '{text}'; seq -s ' ' 80; cantrip_done x"})
    truecolor = {"FORCE_COLOR": "1", "COLORTERM": "truecolor"}
    done = run_client("--allow", "once", "--cwd", str(folder), "--prompt", "one", agent=argv, **truecolor)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b[31mred\x1b[0m plain" in done.stdout
    assert "\x1b[1;38;2;1;2;3mmore than one row" in done.stdout
    rows = [line for line in done.stdout.splitlines() if "\x1b[1;38;2;1;2;3m" in line]
    assert len(rows) > 2
    assert all(row.endswith("\x1b[0m") for row in rows)
    assert "title" not in done.stdout.replace("]0;title", "")
    loaded = run_client("--cwd", str(folder), "--load", "last", agent=argv, stdin="", **truecolor)
    assert "\x1b[31mred\x1b[0m plain" in loaded.stdout, loaded.stdout + loaded.stderr
    for more in ({"NO_COLOR": "1", **truecolor}, {}):
        grey = run_client("--cwd", str(folder), "--load", "last", agent=argv, stdin="", **more)
        assert "red" in grey.stdout
        assert "\x1b[31m" not in grey.stdout
        assert "\x1b[1;38;2" not in grey.stdout
    loom = next(line.split()[1] for line in done.stdout.splitlines() if "loom " in line and ".jsonl" in line)
    shown = subprocess.run(
        [sys.executable, "-m", "cantrip_acp.cli.main", "loom", "thread", re.sub(r"\x1b\[[0-9;]*m", "", loom)],
        capture_output=True, text=True, check=False, env=environment(**truecolor),
    )  # fmt: skip
    assert "\x1b[31mred\x1b[0m plain" in shown.stdout, shown
