"""A command that the tests fork does what an executed one does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import fork_client, processes
from tests.support.command_line import SLEEPER, recipe
from tests.support.processes import AGENT, CANTRIP

EXECUTED = {"TESTS_EXECUTE_COMMANDS": "1"}


def outcomes(folder: Path, command: list[str], stdin: bytes = b"") -> list[tuple[int, bytes, bytes]]:
    """The status, output and errors of a command: forked, then executed."""
    found = []
    for more in ({}, EXECUTED):
        done = processes.run(
            command, input=stdin, capture_output=True, cwd=folder, timeout=60, env={**os.environ, **more}
        )
        found.append((done.returncode, done.stdout, done.stderr))
    return found


@pytest.mark.parametrize(
    "command",
    [
        [*CANTRIP, "--version"],
        [*CANTRIP, "loom", "--help"],
        [*CANTRIP, "nonsense"],
        [*CANTRIP, "recipe", "check", "r.cantrip.yaml"],
        [*CANTRIP, "cast", "nowhere.cantrip.yaml", "x"],
        [AGENT, "--nonsense"],
        [AGENT, "--help"],
        [
            sys.executable,
            "-c",
            "import sys, os; print(sys.argv, __name__, os.getcwd(), sys.path[0]); sys.exit(3)",
            "a",
            "b",
        ],
        [sys.executable, "-c", "import os; print('x', flush=True); os.kill(os.getpid(), 9)"],
    ],
    ids=lambda command: " ".join(command[-2:]).rpartition("/")[2],
)
def test_output_and_status_are_the_same(command: list[str], tmp_path: Path) -> None:
    recipe(tmp_path, SLEEPER)
    forked, executed = outcomes(tmp_path, command)
    assert forked == executed
    assert forked[1] or forked[2]


def test_an_agent_answers_and_ends_with_its_input(tmp_path: Path) -> None:
    forked, executed = outcomes(
        tmp_path, [AGENT], b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n\xff\n'
    )
    assert forked[:2] == executed[:2]
    assert forked[1].count(b"\n") == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("session", [False, True])
def test_signals_end_it_in_the_same_way(number: signal.Signals, session: bool, tmp_path: Path) -> None:
    path = recipe(tmp_path, SLEEPER)
    found = []
    for more in ({}, EXECUTED):
        process = processes.Popen(
            [*CANTRIP, "cast", str(path), "x"], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, **more}, start_new_session=session,
        )  # fmt: skip
        assert process.stdout is not None
        while b"echo begun" not in (line := process.stdout.readline()):
            assert line, "it ended before it began"
        assert (os.getsid(process.pid) == process.pid) is session
        assert process.poll() is None
        process.send_signal(number)
        process.communicate(timeout=60)
        found.append(process.returncode)
    assert found[0] == found[1]


def test_other_programs_and_settings_are_executed(tmp_path: Path) -> None:
    assert processes.run(["echo", "x"], capture_output=True).stdout == b"x\n"
    other = processes.run([*CANTRIP, "--version"], capture_output=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert other.returncode == 0
    with pytest.raises(FileNotFoundError):
        processes.run([*CANTRIP, "--version"], cwd=tmp_path / "nowhere")


def in_a_shell(folder: Path, place: Path, script: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{place}{os.pathsep}{os.environ['PATH']}", **more}
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


def test_commands_of_a_shell_do_the_same(tmp_path: Path) -> None:
    scripts = [
        "cantrip --version; cantrip recipe check r.cantrip.yaml | wc -l; cantrip nonsense; echo $?; cantrip loom --help | head -1",
        "mkdir -p in && cd in && cantrip recipe check ../r.cantrip.yaml && X=1 cantrip nonsense && echo never",
        """echo '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}' | cantrip-acp""",
        # A signal of the shell, to a command beside it.
        "touch out; cantrip cast r.cantrip.yaml x >out 2>&1 & until grep -q 'echo begun' out; do sleep 0.1; done; "
        "kill $!; wait $!; echo $?",
    ]
    found = []
    for name, place in (("executed", Path(AGENT).parent), ("forked", processes.programs())):
        # A folder for each: in the output of the other's cast, the shell would see its own begun before it has.
        folder = tmp_path / name
        folder.mkdir()
        recipe(folder, SLEEPER)
        found.append([in_a_shell(folder, place, script) for script in scripts])
    executed, forked = found
    assert executed[-1].stdout == "130\n"
    assert [(e.returncode, e.stdout, e.stderr) for e in executed] == [
        (f.returncode, f.stdout, f.stderr) for f in forked
    ]
    assert all(each.stdout or each.stderr for each in forked)


def test_a_shell_with_settings_of_its_own_executes_it(tmp_path: Path) -> None:
    done = in_a_shell(tmp_path, processes.programs(), "cantrip --version", PYTHONVERBOSE="1")
    assert done.stdout.startswith("cantrip")
    assert "import 'cantrip_acp.cli.main'" in done.stderr


def test_a_signal_that_comes_before_the_process_is_known_reaches_it(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door, subprocess.Popen(["sleep", "60"]) as command:
        door.bind(str(tmp_path / "door"))
        door.listen()
        settings = json.dumps(fork_client.settings(os.environ))
        words = [sys.executable, "-IS", fork_client.__file__, str(tmp_path / "door"), settings, "module", "/bin/false"]
        with subprocess.Popen(words, stderr=subprocess.PIPE) as client:
            server, _ = door.accept()
            with server:
                _, streams, *_ = socket.recv_fds(server, 1 << 20, 3)
                for fd in streams:
                    os.close(fd)
                client.terminate()
                server.sendall(b"%d\n" % command.pid)
                assert command.wait(30) == -signal.SIGTERM
                server.sendall(b"%d\n" % (130 << 8))
            assert client.wait(60) == 130


def test_what_kills_a_command_of_a_shell_ends_it(tmp_path: Path) -> None:
    path = recipe(tmp_path, SLEEPER)
    program = processes.programs() / "cantrip"
    with subprocess.Popen(
        [program, "cast", str(path), "x"], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        while b"echo begun" not in (line := process.stdout.readline()):
            assert line, "it ended before it began"
        process.kill()
        # The end of the stream: nobody has it any more.
        process.stdout.read()
        assert process.wait(60) == -signal.SIGKILL
