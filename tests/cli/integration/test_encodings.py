"""Files of JSON lines as Windows programs save them: a byte order mark is read, and another encoding is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.integration.test_cast_batch import rows, run

GREETER = """\
name: greeter
crystal: {provider: scripted, responses: [{content: Grüße., repeat: true}]}
circle: {medium: conversation, gates: [done], wards: [{max_turns: 2}]}
"""
SUITE = """\
dataset: intents.jsonl
recipe: greeter.cantrip.yaml
checks: [{answer: "Grüße"}]
"""
INTENTS = '"Sag Grüße."\r\n{"intent": "Und jetzt?", "reference": "Grüße."}\r\n'
ASKED = "save the file in the encoding UTF-8"
OTHERS = ["utf-16", "cp1252"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "greeter.cantrip.yaml").write_text(GREETER)
    return tmp_path


def test_intents_with_a_byte_order_mark(folder: Path) -> None:
    (folder / "intents.jsonl").write_bytes(INTENTS.encode("utf-8-sig"))
    done = run(folder, "cast-batch", "greeter.cantrip.yaml", "intents.jsonl", "--out", "out.jsonl")
    assert [row["intent"] for row in rows((folder / "out.jsonl").read_text())] == ["Sag Grüße.", "Und jetzt?"], (
        done.stderr
    )


@pytest.mark.parametrize("encoding", OTHERS)
def test_intents_in_another_encoding(folder: Path, encoding: str) -> None:
    (folder / "intents.jsonl").write_bytes(INTENTS.encode(encoding))
    done = run(folder, "cast-batch", "greeter.cantrip.yaml", "intents.jsonl", status=2)
    assert f"intents.jsonl:1: not UTF-8 (byte 0xf{'f' if encoding == 'utf-16' else 'c'}); {ASKED}" in done.stderr


@pytest.mark.parametrize("encoding", ["utf-8-sig", *OTHERS])
def test_a_data_set_of_eval(folder: Path, encoding: str) -> None:
    (folder / "intents.jsonl").write_bytes(INTENTS.encode(encoding))
    (folder / "suite.yaml").write_text(SUITE, "utf-8")
    good = encoding == "utf-8-sig"
    done = run(folder, "eval", "suite.yaml", "--list", status=0 if good else 2)
    assert ("Sag Grüße." in done.stdout) if good else (ASKED in done.stderr)


@pytest.mark.parametrize("kind", ["verifiers", "atif"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", *OTHERS])
def test_traces_that_are_imported(folder: Path, kind: str, encoding: str) -> None:
    run(folder, "cast", "greeter.cantrip.yaml", "Sag Grüße.", "--loom", "a.loom.jsonl")
    run(folder, "loom", "export", "a.loom.jsonl", "--format", kind, "-o", "traces.jsonl")
    lines = [
        json.dumps(json.loads(line), ensure_ascii=False) for line in (folder / "traces.jsonl").read_text().splitlines()
    ]
    (folder / "traces.jsonl").write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))
    good = encoding == "utf-8-sig"
    for words in ((), ("--from", kind)):
        into = f"{len(words)}.loom.jsonl"
        done = run(folder, "loom", "import", "traces.jsonl", "--into", into, *words, status=0 if good else 2)
        assert good or ASKED in done.stderr, done.stderr


@pytest.mark.parametrize("encoding", ["utf-8-sig", *OTHERS])
def test_tuples_that_are_put_out(folder: Path, encoding: str) -> None:
    tuples = '{"schema": "yool-tuple/v1", "lane": "x", "payload": {"intent": "Grüße"}}'
    (folder / "tuples.json").write_bytes(tuples.encode(encoding))
    done = run(folder, "tuple", "out", "tuples.json", status=2)
    assert (ASKED in done.stderr) == (encoding != "utf-8-sig"), done.stderr
    assert "not JSON" not in done.stderr
