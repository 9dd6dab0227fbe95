"""`cantrip sandbox` and `cantrip doctor`, as a shell starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cantrip_acp.sandbox.launch.sandbox import control_groups
from tests.support import processes
from tests.support.command_line import Terminal


def cantrip(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return processes.run(
        [sys.executable, "-m", "cantrip_acp.cli.main", *words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_run_gives_the_commands_own_status_and_output(workspace: Path) -> None:
    done = cantrip("sandbox", "run", "--", "echo out; echo err >&2; exit 7", cwd=workspace)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    words = cantrip("sandbox", "run", "--", "printf", "%s|", "a b", "$HOME", "--flag", cwd=workspace)
    assert (words.returncode, words.stdout) == (0, "a b|$HOME|--flag|")
    assert cantrip("sandbox", "run", "--", "kill -9 $$", cwd=workspace).returncode == 137


def test_run_writes_only_where_it_is_told(workspace: Path) -> None:
    assert cantrip("sandbox", "run", "--", "touch new", cwd=workspace).returncode != 0
    (workspace / "out").mkdir()
    assert cantrip("sandbox", "run", "--writable", "out", "--", "touch out/new", cwd=workspace).returncode == 0
    assert [str(p.relative_to(workspace)) for p in sorted(workspace.rglob("*"))] == ["out", "out/new"]


def test_run_gives_every_byte_to_a_pipe(workspace: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cantrip_acp.cli.main", "sandbox", "run", "--", r"printf '\x00\xff\033[31m'"],
        cwd=workspace,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == b"\x00\xff\x1b[31m"


@pytest.mark.parametrize(
    ("environment", "wanted"), [({"NO_COLOR": ""}, "a \x1b[31mred\x1b[0m word"), ({"NO_COLOR": "1"}, "a red word")]
)
def test_a_terminal_shows_the_colours_and_obeys_nothing_else(
    workspace: Path, environment: dict[str, str], wanted: str
) -> None:
    command = r"printf 'a \033[3'; sleep 0.1; printf '1mred\033[0m word\033]0;title\007\033[2A end\n'"
    with Terminal("sandbox", "run", "--", command, cwd=workspace, **environment) as terminal:
        assert terminal.end() == 0
        assert f"{wanted} end" in terminal.seen
        assert "title" not in terminal.seen


def test_run_ends_in_time(workspace: Path) -> None:
    began = time.perf_counter()
    done = cantrip("sandbox", "run", "--timeout-ms", "3000", "--", "echo begun; sleep 600", cwd=workspace)
    assert (done.returncode, done.stdout) == (124, "begun\n")
    assert "3000 ms" in done.stderr
    assert time.perf_counter() - began < 60


def test_run_with_a_recipe_has_its_wards_and_gates(workspace: Path) -> None:
    (workspace / "r.cantrip.yaml").write_text(
        "name: r\ncircle:\n  medium: bash\n  gates: [done, echo]\n  wards: [{max_turns: 3}, {bash_writable_paths: [out]}]\n"
    )
    (workspace / "out").mkdir()
    command = "touch out/x; touch x; cantrip_echo hi; cantrip_done finished; sleep 20; echo never"
    done = cantrip("sandbox", "run", "--recipe", "./r.cantrip.yaml", "--", command, cwd=workspace)
    assert (done.returncode, done.stdout) == (0, "hi\nfinished\n")
    assert (workspace / "out/x").exists()
    assert not (workspace / "x").exists()
    both = cantrip("sandbox", "run", "--recipe", "./r.cantrip.yaml", "--network", "--", "true", cwd=workspace)
    assert both.returncode == 2


def test_policy_in_words_and_as_json(workspace: Path) -> None:
    (workspace / ".env").write_text("x")
    text = cantrip("sandbox", "policy", "--writable", ".", cwd=workspace)
    assert text.returncode == 0
    assert f"Writable, by bash_writable_paths:\n  {workspace}\n" in text.stdout
    assert f"{workspace}/.env" in text.stdout
    assert "--unshare-net" in text.stdout
    data = json.loads(cantrip("sandbox", "policy", "--network", "--json", cwd=workspace).stdout)
    assert data["policy"]["network"] is True
    assert data["policy"]["writable"] == []
    assert "--unshare-net" not in data["arguments"]
    assert sorted(p.name for p in workspace.iterdir()) == [".env"]


def test_usage_errors(workspace: Path) -> None:
    assert cantrip("sandbox", "run", cwd=workspace).returncode == 2
    for words, near in ((("--hosts", "index.example"), "--host"), (("--write", "."), "--writable"), (("--jsn",), "")):
        misspelled = cantrip("sandbox", "run", *words, "--", "touch ran", cwd=workspace)
        assert misspelled.returncode == 2
        assert f"No such option '{words[0]}'" in misspelled.stderr
        assert (
            f"Did you mean '{near}'" in misspelled.stderr if near else "Usage: cantrip sandbox run" in misspelled.stderr
        )
        assert not (workspace / "ran").exists()
    # What comes after the first word is the command's own.
    assert cantrip("sandbox", "run", "printf", "--", "%s|", "--host", cwd=workspace).stdout == "--host|"
    assert cantrip("sandbox", "run", "--cwd", "missing", "--", "true", cwd=workspace).returncode == 2
    wrong = cantrip("sandbox", "run", "--writable", "/usr", "--", "true", cwd=workspace)
    assert wrong.returncode == 2
    assert "/usr" in wrong.stderr
    assert "did you mean 'policy'" in cantrip("sandbox", "polcy", cwd=workspace).stderr
    for words in (("sandbox",), ("sandbox", "run"), ("sandbox", "policy"), ("doctor",)):
        shown = cantrip(*words, "--help", cwd=workspace)
        assert shown.returncode == 0
        assert "Example" in shown.stdout


def test_doctor(workspace: Path) -> None:
    done = cantrip("doctor", "--json", cwd=workspace, ANTHROPIC_API_KEY="s3cret-key-value")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    states = {f["name"]: f["state"] for f in report["findings"]}
    assert report["sandbox"] is True
    for name in ("read_outside", "write_outside", "network", "namespaces", "environment", "processes", "host"):
        assert states[f"sandbox.{name}"] == "ok"
    assert states["sandbox.hosts"] == "ok"
    counted = control_groups() is not None or os.getuid() != 0
    assert states["limits.processes"] == ("ok" if counted else "note")
    keys = next(f for f in report["findings"] if f["name"] == "provider.anthropic")
    assert keys["text"] == "ANTHROPIC_API_KEY from the environment"
    assert "s3cret" not in done.stdout
    assert "bubblewrap" in cantrip("doctor", "--all", cwd=workspace).stdout
    # First the verdict, then what needs somebody; all that is in order is left out.
    short = cantrip("doctor", cwd=workspace).stdout.splitlines()
    assert "works here: commands and Python run, in a sandbox that passed" in short[0]
    assert "no model yet" in "".join(short)
    assert not [line for line in short if "bubblewrap" in line or "extras" in line]
    assert len(short) < len(report["findings"]) / 2


MISSING = """
import sys
from cantrip_acp.sandbox.launch import availability as probe
probe.find_bubblewrap.__defaults__ = ("/nowhere",)
from cantrip_acp.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--json"], ["sandbox", "run", "--", "touch ran"]])
def test_no_sandbox_is_status_3_with_the_mend(words: list[str], workspace: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MISSING, *words], cwd=workspace, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert "apt install bubblewrap" in done.stdout + done.stderr
    assert list(workspace.iterdir()) == []


