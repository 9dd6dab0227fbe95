"""Looms to look at: one with everything that a page has to show, large ones, and turns that mean harm."""

from __future__ import annotations

import base64
import struct
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from cantrip_acp import Loom
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.records import (
    CastRecord,
    ContextRecord,
    FilesRecord,
    FoldRecord,
    ForkRecord,
    GateRecord,
    LoomHeader,
    Observation,
    Output,
    RewardRecord,
    Turn,
    TurnMetadata,
    Utterance,
)

CALL = {"system_prompt": "You mend **small** projects.\n\n- Read first.\n- Then test.", "temperature": 0.2}
CIRCLE = {"medium": "bash", "gates": ["done", "read_file", "edit_file"], "wards": [{"max_turns": 20}]}
BEGAN = datetime(2026, 3, 4, 10, 0, tzinfo=UTC)


def stamp(seconds: float) -> str:
    """A time so long after the looms began."""
    return (BEGAN + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def png(width: int = 48, height: int = 24) -> str:
    """A picture in base64."""
    line = b"\0" + bytes(value for x in range(width) for value in (x * 5 % 256, 90, 160))
    rows = line * height

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


class Maker:
    """Writes turns one after the other; the clock goes on by itself."""

    def __init__(self, loom: Loom) -> None:
        self.loom = loom
        self.clock = 0.0
        self.count = 0
        self.root = loom.begin("c_sample", CALL, CIRCLE, "e_sample")

    def start(self, cast: str, entity: str, intent: str, parent: str | None = None) -> None:
        self.clock += 1
        self.loom.append(
            CastRecord(cast, "start", entity, "c_sample", None, stamp(self.clock), intent, parent_turn_id=parent)
        )

    def end(self, cast: str, entity: str, reason: str, result: Any = None, turns: int = 1) -> None:
        self.clock += 1
        over = reason in ("done", "text")
        usage = {
            "prompt_tokens": 900 * turns,
            "completion_tokens": 120 * turns,
            "total_tokens": 1020 * turns,
            "cost": 0.0031,
        }
        self.loom.append(
            CastRecord(
                cast, "end", entity, "c_sample", None, stamp(self.clock), result=result, reason=reason, terminated=over,
                truncated=not over, turns=turns, usage=usage,
            )
        )  # fmt: skip

    def turn(
        self,
        parent: str,
        cast: str,
        entity: str,
        sequence: int,
        utterance: Utterance,
        observation: Observation = Observation(),  # noqa: B008
        *,
        seconds: float = 2.0,
        turn_id: str | None = None,
        **more: Any,
    ) -> str:
        self.count += 1
        self.clock += seconds
        made = turn_id or f"t_{self.count:06d}"
        told = TurnMetadata(
            900 + 40 * self.count, 80 + self.count % 60, 640, 0.0021, seconds * 1000, stamp(self.clock), "sample-large"
        )
        gates = tuple(record.gate for record in observation.results)
        self.loom.append(
            Turn(made, parent, "c_sample", entity, cast, sequence=sequence, utterance=utterance, observation=observation,
                 gate_calls=gates, metadata=told, **more)
        )  # fmt: skip
        return made


def gate(
    name: str, args: Any, result: Any, *, is_error: bool = False, call: str = "k1"
) -> tuple[Utterance, Observation]:
    """An utterance that calls a gate, and what it saw."""
    text = msgspec.json.encode(args).decode()
    return Utterance(tool_calls=(ToolCall(call, name, text),)), Observation(
        (GateRecord(name, args, result, is_error, call),)
    )


def command(
    text: str, output: Output, content: str | None = None, thinking: str | None = None
) -> tuple[Utterance, Observation]:
    """An utterance that runs a command, and what it saw."""
    args = msgspec.json.encode({"command": text}).decode()
    return Utterance(content, thinking, (ToolCall("k0", "bash", args),), text), Observation((), output)


OLD = "    xs = sorted(xs)\n    return xs[len(xs) // 2]\n"
NEW = (
    "    xs = sorted(xs)\n    middle = len(xs) // 2\n    if len(xs) % 2:\n        return xs[middle]\n"
    "    return (xs[middle - 1] + xs[middle]) / 2\n"
)
OTHER = "    import statistics\n    return statistics.median(xs)\n"
FIRST_WORDS = (
    "Let me run the tests first.\n\nI expect **one** failure in `median`:\n\n"
    "```python\ndef median(xs):\n    return sorted(xs)[len(xs) // 2]  # wrong for an even count\n```"
)

PYTEST = (
    "\x1b[1m============ test session starts ============\x1b[0m\ncollected 3 items\n\n"
    "test_stats.py \x1b[32m.\x1b[0m\x1b[31mF\x1b[0m\x1b[32m.\x1b[0m\n\n\x1b[31m\x1b[1mE   assert 2.5 == 2\x1b[0m\n"
    "\x1b[38;5;208mwarning\x1b[0m \x1b]0;a title\x07and \x1b[48;2;40;60;90m\x1b[97mtrue colour\x1b[0m\n"
    "\x1b[31m1 failed\x1b[0m, \x1b[32m2 passed\x1b[0m in 0.04s\n"
)


def sample(loom: Loom) -> None:
    """A session of two casts with a delegation, a fork that went another way, a fold, rewards, a cast that failed."""
    make = Maker(loom)
    make.start("r_mend", "e_main", "Mend the failing test in stats.py and say what was wrong.")
    loom.append(ContextRecord("x_1", "e_main", "r_mend", "prompt", "chart.png", "", None, stamp(1), "image/png", png()))
    loom.append(
        ContextRecord(
            "x_2",
            "e_main",
            "r_mend",
            "AGENTS.md",
            "AGENTS.md",
            "Run `pytest -q` before you say done.",
            "file:///p/AGENTS.md",
            stamp(1),
        )
    )
    said, seen = command(
        "cd stats && python -m pytest -q", Output(stdout=PYTEST, stderr="1 warning\n", exit_code=1),
        FIRST_WORDS,
        "The intent names stats.py; the tests tell which function is wrong.",
    )  # fmt: skip
    first = make.turn(make.root, "r_mend", "e_main", 1, said, seen, seconds=4.2)
    said, seen = gate(
        "read_file",
        {"path": "stats.py", "limit": 40},
        "def median(xs):\n    xs = sorted(xs)\n    return xs[len(xs) // 2]\n",
    )
    second = make.turn(first, "r_mend", "e_main", 2, said, seen, seconds=0.9)
    said, seen = gate(
        "edit_file",
        {"path": "stats.py", "old_text": OLD,
         "new_text": NEW},
        "edited stats.py at line 2",
    )  # fmt: skip
    third = make.turn(second, "r_mend", "e_main", 3, said, seen, seconds=7.5)
    said, seen = gate("call_agent", {"intent": "Check the edge cases of median."}, "no further failures")
    fourth = make.turn(third, "r_mend", "e_main", 4, said, seen, seconds=1.1)
    make.start("r_child", "e_child", "Check the edge cases of median.", fourth)
    said, seen = command(
        "python - <<'E'\nfrom stats import median\nprint(median([1]))\nE", Output(stdout="1\n", exit_code=0)
    )
    child = make.turn(fourth, "r_child", "e_child", 1, said, seen, seconds=1.4)
    said, seen = gate("done", {"answer": "no further failures"}, "no further failures")
    make.turn(child, "r_child", "e_child", 2, said, seen, seconds=0.6, terminated=True, reason="done")
    make.end("r_child", "e_child", "done", "no further failures", 2)
    said, seen = gate(
        "search", {"pattern": "median", "path": "../secret"}, "'../secret' lies outside of the folder", is_error=True
    )
    fifth = make.turn(fourth, "r_mend", "e_main", 5, said, seen, seconds=0.4, continues=fourth)
    said, seen = gate(
        "done",
        {"answer": "median averaged nothing"},
        {"answer": "median took the upper middle", "files": ["stats.py"], "tests": {"passed": 3, "failed": 0}},
    )
    sixth = make.turn(fifth, "r_mend", "e_main", 6, said, seen, seconds=2.2, terminated=True, reason="done")
    make.end("r_mend", "e_main", "done", "median took the upper middle of an even count.", 6)
    make.start("r_more", "e_main", "Now write a changelog entry.", sixth)
    make.turn(
        sixth,
        "r_more",
        "e_main",
        7,
        Utterance("[Folded: turns 1-4] The test of `median` failed for an even count; it was mended."),
        role="fold",
        turn_id="t_fold",
    )
    loom.append(
        FoldRecord("f_1", "e_main", "r_more", (first, second, third, fourth), "The test was mended.", stamp(40))
    )
    said, seen = gate(
        "write_file",
        {"path": "CHANGELOG.md", "content": "# Changes\n\n- `median` averages the two middle values.\n"},
        "wrote CHANGELOG.md (3 lines)",
    )
    eighth = make.turn("t_fold", "r_more", "e_main", 8, said, seen, seconds=3.1)
    make.turn(
        eighth,
        "r_more",
        "e_main",
        9,
        Utterance("The changelog says what changed for users."),
        terminated=True,
        reason="text",
    )
    make.end("r_more", "e_main", "text", None, 2)
    loom.append(ForkRecord("k_1", second, "e_fork", "replay", ("variable `plot`",), stamp(60)))
    make.start("r_fork", "e_fork", "Mend it with the standard library instead.", second)
    said, seen = gate(
        "edit_file",
        {"path": "stats.py", "old_text": OLD, "new_text": OTHER},
        "edited stats.py at line 2",
    )  # fmt: skip
    forked = make.turn(second, "r_fork", "e_fork", 3, said, seen, seconds=5.0, turn_id="t_forked")
    said, seen = command("python -m pytest -q", PASSED)
    last = make.turn(forked, "r_fork", "e_fork", 4, said, seen, seconds=3.9, truncated=True, reason="max_turns")
    make.end("r_fork", "e_fork", "max_turns", None, 2)
    make.start("r_lone", "e_lone", "A query that failed before its first turn.")
    loom.append(RewardRecord(sixth, 1.0, "ada", "right at the first try", stamp(80)))
    loom.append(RewardRecord(last, -0.5, "judge", "ran out of turns", stamp(81)))
    loom.append(RewardRecord(last, 0.25, "ada", None, stamp(82)))
    loom.append(RewardRecord(last, 0.9, "rank", None, stamp(83), kind="relative", group="g_1"))
    loom.append(RewardRecord(last, None, "judge", "no answer", stamp(84), kind="verifier", grade=True))
    loom.append(
        FilesRecord(
            "w_1", third, "e_main", "/home/ada/stats", "c0ffee" * 6, "7ree", "refs/x", "4ead", ("big.bin: too large",)
        )
    )


PASSED = Output(
    stdout="a \U0001f600 3 passed in 0.02s\n",
    stderr="bold\n",
    exit_code=0,
    stdout_styles=((4, "32"), (12, "")),
    stderr_styles=((0, "1;4"),),
)


def large(path: Path, turns: int) -> Path:
    """A file of so many turns in casts of fifty, with an error in every 97th and a needle in the last but one."""
    encode = msgspec.json.Encoder().encode
    with Loom.open(path) as loom:
        root = loom.begin("c_sample", CALL, CIRCLE, "e_sample")
    body = "the quick brown fox jumps over the lazy dog " * 12
    with open(path, "ab") as file:
        parent = root
        for n in range(turns):
            cast, step = f"r_{n // 50}", n % 50
            entity = f"e_{n // 50}"
            if step == 0:
                parent = root
                file.write(
                    encode(CastRecord(cast, "start", entity, "c_sample", None, stamp(n), f"Task number {n // 50}"))
                    + b"\n"
                )
            said, seen = command(f"echo step {n}", Output(stdout=body, exit_code=1 if n % 97 == 96 else 0))
            if n == turns - 2:
                said = Utterance("a needle in the hay", None, said.tool_calls, said.code)
            last = step == 49 or n == turns - 1
            told = TurnMetadata(1000, 50, 0, 0.001, 100 + n * 37 % 900, stamp(n), "sample-small")
            turn = Turn(f"t_{n:08d}", parent, "c_sample", entity, cast, sequence=step + 1, utterance=said, observation=seen,
                        metadata=told, terminated=last, reason="done" if last else None)  # fmt: skip
            file.write(encode(turn) + b"\n")
            parent = turn.id
            if last:
                file.write(
                    encode(
                        CastRecord(
                            cast,
                            "end",
                            entity,
                            "c_sample",
                            None,
                            stamp(n),
                            reason="done",
                            terminated=True,
                            turns=step + 1,
                        )
                    )
                    + b"\n"
                )
    return path


def header() -> LoomHeader:
    """The first record of a loom that a test writes by hand."""
    return LoomHeader(id="loom_by_hand", created=stamp(0))
