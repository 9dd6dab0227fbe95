"""`cantrip loom show|thread`."""

import json
from pathlib import Path

import pytest

from cantrip_acp import Loom
from tests.support.command_line import GREETER, Terminal, recipe, run

LOUD = GREETER.replace("content: I try the gate.", 'content: "I \\e[31mtry\\e]0;x\\a the gate."').replace(
    "usage: {prompt_tokens: 10, completion_tokens: 3}", "usage: {prompt_tokens: 10, completion_tokens: 3, cost: 0.25}"
)


@pytest.fixture
def loom(tmp_path: Path) -> Path:
    file = tmp_path / "x.loom.jsonl"
    for intent in ("Say hello.", "Say it again."):
        assert run("cast", recipe(tmp_path, LOUD), intent, "--loom", file, cwd=tmp_path).status == 0
    return file


def test_show(tmp_path: Path, loom: Path) -> None:
    done = run("loom", "show", loom, cwd=tmp_path)
    assert done.status == 0, done.err
    with Loom.open(loom, readonly=True) as held:
        turns = [turn.id for turn in held.turns() if turn.role == "crystal"]
    assert all(turn in done.out for turn in turns)
    for part in (
        "4 turns · 2 casts · 2 threads",
        "❯ Say hello.",
        "❯ Say it again.",
        "$0.2500",
        "■ done · 2 turns",
        "said hello",
    ):
        assert part in done.out
    assert "damage" not in done.out


def test_show_as_json(tmp_path: Path, loom: Path) -> None:
    data = json.loads(run("loom", "show", loom, "--json", cwd=tmp_path).out)
    assert [cast["end"]["result"] for cast in data["casts"]] == ["said hello", "said hello"]
    assert [thread["state"] for thread in data["threads"]] == ["terminated", "terminated"]
    assert data["problems"] == []
    assert len([turn for turn in data["turns"] if turn["role"] == "crystal"]) == 4


def test_thread(tmp_path: Path, loom: Path) -> None:
    done = run("loom", "thread", loom, cwd=tmp_path)
    assert done.status == 0, done.err
    assert "Say it again." in done.out
    assert "❯ Say hello." not in done.out
    assert "I try the gate." in done.out
    assert "\x1b" not in done.out
    assert '▸ echo {"text": "hello"}' in done.out
    assert "■ terminated · 2 turns · 30 tokens in, 7 out · $0.2500" in done.out


@pytest.mark.parametrize(
    ("medium", "responses", "shown", "ended"),
    [
        (
            "code",
            "[{code: 'print(1); [2]'}, {code: 1/0}]",
            ("=> [2]", "ZeroDivisionError"),
            ("✓ completed", "✗ failed"),
        ),
        (
            "bash",
            "[{tool_calls: [{gate: bash, args: {command: 'echo a; exit 3'}}, {gate: bash, args: {command: echo b}}]}, "
            "{bash: sleep 600}]",
            ("timed out after 4 seconds",),
            ("✗ exit 3", "✓ exit 0", "✗ timed out"),
        ),
    ],
)
def test_each_program_of_a_thread_ends_as_it_did(
    tmp_path: Path, medium: str, responses: str, shown: tuple[str, ...], ended: tuple[str, ...]
) -> None:
    cantrip = recipe(
        tmp_path,
        f"name: x\ncrystal: {{provider: scripted, responses: {responses}}}\n"
        f"circle: {{medium: {medium}, gates: [done], wards: [{{max_turns: 2}}, {{bash_timeout_ms: 4000}}]}}\n",
    )
    run("cast", cantrip, "Go.", "--loom", "x.loom.jsonl", cwd=tmp_path)
    out = run("loom", "thread", "x.loom.jsonl", cwd=tmp_path).out
    assert [line.strip() for line in out.splitlines() if line.strip()[:1] in ("✓", "✗")] == list(ended)
    assert all(text in out for text in shown)
    line = run("loom", "show", "x.loom.jsonl", cwd=tmp_path).out
    assert all(end[2:] in line for end in ended)


def test_a_thread_by_its_leaf(tmp_path: Path, loom: Path) -> None:
    with Loom.open(loom, readonly=True) as held:
        first = held.leaves()[0]
    by_id = json.loads(run("loom", "thread", loom, first, "--json", cwd=tmp_path).out)
    assert by_id["leaf"] == first
    assert [turn["role"] for turn in by_id["turns"]] == ["call", "crystal", "crystal"]
    assert json.loads(run("loom", "thread", loom, first[2:-1], "--json", cwd=tmp_path).out) == by_id
    for wanted, says in (("t_0", "write more of the id"), ("t_zzz", "no turn's id begins with")):
        done = run("loom", "thread", loom, wanted, cwd=tmp_path)
        assert done.status == 2
        assert says in done.err


def test_the_newest_loom_and_a_sessions_id(tmp_path: Path) -> None:
    path = recipe(tmp_path, GREETER)
    assert run("loom", "show", cwd=tmp_path).status == 2
    done = run("cast", path, "the older", "--json", cwd=tmp_path)
    older = Path(done.lines[-1]["loom"])
    run("cast", path, "the newer", cwd=tmp_path)
    assert "the newer" in run("loom", "show", cwd=tmp_path).out
    assert "the older" in run("loom", "show", older.name.removesuffix(".loom.jsonl"), cwd=tmp_path).out


def test_damage_is_told(tmp_path: Path, loom: Path) -> None:
    lines = loom.read_bytes().splitlines(keepends=True)
    loom.write_bytes(b"".join([lines[0], b"{nonsense\n", *lines[1:]]) + b'{"type": "turn", "id": "t_torn')
    before = loom.read_bytes()
    done = run("loom", "show", loom, cwd=tmp_path)
    assert done.status == 0
    assert "damage   line 2: " in done.out
    assert done.out.count("damage   ") == 2
    assert "said hello" in done.out
    assert loom.read_bytes() == before
    assert len(json.loads(run("loom", "thread", loom, "--json", cwd=tmp_path).out)["problems"]) == 2


def test_a_cast_that_never_ended(tmp_path: Path, loom: Path) -> None:
    lines = loom.read_bytes().splitlines(keepends=True)
    loom.write_bytes(b"".join(lines[:-1]))
    assert "no end is recorded, because the process ended: interrupted" in run("loom", "show", loom, cwd=tmp_path).out


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file"),
        (b"", "0 turns"),
        (b"a: b\nc: d\n", "this is not a loom"),
        (b"\xff\0", "this is not a loom"),
    ],
)
def test_what_is_no_loom(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "other.txt"
    if content is not None:
        file.write_bytes(content)
    done = run("loom", "show", file, cwd=tmp_path)
    assert done.status == (0 if content == b"" else 2)
    assert says in done.out + done.err


def test_colour_on_a_terminal(tmp_path: Path, loom: Path) -> None:
    with Terminal("loom", "thread", loom, cwd=tmp_path) as terminal:
        assert terminal.end() == 0
        assert "\x1b[" in terminal.seen
        # What the crystal said cannot set the window's title.
        assert "\x1b]0;" not in terminal.seen
