"""Gates as commands: what arrives, what comes back, and what forged calls do (nothing)."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cantrip_acp.gates.contract import Gate
from cantrip_acp.sandbox import GateWire, Outcome, Sandbox, SandboxOptions
from cantrip_acp.sandbox.gate_ipc import server
from tests.sandbox.integration.conftest import both_back_ends


def gate(name: str, main_text: str | None = None, required: tuple[str, ...] = (), **properties: Any) -> Gate:
    parameters = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return Gate(name, f"What {name} does.", parameters, lambda args, context: args, main_text=main_text)


TEXT = {"type": "string"}
GATES = {
    g.name: g
    for g in (
        gate("say", "text", ("text",), text=TEXT, limit={"type": "integer"}, loud={"type": "boolean"}),
        gate("give", text=TEXT),
        gate("many", paths={"type": "array", "items": TEXT}, options={"type": "object"}),
        gate("fail"),
        gate("slow"),
        gate("test"),
    )
}


class Box:
    """A sandbox with gates that answer with what they were called with."""

    def __init__(self, folder: Path, shell: str | None = None) -> None:
        folder.mkdir()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answer: Any = None
        self.wire = GateWire(GATES, str(folder), shell=shell)
        self.sandbox = Sandbox(SandboxOptions(bash_timeout_ms=30_000), None, wire=self.wire)

    async def run(self, command: str, **more: Any) -> Outcome:
        return await self.sandbox.run(command, call=self.call, **more)

    async def call(self, name: str, args: Mapping[str, object]) -> tuple[object, bool]:
        self.calls.append((name, dict(args)))
        if name == "fail":
            return "it did not work", True
        if name == "slow":
            await anyio.sleep(600)
        return self.answer if self.answer is not None else dict(args), False


@pytest.fixture(params=["dash", "bash"])
def box(request: pytest.FixtureRequest, tmp_path: Path, back_end: str) -> Box:
    shell = shutil.which(request.param, path="/bin:/usr/bin")
    if shell is None:
        pytest.skip(f"{request.param} is not installed")
    return Box(tmp_path / "wire", shell)


@pytest.fixture
def fast(tmp_path: Path, back_end: str) -> Box:
    return Box(tmp_path / "wire")


@both_back_ends
async def test_arguments_by_place_and_by_name(box: Box) -> None:
    outcome = await box.run(
        "say hello --limit 20; say --text=hello --loud; say --limit=3 'two words' --no-loud; cantrip_say -- --text;"
        'say --json \'{"text": "a", "limit": 1}\'; say -5'
    )
    assert outcome.stderr == ""
    assert [args for _, args in box.calls] == [
        {"text": "hello", "limit": 20},
        {"text": "hello", "loud": True},
        {"text": "two words", "limit": 3, "loud": False},
        {"text": "--text"},
        {"text": "a", "limit": 1},
        {"text": "-5"},
    ]


async def test_lists_and_objects(box: Box) -> None:
    await box.run("many a b 'c d'; many --paths a --paths b; many --paths '[\"x\"]' --options '{\"k\": [1]}'; many")
    assert [args for _, args in box.calls] == [
        {"paths": ["a", "b", "c d"]},
        {"paths": ["a", "b"]},
        {"paths": ["x"], "options": {"k": [1]}},
        {},
    ]


@both_back_ends
async def test_standard_input_is_the_main_text_where_that_is_absent(box: Box) -> None:
    outcome = await box.run(
        "printf 'from\\nhere' | say; printf x | say -; printf unread | say given; say </dev/null; say - </dev/null;"
        "printf 'a\\nb\\n' | while read l; do say \"$l\"; done"
    )
    assert outcome.stderr == ""
    assert [args for _, args in box.calls] == [
        {"text": "from\nhere"},
        {"text": "x"},
        {"text": "given"},
        {},
        {"text": ""},
        {"text": "a"},
        {"text": "b"},
    ]


@pytest.mark.parametrize("shell", [None, "/bin/bash"])
async def test_a_result_without_a_final_newline_has_one_where_the_command_prints_it(
    shell: str | None, tmp_path: Path
) -> None:
    """The next command begins its own line. What goes to a file, a pipe or a variable is the result, byte for byte."""
    box = Box(tmp_path / "wire", shell)
    box.answer = "a b"
    same = 'printf "a b" | cmp - /tmp/o && echo same'
    expected = {
        "give; command -v give": "a b\n/run/cantrip/bin/give\n",
        "give; give": "a b\na b\n",
        "(give); { give; }; for i in 1 2; do give; done": "a b\n" * 4,
        "give && bash -c give": "a b\na b\n",
        "f() { give; }; f; echo c": "a b\nc\n",
        'x=$(give); echo "[$x]"': "[a b]\n",
        f"give > /tmp/o; {same}": "same\n",
        f"{{ give; }} > /tmp/o; {same}": "same\n",
        f"for i in 1; do give; done > /tmp/o; {same}": "same\n",
        f"give | tee /tmp/o | cat; {same}": "a bsame\n",
        f"(exec > /tmp/o; give); {same}": "same\n",
        "give | od -An -c": "   a       b\n",
        "give 2>&1 | cat; echo": "a b\n",
    }
    assert {command: (await box.run(command)).stdout for command in expected} == expected
    box.answer = "a b\n"
    assert (await box.run("give; give")).stdout == "a b\na b\n"
    box.answer = ""
    assert (await box.run("give; give")).stdout == ""
    box.answer = "a\0"
    assert (await box.run("give | od -An -c")).stdout.split() == ["a", r"\0"]


@both_back_ends
async def test_results_errors_and_statuses(box: Box) -> None:
    box.answer = "line\nno newline at the end"
    assert (await box.run("give | cat")).stdout == box.answer
    box.answer = {"a": [1, "ü"]}
    assert (await box.run("give; echo $?")).stdout == '{"a": [1, "ü"]}\n0\n'
    failed = await box.run("fail; echo $?")
    assert (failed.stdout, failed.stderr) == ("1\n", "fail: it did not work\n")
    usage = await box.run("give a b; echo $?; say --limt 3; echo $?; say --limit; echo $?; say a --limit 1 --limit 2")
    assert usage.stdout == "2\n2\n2\n"
    assert usage.exit_code == 2
    assert "quote text" in usage.stderr
    assert "did you mean --limit?" in usage.stderr
    assert "needs a value" in usage.stderr
    assert "used twice" in usage.stderr


async def test_a_builtin_hides_a_gate_but_not_its_other_name(box: Box) -> None:
    outcome = await box.run("test -d /; cantrip_test && [ -x $(command -v cantrip_test) ]; type -P say cantrip_say")
    assert outcome.exit_code == 0
    assert [name for name, _ in box.calls] == ["test"]


async def test_help_prints_the_contract_and_calls_nothing(box: Box) -> None:
    outcome = await box.run("say --help")
    assert outcome.stdout.startswith("Usage: say TEXT [--limit N] [--loud]\n\nWhat say does.\n")
    assert "standard input" in outcome.stdout
    assert box.calls == []


async def test_an_undeclared_name_is_127(box: Box) -> None:
    assert (await box.run("nothing_like_it")).exit_code == 127
    forged = await box.run("ln -s /run/cantrip/call /tmp/nope; /tmp/nope x")
    assert forged.exit_code == 127
    assert "no such gate" in forged.stderr
    assert box.calls == []


async def test_a_result_of_a_megabyte(fast: Box) -> None:
    fast.answer = "".join(f"{n} 'quoted' \\n\n" for n in range(60_000))
    began = time.perf_counter()
    outcome = await fast.run("give | md5sum")
    import hashlib

    assert outcome.stdout.split()[0] == hashlib.md5(fast.answer.encode()).hexdigest()
    assert time.perf_counter() - began < 60


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=80)


@pytest.mark.timeout(400)
def test_arguments_and_results_are_exact(tmp_path: Path) -> None:
    """Every text arrives and comes back as it is: newlines, quotes, control characters, emoji, leading dashes."""
    box = Box(tmp_path / "wire")
    chosen: list[list[str]] = []

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(TEXTS, min_size=1, max_size=8))
    def collect(texts: list[str]) -> None:
        chosen.append(texts)

    collect()

    async def main() -> None:
        async def echo(name: str, args: Mapping[str, object]) -> tuple[object, bool]:
            box.calls.append((name, dict(args)))
            return args["text"], False

        for texts in chosen:
            box.calls.clear()
            command = "".join(
                f"give -- {shlex.quote(t)} > /tmp/o; cmp /tmp/o <(printf %s {shlex.quote(t)})\n" for t in texts
            )
            outcome = await box.sandbox.run(command, call=echo)
            assert outcome.stderr == ""
            assert [args["text"] for _, args in box.calls] == texts
            assert outcome.stdout == ""

    asyncio.run(main())


async def test_a_nul_in_a_result(box: Box) -> None:
    box.answer = "a\0b\0\0c"
    assert (await box.run("give | od -An -c")).stdout.split() == ["a", r"\0", "b", r"\0", r"\0", "c"]


async def test_text_that_is_not_unicode_is_refused(box: Box) -> None:
    outcome = await box.run(r"say $'\xff'; printf '\xff' | say")
    assert outcome.exit_code == 2
    assert outcome.stderr.count("not valid UTF-8") == 2
    assert box.calls == []


@both_back_ends
async def test_fifty_callers_at_once(box: Box) -> None:
    outcome = await box.run(
        'for i in $(seq 50); do (say $i > $TMPDIR/$i; grep -q "\\"$i\\"" $TMPDIR/$i || echo wrong $i) & done; wait'
    )
    assert (outcome.stdout, outcome.stderr) == ("", "")
    assert sorted(int(args["text"]) for _, args in box.calls) == list(range(1, 51))


async def test_more_callers_than_slots(fast: Box) -> None:
    outcome = await fast.run("for i in $(seq 200); do say $i >/dev/null & done; wait")
    assert outcome.stderr == ""
    assert len(fast.calls) == 200


FORGED = {
    "a number without a request": "for i in $(seq 0 99); do echo $i; done > {w}/announce",
    "nonsense": "head -c 100000 /dev/urandom > {w}/announce",
    "a line without an end": "head -c 300000 /dev/zero | tr '\\0' 7 > {w}/announce",
    "half written": "printf 'say' > {w}/requests/3; echo 3 > {w}/announce; sleep 0.1",
    "empty": ": > {w}/requests/3; echo 3 > {w}/announce; sleep 0.1",
    "a link": "ln -s /etc/passwd {w}/requests/3; echo 3 > {w}/announce; sleep 0.1",
    "a link to a device": "ln -s /dev/zero {w}/requests/3; echo 3 > {w}/announce; sleep 0.1",
    "a fifo": "mkfifo {w}/requests/3; echo 3 > {w}/announce; sleep 0.1",
    "a folder": "mkdir {w}/requests/3; echo 3 > {w}/announce; sleep 0.1",
    "oversized": "head -c 9000000 /dev/zero > {w}/requests/3; echo 3 > {w}/announce; sleep 0.2",
    "everything that fits": "head -c 90000000 /dev/zero > {w}/requests/3; echo 3 > {w}/announce; sleep 0.2",
    "no reader": "printf 'say\\0/\\0x\\0' > {w}/requests/3; echo 3 > {w}/announce; sleep 0.1",
    "input that was not asked for": "for i in 1 2 3; do echo 3i; done > {w}/announce",
    "input that never comes": "printf 'say\\0/\\0' > {w}/requests/3; (exec 3<>{w}/answers/3; echo 3 > {w}/announce; sleep 0.2)",
    "an undeclared gate": "printf 'rm\\0/\\0x\\0' > {w}/requests/3; echo 3 > {w}/announce; sleep 0.1",
    "replaced wiring": "rm -rf {w}/answers {w}/bin/*; mv {w}/announce /tmp; ln -sf /etc/passwd {w}/answers/5; echo x > {w}/call",
    "answers to others": "for i in $(seq 0 63); do (echo 'echo forged' 1<>{w}/answers/$i >&1 &) ; done; sleep 0.2",
    "a reader that never reads": "cd {w}; printf 'give\\0/\\0x\\0' > requests/3; exec 3<>answers/3; echo 3 > announce; sleep .2",
}


@pytest.mark.parametrize("command", FORGED.values(), ids=FORGED.keys())
async def test_forged_calls_harm_nothing(command: str, fast: Box) -> None:
    fast.answer = "x" * 200_000
    before = len(os.listdir("/proc/self/fd"))
    outcome = await fast.run(command.replace("{w}", "/run/cantrip"), timeout_ms=60_000)
    assert outcome.ended_because is None
    assert outcome.duration_ms < 50_000
    assert all(name in ("say", "give") for name, _ in fast.calls)
    assert len(os.listdir("/proc/self/fd")) <= before
    # The wire works as before, in the same command's successor.
    fast.calls.clear()
    fast.answer = None
    again = await fast.run("say after; say again")
    assert again.stderr == ""
    assert [args["text"] for _, args in fast.calls] == ["after", "again"]


async def test_the_same_number_many_times_is_one_call(fast: Box) -> None:
    await fast.run(
        "printf 'say\\0/\\0x\\0' > /run/cantrip/requests/3; exec 3<>/run/cantrip/answers/3;"
        "for i in $(seq 50); do printf '3\\n3\\n3\\n'; done > /run/cantrip/announce; sleep 0.2"
    )
    assert len(fast.calls) == 1


async def test_a_flood_of_calls_is_bounded(fast: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.WireSession, "most_calls", 100)
    outcome = await fast.run("for i in $(seq 130); do say $i >/dev/null || exit 9; done")
    assert outcome.exit_code == 9
    assert "no more than 100 gate calls" in outcome.stderr
    assert len(fast.calls) == 100


@both_back_ends
async def test_a_call_after_the_end_is_refused(fast: Box) -> None:
    """What a command leaves announced when it ends is not called by the next one's beginning."""
    await fast.run(
        "printf 'say\\0/\\0late\\0' > /run/cantrip/requests/3; setsid sh -c 'sleep 0.1; echo 3 > /run/cantrip/announce' &"
    )
    await anyio.sleep(0.3)
    fd = os.open(f"{fast.wire.folder}/announce", os.O_RDWR | os.O_NONBLOCK)
    os.write(fd, b"3\n")
    os.close(fd)
    await fast.run("true")
    assert fast.calls == []


