"""Agents that die, hang, print junk or send nonsense: a clear error with their stderr, and nothing left behind."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.integration.client.client_processes import CLIENT, alive, environment, rude, run_client
from tests.support.waiting import settled, wait_for


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("dies", ["exited with status 3 before it answered initialize and had not said anything", "config.toml:3: no such key"]),
        ("killed", ["was killed by SIGKILL before it answered initialize"]),
        ("silent", ["did not answer initialize within 4 s", "I am just sitting here"]),
        ("closes_stdout", ["closed its stdout before it answered initialize"]),
        ("junk", ["did not answer initialize within 4 s", "not a message", "this is not the protocol"]),
        ("dies_in_turn", ["exited with status 139 before it answered session/prompt", "Segmentation fault"]),
        ("hangs_in_turn", ["did not answer session/prompt within 4 s; and did not end when cancelled"]),
        ("version_two", ["speaks ACP version 2, this client speaks version 1"]),
        ("no_session", ["answered session/new without a sessionId"]),
    ],
)  # fmt: skip
def test_each_failure_is_told(way: str, words: list[str]) -> None:
    started = time.monotonic()
    done = run_client("--timeout", "4", "--prompt", "x", agent=rude(way))
    assert done.returncode == 1, done
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    # The timeout, the seconds that a cancelled agent has, and those before SIGTERM and SIGKILL.
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("way", ["junk_between", "broken_json", "huge_line", "too_huge_line", "floods_stderr"])
def test_what_does_not_end_the_session(way: str) -> None:
    done = run_client("--json", "--prompt", "x", agent=rude(way), timeout=90)
    assert done.returncode == 0, done.stderr[-2000:]
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[-1]["stop_reason"] == "end_turn"
    if way != "floods_stderr":
        updates = [event["update"]["content"]["text"] for event in events if event["event"] == "update"]
        assert len(updates) == 1
        assert updates[0] == "fine" or (way == "huge_line" and len(updates[0]) == 20_000_004)


def test_nonsense_is_refused_or_shown_and_the_turn_goes_on() -> None:
    done = run_client("--prompt", "x", agent=rude("unknown"))
    assert done.returncode == 0, done.stderr
    refused = [-32601, -32601, -32601, -32602, -32602, -32602, -32602, -32602]
    assert f"codes {refused}" in done.stdout
    assert "from_the_future: hm" in done.stdout
    assert "[image image/png, 3 bytes]" in done.stdout
    assert "Traceback" not in done.stderr


def test_escapes_never_reach_the_terminal() -> None:
    done = run_client("--verbose", "--prompt", "x", agent=rude("escapes"))
    assert done.returncode == 1  # its stop reason is none that the protocol knows
    for stream in (done.stdout, done.stderr):
        assert not any(ord(c) < 32 and c not in "\n\t" for c in stream), repr(stream)
        assert "\x9b" not in stream
        assert "\u202e" not in stream
    assert "title clip clear" in done.stdout
    assert "▸ gone next" in done.stdout
    assert "agent: log" in done.stderr


@pytest.mark.parametrize(("way", "seconds", "status"), [("deaf", 4, 1), ("leaves_child", 120, 0)])
def test_nothing_of_the_agent_is_left(way: str, seconds: int, status: int) -> None:
    done = run_client("--timeout", str(seconds), "--prompt", "x", agent=rude(way), timeout=200)
    assert done.returncode == status, done
    child = int(done.stdout.partition("● child ")[2].split()[0])
    wait_for(lambda: not alive(child))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_agent_too(number: signal.Signals) -> None:
    client = subprocess.Popen(
        [*CLIENT, "--json", "--prompt", "x", "--", *rude("deaf")], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert client.stdout is not None
    out = ""
    while "child" not in out:
        out = client.stdout.readline()
    child = int(json.loads(out)["update"]["content"]["text"].split()[1])
    assert alive(child)
    client.send_signal(number)
    if number == signal.SIGINT:
        # The first one asks the agent to cancel; this agent is deaf.
        time.sleep(0.5)
        assert client.poll() is None
        client.send_signal(number)
    assert client.wait(60) == 128 + number
    client.stdout.close()
    assert not alive(child)


def test_interrupt_cancels_the_turn() -> None:
    from tests.cli.integration.client.client_processes import POLITE

    client = subprocess.Popen(
        [*CLIENT, "--json", "--prompt", "wait", "--", *POLITE], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert client.stdout is not None
    out = ""
    while "waiting" not in out:
        out += client.stdout.readline()
    client.send_signal(signal.SIGINT)
    rest = client.stdout.read()
    assert client.wait(60) == 130
    client.stdout.close()
    assert json.loads(rest.splitlines()[-1])["stop_reason"] == "cancelled"


def test_a_killed_client_leaves_no_agent() -> None:
    from tests.cli.integration.client.client_processes import POLITE

    client = subprocess.Popen(
        [*CLIENT, "--json", "--prompt", "wait", "--", *POLITE], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert client.stdout is not None
    out = ""
    while "waiting" not in out:
        out += client.stdout.readline()
    children = Path(f"/proc/{client.pid}/task").iterdir()
    agents = [int(pid) for task in children for pid in (task / "children").read_text().split()]
    assert agents
    os.kill(client.pid, signal.SIGKILL)
    client.wait(60)
    client.stdout.close()
    # Its stdin has ended; this agent is polite.
    end = time.monotonic() + 60
    while any(alive(pid) for pid in agents):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_stdin_is_awaited_leaves(number: signal.Signals) -> None:
    from tests.cli.integration.client.client_processes import POLITE

    client = subprocess.Popen(
        [*CLIENT, "--json", "--", *POLITE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write("say hi\n")
    client.stdin.flush()
    while '"result"' not in client.stdout.readline():
        pass
    settled(client.pid)
    client.send_signal(number)
    assert client.wait(60) == 128 + number
    client.stdin.close()
    client.stdout.close()
