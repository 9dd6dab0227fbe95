"""No command prints a control character or a direction mark that it did not make, whatever models, files and tuples say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run

HOSTILE = (
    "a\x9b31mRED\x9d0;title\x9c \u202eback\u202c \u2066i\u2069 \x1b]0;other\x07 \x1b[2J \x7f \u2028 \U000e0041 end"
)
SUSPECT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
RESPONSES: list[dict[str, Any]] = [
    {"thinking": HOSTILE, "content": HOSTILE, "tool_calls": [{"gate": "echo", "args": {"text": HOSTILE}}]},
    {"content": HOSTILE, "tool_calls": [{"gate": HOSTILE, "args": {HOSTILE: HOSTILE}}]},
    {"tool_calls": [{"gate": "done", "args": {"answer": HOSTILE}}]},
]


def recipe(**keys: Any) -> str:
    """A recipe that says hostile text wherever it can. JSON is YAML."""
    crystal = {"provider": "scripted", "responses": RESPONSES}
    return json.dumps(
        {"name": "one", "crystal": crystal, "circle": {"gates": ["done", "echo"], "wards": [{"max_turns": 5}]}, **keys}
    )


COMMANDS = [
    "cast-batch one.cantrip.yaml intents.txt --space work.db --loom batch.loom.jsonl",
    "cast-batch one.cantrip.yaml intents.txt --space other.db --json",
    "cast-batch one.cantrip.yaml intents.txt --space third.db --report page.html --out rows.jsonl",
    "cast one.cantrip.yaml INTENT --loom one.loom.jsonl",
    "cast one.cantrip.yaml INTENT --json",
    "cast one.cantrip.yaml INTENT --quiet",
    """tuple rd {"lane":"odd"} --space odd.db""",
    """tuple rd {"lane":"odd"} --json --space odd.db""",
    """tuple rd {"lane":"INTENT"} --space odd.db""",
    "tuple rd INTENT --space odd.db",
    "tuple status --space odd.db",
    "tuple status --json --space odd.db",
    "tuple status --space work.db",
    "tuple status --json --space work.db",
    *(f"loom {each} one.loom.jsonl" for each in ("show", "list", "tree", "thread", "stats", "check")),
    *(f"loom {each} one.loom.jsonl --json" for each in ("show", "list", "tree", "thread", "stats", "check")),
    "loom context one.loom.jsonl 3",
    "loom show batch.loom.jsonl",
    *(
        f"loom export one.loom.jsonl --raw --format {each}"
        for each in ("trl-sft", "openai", "otlp", "atif", "verifiers", "art", "trl-prompts")
    ),
    "eval suite.yaml --recipe one.cantrip.yaml --out results --json",
    "eval suite.yaml --recipe one.cantrip.yaml --out results2",
    "recipe show one.cantrip.yaml",
    "recipe check odd.cantrip.yaml",
    "recipe check odd.cantrip.yaml --json",
    "cast odd.cantrip.yaml INTENT",
    "catalog build",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path
    (folder / "one.cantrip.yaml").write_text(recipe(description=HOSTILE))
    (folder / "odd.cantrip.yaml").write_text(recipe(**{HOSTILE: HOSTILE}))
    (folder / "intents.txt").write_text(json.dumps(HOSTILE)[1:-1] + "\n" + HOSTILE.replace("\u2028", "") + "\n")
    checks = [{"answer": "nothing of the kind"}, {"reference": "contains"}]
    (folder / "suite.yaml").write_text(
        json.dumps({"name": "s", "tasks": [{"name": "a", "intent": HOSTILE, "reference": HOSTILE, "checks": checks}]})
    )
    (folder / "AGENTS.md").write_text(f"# {HOSTILE}\n")
    work = {
        "schema": "yool-tuple/v1",
        "lane": "odd",
        "payload": [{"yool": "agent.lint.ruff", "args": {"intent": HOSTILE}}],
    }
    (folder / "work.json").write_text(json.dumps(work))
    done = run("tuple", "out", "work.json", "--space", "odd.db", cwd=folder)
    assert done.status == 0, done.err
    return folder


@pytest.mark.timeout(300)
def test_commands_print_only_what_they_made(folder: Path) -> None:
    wrong = []
    for command in COMMANDS:
        words = [HOSTILE if word == "INTENT" else word.replace("INTENT", "\\u009b31m") for word in command.split(" ")]
        done = run(*words, cwd=folder)
        printed = done.out + done.err
        if not printed.strip():
            wrong.append(f"{command}: nothing")
        if found := SUSPECT.search(printed):
            wrong.append(f"{command}: {printed[max(0, found.start() - 100) : found.end() + 100]!r}")
        if "export" in command and "\\u202eback" not in json.dumps(
            [json.loads(line) for line in done.out.splitlines()]
        ):
            # What was escaped is still the same text.
            wrong.append(f"{command}: {done}")
    assert not wrong, "\n".join(wrong)