@both_back_ends
async def test_a_call_under_way_when_its_command_ends_is_cancelled(fast: Box) -> None:
    began = time.perf_counter()
    outcome = await fast.run("slow & sleep 0.2")
    assert outcome.exit_code == 0
    assert time.perf_counter() - began < 60
    timed_out = await fast.run("slow", timeout_ms=300)
    assert timed_out.timed_out


async def test_a_failure_of_the_host_is_its_own(fast: Box) -> None:
    async def broken(name: str, args: Mapping[str, object]) -> tuple[object, bool]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fast.sandbox.run("say x; sleep 9", call=broken)


async def test_gates_of_two_sandboxes_do_not_meet(tmp_path: Path) -> None:
    one, two = Box(tmp_path / "one"), Box(tmp_path / "two")
    async with anyio.create_task_group() as group:
        group.start_soon(one.run, "for i in $(seq 20); do say one >/dev/null; done")
        group.start_soon(two.run, "for i in $(seq 20); do say two >/dev/null; done")
    assert {args["text"] for _, args in one.calls} == {"one"}
    assert {args["text"] for _, args in two.calls} == {"two"}


async def test_two_commands_of_one_sandbox_share_the_wire(fast: Box) -> None:
    """Not how the medium runs them; still nothing may be lost for good."""
    await fast.run("say first")
    await fast.run("say second")
    assert [args["text"] for _, args in fast.calls] == ["first", "second"]
