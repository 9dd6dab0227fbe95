"""The bash medium in whole casts: what the entity is told, what comes back, how a cast ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.gates.contract import Gate
from cantrip_acp.mediums.bash import BashMedium
from cantrip_acp.sandbox.launch import availability
from cantrip_acp.text.redaction import shared
from cantrip_acp.types import events
from cantrip_acp.types.errors import DefinitionError, SandboxMissing
from cantrip_acp.types.records import Output, Turn


def bash(command: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": "bash", "args": {"command": command}}]}


def cantrip(workspace: Path, *responses: dict[str, Any], gates: Any = ("done", "echo"), **wards: Any) -> Cantrip:
    wards = {"max_turns": 10, "bash_timeout_ms": 20_000, **wards}
    circle = Circle("bash", gates, wards, workspace=workspace)
    return Cantrip(ScriptedCrystal(list(responses), record_inputs=True), Call(), circle, loom=Loom.memory())


def turns(made: Cantrip) -> list[Turn]:
    assert made.loom is not None
    return [t for t in made.loom.turns() if t.role == "crystal"]


async def test_commands_and_gates_in_one_cast(workspace: Path) -> None:
    made = cantrip(
        workspace,
        bash("echo hello > file; cat file; echo warn >&2; exit 3"),
        bash("cantrip_echo 'through the gate' | tr a-z A-Z"),
        bash('cantrip_done "all of $(cat file)"; sleep 600; echo never'),
        bash_writable_paths=["workspace"],
    )
    began = time.perf_counter()
    result = await made.cast("work")
    assert time.perf_counter() - began < 60
    assert (result.result, result.reason, result.turns) == ("all of hello", "done", 3)
    first, second, third = turns(made)
    assert first.observation.output == Output(stdout="hello\n", stderr="warn\n", exit_code=3)
    assert first.utterance.code == "echo hello > file; cat file; echo warn >&2; exit 3"
    assert second.observation.output is not None
    assert second.observation.output.stdout == "THROUGH THE GATE"
    assert second.gate_calls == ("echo",)
    assert third.gate_calls == ("done",)
    assert third.observation.output is not None
    assert third.observation.output.stdout == ""
    assert third.terminated
    assert (workspace / "file").read_text() == "hello\n"


async def test_what_the_crystal_reads(workspace: Path) -> None:
    made = cantrip(workspace, bash("echo out; echo err >&2; exit 2"), bash("true"), bash("cantrip_done x"))
    await made.cast("work")
    crystal = made.crystal
    assert isinstance(crystal, ScriptedCrystal)
    seen = crystal.invocations[-1].messages
    answers = [m.content for m in seen if m.role == "tool"]
    assert answers == ["out\n[stderr]\nerr\n[exit status 2]", "(no output)"]
    assert [t.name for t in crystal.invocations[0].tools] == ["bash"]


def test_the_presentation_is_stable_and_says_what_holds(workspace: Path) -> None:
    def present(**wards: Any) -> str:
        text = cantrip(workspace, **wards).circle.presentation
        assert text is not None
        return text

    assert present() == present()
    text = present(bash_writable_paths=["workspace"], bash_timeout_ms=30_000, bash_max_output_bytes=5_000)
    assert str(workspace) in text
    assert "no network" in text
    assert "30 seconds" in text
    assert "5,000 bytes" in text
    assert "`cantrip_echo TEXT`" in text
    assert "cantrip_done" in text
    assert "SUBMIT" not in text
    assert "SUBMIT" in present(bash_submit=True)
    assert "network is available" in present(bash_network=True)
    assert "example.org, *.example.net. A proxy" in present(bash_network=["example.org", "*.example.net"])


def test_the_presentation_names_the_private_folder_of_the_system(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text() -> str:
        circle = Circle("bash", ["done"], {"max_turns": 2}, workspace=workspace)
        return circle.medium.presentation(circle) or ""

    assert "/tmp and the home folder are private" in text()
    with monkeypatch.context() as patched:
        patched.setattr("cantrip_acp.mediums.bash.sys.platform", "darwin")
        there = text()
    assert "$TMPDIR and the home folder are private" in there
    assert "No file outside of $TMPDIR and the home folder" in there


async def test_a_noisy_build_is_its_beginning_its_end_and_the_size_of_the_gap(workspace: Path) -> None:
    """The crystal, the record and the reader of events have the same; a progress bar is one line for all of them."""
    build = (
        "for n in $(seq 100); do printf 'progress %d%%\\r' $n; done; printf '\\n'; "
        "seq -f 'line %.0f: warning: unused variable' 50000; echo BUILD OK"
    )
    made = cantrip(workspace, bash(build), bash("cantrip_done x"))
    async with made.cast_stream("work") as seen:
        happened = [event async for event in seen]
    output = turns(made)[0].observation.output
    assert output is not None
    lines = output.stdout.splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("progress 100%", "line 1: warning: unused variable", "BUILD OK")
    gap = next(at for at, line in enumerate(lines) if line.startswith("[… "))
    missing = int(lines[gap + 1].split()[1][:-1]) - int(lines[gap - 1].split()[1][:-1]) - 1
    assert lines[gap].startswith(f"[… {missing:,} lines (")
    assert len(lines) - 1 + missing == 50_002
    end = next(event for event in happened if isinstance(event, events.CommandFinished))
    assert end.shortened is not None
    assert (end.record.truncated, end.shortened.text) == (True, output.stdout)
    crystal = made.crystal
    assert isinstance(crystal, ScriptedCrystal)
    (read,) = [m.content for m in crystal.invocations[-1].messages if m.role == "tool"]
    assert read is not None
    assert read.startswith(output.stdout.rstrip())
    live = "".join(event.data for event in happened if isinstance(event, events.CommandOutput))
    assert live.endswith("line 50000: warning: unused variable\nBUILD OK\n")
    assert len(live) < 3 * made.circle.wards.bash_max_output_bytes


async def test_events_of_a_command(workspace: Path) -> None:
    made = cantrip(
        workspace, bash("echo one; sleep 0.2; echo two >&2; cantrip_echo hi; exit 4"), bash("cantrip_done x")
    )
    seen: list[events.Event] = []
    async with made.cast_stream("work") as stream:
        async for event in stream:
            seen.append(event)
    started = next(e for e in seen if isinstance(e, events.CommandStarted))
    assert (started.tool, started.cwd) == ("bash", str(workspace))
    mine = [e for e in seen if getattr(e, "call_id", None) == started.call_id]
    assert isinstance(mine[0], events.CommandStarted)
    assert isinstance(mine[-1], events.CommandFinished)
    assert not mine[-1].record.timed_out
    assert (mine[-1].exit_code, mine[-1].record.truncated) == (4, False)
    out = [(e.stream, e.data) for e in mine if isinstance(e, events.CommandOutput)]
    assert out[0] == ("stdout", "one\n")
    assert ("stderr", "two\n") in out
    called = next(e for e in seen if isinstance(e, events.GateCalled))
    assert called.via == started.call_id


async def test_a_timeout_is_an_observation_with_what_there_was(workspace: Path) -> None:
    made = cantrip(workspace, bash("echo begun; sleep 600"), bash("cantrip_done x"), bash_timeout_ms=3_000)
    result = await made.cast("work")
    assert result.reason == "done"
    output = turns(made)[0].observation.output
    assert output is not None
    assert output.stdout == "begun\n"
    assert output.exit_code is None
    assert output.error is not None
    assert "timed out after 3 seconds" in output.error


async def test_a_cancel_keeps_the_turn_in_flight(workspace: Path) -> None:
    made = cantrip(workspace, bash("echo begun; sleep 83"))
    async with made.invoke() as entity, entity.stream("work") as stream:
        async for event in stream:
            if isinstance(event, events.CommandOutput):
                entity.cancel()
    assert stream.result is not None
    assert stream.result.reason == "cancelled"
    (turn,) = turns(made)
    assert turn.observation.output is not None
    assert turn.observation.output.stdout == "begun\n"
    assert "cancel" in (turn.observation.output.error or "")


async def test_a_call_that_its_command_did_not_wait_for_is_in_the_record(workspace: Path) -> None:
    begun = anyio.Event()

    async def nap(text: str) -> str:
        begun.set()
        await anyio.sleep(60)
        return text

    async def wait() -> str:
        await begun.wait()
        return "so"

    gates = ("done", Gate.of(nap), Gate.of(wait))
    made = cantrip(workspace, bash("nap given & cantrip_wait"), bash("cantrip_done over"), gates=gates)
    assert (await made.cast("work")).result == "over"
    turn = turns(made)[0]
    assert sorted(turn.gate_calls) == sorted(record.gate for record in turn.observation.results) == ["nap", "wait"]
    (left,) = [record for record in turn.observation.results if record.gate == "nap"]
    assert left.is_error
    assert left.args == {"text": "given"}
    assert "may have had its effect" in left.result


async def test_submit_only_by_its_ward(workspace: Path) -> None:
    off = cantrip(workspace, bash("echo 'SUBMIT: 42'"), bash("cantrip_done later"))
    assert (await off.cast("work")).result == "later"
    on = cantrip(
        workspace,
        bash("echo 'SUBMIT: no'; exit 1"),
        bash("echo 'SUBMIT: neither'; echo more"),
        bash("echo working; echo 'SUBMIT: 42 '"),
        bash_submit=True,
    )
    result = await on.cast("work")
    assert (result.result, result.turns, result.reason) == ("42", 3, "done")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("{}", "missing required argument 'command'"),
        ("not json", "not valid JSON"),
        ("[1]", "JSON object"),
        ('{"command": 3}', "must be text"),
        ('{"command": "  "}', "empty"),
        ('{"command": "ls", "cwd": "/"}', "unknown: 'cwd'"),
        ('{"command": "a\\u0000b"}', "NUL"),
    ],
)
async def test_arguments_that_hold_no_command_are_observations(workspace: Path, args: str, words: str) -> None:
    made = cantrip(workspace, {"tool_calls": [{"gate": "bash", "args": args}]}, bash("cantrip_done x"))
    assert (await made.cast("work")).reason == "done"
    output = turns(made)[0].observation.output
    assert output is not None
    assert words in (output.error or "")


async def test_state_does_not_persist_and_files_do(workspace: Path) -> None:
    made = cantrip(
        workspace,
        bash("X=1; cd /; alias a=b; sleep 84 & echo kept > $OLDPWD/file"),
        bash('echo "[$X] $PWD $(cat file) $(pgrep sleep)"'),
        bash("cantrip_done x"),
        bash_writable_paths=["workspace"],
    )
    await made.cast("work")
    output = turns(made)[1].observation.output
    assert output is not None
    assert output.stdout == f"[] {workspace} kept \n"


async def test_no_sandbox_no_run(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing weaker that could run it."""
    from cantrip_acp.sandbox.launch import self_test

    monkeypatch.setattr(self_test, "_checked", False)
    monkeypatch.setattr(availability.find_bubblewrap, "__defaults__", (str(workspace),))
    made = cantrip(workspace, bash("touch ran"), bash_writable_paths=["workspace"])
    with pytest.raises(SandboxMissing, match="apt install bubblewrap"):
        await made.cast("work")
    assert list(workspace.iterdir()) == []