def flood(words: list[str], cwd: Path, stream: str) -> tuple[int, int, bytes, int]:
    """Run a command whose output goes to a file: status, peak of resident memory in MiB, stderr's end, bytes printed."""
    out, err, most = cwd / "flood.out", cwd / "flood.err", 0
    with open(out, "wb") as one, open(err, "wb") as two:
        child = subprocess.Popen(
            [sys.executable, "-m", "cantrip_acp.cli.main", "sandbox", "run", *words], cwd=cwd, stdout=one, stderr=two
        )
        # Not getrusage: what that says of a child begins with what its parent used.
        while child.poll() is None:
            status = Path(f"/proc/{child.pid}/status").read_text()
            peak = [int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM:")]
            if b"cantrip_acp" in Path(f"/proc/{child.pid}/cmdline").read_bytes():
                most = max([most, *peak])
            time.sleep(0.01)
    printed = (out if stream == "stdout" else err).stat().st_size
    tail = err.read_bytes()[-500:]
    out.unlink()
    err.unlink()
    return child.returncode, most, tail, printed


@pytest.mark.parametrize(
    ("words", "stream"),
    [
        (["--", "yes"], "stdout"),
        (["--", "yes >&2"], "stderr"),
        (["--python", "--", "while True: print('y' * 1000)"], "stdout"),
        (["--python", "--", "import sys\nwhile True: sys.stderr.write('y' * 1000)"], "stderr"),
    ],
)
def test_run_stops_a_flood_at_its_limit_in_little_memory(workspace: Path, words: list[str], stream: str) -> None:
    status, memory, said, printed = flood(words, workspace, stream)
    assert status == 137
    assert 10 < memory < 100
    assert b"more than 67,108,864 bytes" in said
    assert 64 * 2**20 <= printed < 65 * 2**20


def test_run_takes_another_limit(workspace: Path) -> None:
    done = cantrip("sandbox", "run", "--max-output-bytes", "10", "--", "printf 0123456789", cwd=workspace)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0123456789", "")
    done = cantrip("sandbox", "run", "--max-output-bytes", "10", "--", "yes", cwd=workspace)
    assert (done.returncode, done.stdout) == (137, "y\n" * 5)
    assert "more than 10 bytes" in done.stderr


@pytest.mark.parametrize("words", [["--", "yes"], ["--python", "--", "while True: print('y')"]])
def test_run_ends_quietly_when_its_reader_leaves(workspace: Path, words: list[str]) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "cantrip_acp.cli.main", "sandbox", "run", *words],
        cwd=workspace,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.read(2) == b"y\n"
    child.stdout.close()
    assert child.wait(60) == 141
    assert child.stderr.read() == b""
    child.stderr.close()