async def test_wards_that_cannot_be_kept_stop_the_cast(workspace: Path) -> None:
    made = cantrip(workspace, bash("true"), bash_network=["https://example.org/path"])
    with pytest.raises(DefinitionError, match="without a scheme"):
        await made.cast("work")


async def test_secrets_of_this_process_are_masked(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared().add("hunter2hunter2")
    (workspace / "notes").write_text("password hunter2hunter2\n")
    command = "cat notes; printf hunter2; sleep 0.3; printf hunter2; echo; cantrip_echo hunter2hunter2"
    made = cantrip(workspace, bash(command), bash("cantrip_done x"))
    seen: list[str] = []
    async with made.cast_stream("work") as stream:
        async for event in stream:
            seen.append(repr(event))
    assert not [s for s in seen if "hunter2hunter2" in s]
    assert "".join(s for s in seen if "CommandOutput" in s).count("hunter2") == 0
    output = turns(made)[0].observation.output
    assert output is not None
    assert "hunter2" not in output.stdout


async def test_trace_context_is_in_the_environment(workspace: Path) -> None:
    made = cantrip(workspace, bash("echo $TRACEPARENT"), bash("cantrip_done x"))
    result = await made.cast("work", trace_id="ab" * 16)
    output = turns(made)[0].observation.output
    assert output is not None
    assert output.stdout.startswith(f"00-{'ab' * 16}-")
    assert result.trace_id == "ab" * 16


async def test_gates_with_dots_in_their_names(workspace: Path) -> None:
    dotted = Gate(
        "server.look-up",
        "Look something up.",
        {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
        lambda args, context: f"found {args['key']}",
    )
    made = cantrip(workspace, bash("server_look_up moon"), bash("cantrip_done x"), gates=["done", dotted])
    await made.cast("work")
    first = turns(made)[0]
    assert first.observation.output is not None
    assert first.observation.output.stdout == "found moon\n"
    assert first.gate_calls == ("server.look-up",)


async def test_a_gate_error_is_an_observation_and_a_record(workspace: Path) -> None:
    made = cantrip(workspace, bash("cantrip_echo --text 1 --nope 2; cantrip_echo; echo $?"), bash("cantrip_done x"))
    await made.cast("work")
    first = turns(made)[0]
    assert first.observation.output is not None
    assert first.observation.output.stdout == "1\n"
    assert "missing required argument 'text'" in first.observation.output.stderr
    assert [(r.gate, r.is_error) for r in first.observation.results] == [("echo", True)]


async def test_two_entities_at_once(workspace: Path) -> None:
    results: list[Any] = []

    async def one(name: str) -> None:
        commands = [bash(f"cantrip_echo {name}; sleep 0.1") for _ in range(4)]
        made = cantrip(workspace, *commands, bash(f"cantrip_done {name}"), bash_writable_paths=["workspace"])
        results.append((name, (await made.cast("work")).result, {str(t.observation.output) for t in turns(made)[:-1]}))

    async with anyio.create_task_group() as group:
        for name in ("red", "green", "blue"):
            group.start_soon(one, name)
    for name, result, outputs in results:
        assert result == name
        assert len(outputs) == 1
        assert name in outputs.pop()
    assert list(workspace.iterdir()) == []


def test_observations_read_well() -> None:
    observe = BashMedium().observe
    assert observe(Output(stdout="a\n", exit_code=0)) == "a"
    assert observe(Output(stderr="bad\n", exit_code=137)) == "[stderr]\nbad\n[exit status 137, SIGKILL]"
    assert "shortened" in observe(Output(stdout="a", truncated=True, exit_code=0))
    assert observe(Output(exit_code=0)) == "(no output)"


async def test_colours_are_beside_the_text_that_the_model_reads(workspace: Path) -> None:
    shared().add("hunter2hunter2")
    made = cantrip(
        workspace,
        bash(r"printf '\033[31mred\033[0m\n'; printf '\033]0;t\007\033[2Aplain\n' >&2"),
        bash(r"printf 'hunter2\033[31mhunter2'; printf 'hun\033[1mter2hunter2\n' >&2"),
        bash("seq 3 | grep --color=auto 2; ls -d /; env | grep -c COLOR"),
        bash("cantrip_done x"),
    )
    pieces = []
    async with made.cast_stream("work") as stream:
        async for event in stream:
            if isinstance(event, events.CommandOutput):
                pieces.append(event.styled.coded())
    first, second, third, _ = turns(made)
    assert first.observation.output == Output(
        stdout="red\n", stderr="plain\n", exit_code=0, stdout_styles=((0, "31"), (3, ""))
    )
    assert "\x1b[31mred\x1b[0m\n" in pieces
    assert "plain\n" in pieces
    assert second.observation.output is not None
    assert second.observation.output.streams == (("[redacted]", ()), ("[redacted]\n", ((10, "1"),)))
    assert "hunter2" not in repr(second.observation) + "".join(pieces)
    # Nothing asks programs for colours, and a pipe gets none.
    assert third.observation.output is not None
    assert third.observation.output == Output(stdout="2\n/\n0\n", exit_code=1)
    assert isinstance(made.crystal, ScriptedCrystal)
    assert "red\\n" in repr(made.crystal.invocations)
    assert "\\x1b" not in repr(made.crystal.invocations)
