"""Conformance suites in the editor: what is wrong with cases, completion, meanings, and running them from a lens."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.lsp.test_looms import heard
from tests.support.lsp_client import Client

GOOD = """\
- rule: LOOP-3
  name: done ends a cast
  setup:
    crystal: {responses: [{tool_calls: [{gate: done, args: {answer: ok}}]}]}
    circle: {gates: [done], wards: [{max_turns: 2}]}
  action: {cast: {intent: Go.}}
  expect: {result: ok, terminated: true}
"""
WRONG = GOOD.replace("result: ok", "result: another").replace("LOOP-3", "LOOP-2")


def command(**given: Any) -> dict[str, Any]:
    return {"command": "cantrip.conformance.run", "arguments": [given]}


def told(found: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(d["code"], d["range"]["start"]["line"], d["range"]["start"]["character"]) for d in found]


def test_what_is_wrong_is_said_in_its_place(client: Client) -> None:
    uri = client.open("tests.yaml", GOOD + WRONG)
    assert client.diagnostics(uri) == []
    broken = GOOD.replace("LOOP-3", "LOOOP-3").replace("terminated: true", "terminatd: true, loom: {turns: [{idd: 1}]}")
    version = client.change(uri, {"text": GOOD + broken + '- rule: "𝄞"\n- rule: [é\n'})
    found = client.diagnostics(uri, version)
    first = GOOD.count("\n")
    assert told(found)[:3] == [
        ("unknown-rule", first, 8),
        ("unknown-key", first + 6, 23),
        ("unknown-key", first + 6, 56),
    ]
    assert "did you mean 'LOOP-3'" in found[0]["message"]
    assert "did you mean 'terminated'" in found[1]["message"]
    assert found[1]["message"].startswith("expect.terminatd")
    assert [code for code, *_ in told(found)[3:]] == ["schema", "unknown-rule", "syntax"]
    # The same cases further down: what was read once is moved.
    version = client.change(
        uri, {"range": {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 0}}, "text": "# a\n\n"}
    )
    moved = client.diagnostics(uri, version)
    assert [(code, line - 2, column) for code, line, column in told(moved)] == told(found)
    version = client.change(uri, {"text": "name: no list\nrule: x\n"})
    (whole,) = client.diagnostics(uri, version)
    assert (whole["code"], "a suite is a YAML list" in whole["message"]) == ("syntax", True)
    client.tell("textDocument/didClose", {"textDocument": {"uri": uri}})
    heard(client, "textDocument/publishDiagnostics", lambda p: p["uri"] == uri and "version" not in p)


def test_another_tools_file_of_that_name_is_left_alone(client: Client) -> None:
    uri = client.open("tests.yaml", "pipeline:\n  - test: unit\n    steps: {a: 1}\n")
    assert client.diagnostics(uri) == []
    assert client.ask("textDocument/documentSymbol", {"textDocument": {"uri": uri}}) is None
    assert client.ask("textDocument/codeLens", {"textDocument": {"uri": uri}}) is None


@pytest.mark.parametrize(
    ("text", "some", "none"),
    [
        ("- rule: ", {"LOOP-3", "WARD-1"}, {"setup"}),
        ("- rule: LOOP-3\n  ", {"name", "setup", "expect"}, {"rule"}),
        ("- rule: LOOP-3\n  expect:\n    ", {"result", "loom", "terminated"}, {"setup"}),
        ("- setup:\n    circle:\n      gates: [", {"done", "echo"}, {"wards"}),
        ("- setup:\n    circle:\n      wards:\n        - ", {"max_turns", "max_depth"}, {"gates"}),
        ("- setup:\n    circle:\n      medium: ", {"code", "bash"}, set()),
        ("- expect:\n    terminated: ", {"true", "false"}, set()),
        ("- expect: {loom: {turns: [{", {"id", "reward", "metadata"}, {"turns"}),
        ("- expect:\n    loom:\n      turns:\n        - id: ", {"not_null"}, set()),
        ("- rule: x\n  notes: |\n    some ", set(), {"rule", "setup"}),
    ],
)
def test_completion(shared: Client, text: str, some: set[str], none: set[str]) -> None:
    client = shared
    uri = client.open(f"n{time.monotonic_ns()}.tests.yaml", text)
    lines = text.split("\n")
    found = client.ask("textDocument/completion", client.at(uri, len(lines) - 1, len(lines[-1])))
    labels = {item["label"] for item in (found or {"items": []})["items"]}
    assert some <= labels
    assert not none & labels


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):
    made = Client(tmp_path_factory.mktemp("suites"))
    yield made
    made.close()


def test_hover_and_symbols(shared: Client) -> None:
    client = shared
    uri = client.open("hover.tests.yaml", GOOD + WRONG)
    rule = client.ask("textDocument/hover", client.at(uri, 0, 10))["contents"]["value"]
    assert "**LOOP-3**" in rule
    assert "the loop stops after that gate" in rule
    assert "fails the case" in client.ask("textDocument/hover", client.at(uri, 6, 4))["contents"]["value"]
    assert "max_turns" in client.ask("textDocument/hover", client.at(uri, 4, 37))["contents"]["value"]
    symbols = client.ask("textDocument/documentSymbol", {"textDocument": {"uri": uri}})
    assert [s["name"] for s in symbols] == ["LOOP-3 done ends a cast", "LOOP-2 done ends a cast"]
    assert [c["name"] for c in symbols[0]["children"]] == ["setup", "action", "expect"]


def test_every_rule_of_our_own_suite_has_a_meaning(client: Client) -> None:
    path = Path(__file__).parents[3] / "tests.yaml"
    uri = client.open("tests.yaml", path.read_text())
    assert client.diagnostics(uri) == []


def test_cases_are_run_from_their_lenses(client: Client) -> None:
    uri = client.open("tests.yaml", GOOD + WRONG)
    lenses = client.ask("textDocument/codeLens", {"textDocument": {"uri": uri}})
    assert [lens["command"]["title"] for lens in lenses] == ["▶ Run all 2 cases", "▶ Run", "▶ Run"]
    second = lenses[2]["command"]
    assert second["arguments"] == [{"uri": uri, "line": 8}]
    asked = {"command": second["command"], "arguments": second["arguments"], "workDoneToken": "run"}
    found = client.ask("workspace/executeCommand", asked)
    assert (found["passed"], found["failed"], found["cases"][0]["problems"][0]["path"]) == (0, 1, "expect.result")
    said = [m["params"]["value"] for m in client.kept if m["method"] == "$/progress"]
    assert said[-1]["message"] == "0 passed, 1 failed, 0 skipped"
    failed = heard(client, "textDocument/publishDiagnostics", lambda p: p["uri"] == uri and p["diagnostics"])
    (one,) = failed["diagnostics"]
    assert (one["code"], one["range"]["start"]) == ("LOOP-2", {"line": 13, "character": 11})
    assert one["message"].startswith("failed: expect.result: expected 'another', got 'ok'")
    assert one["codeDescription"]["href"].endswith("spec.md#loop-2")
    lenses = client.ask("textDocument/codeLens", {"textDocument": {"uri": uri}})
    assert lenses[2]["command"]["title"] == "▶ Run (✗ failed)"
    # Mended, the mark goes before it is run again; then it passes.
    version = client.change(uri, {"text": GOOD + WRONG.replace("another", "ok")})
    assert client.diagnostics(uri, version) == []
    found = client.ask("workspace/executeCommand", command(uri=uri))
    assert (found["passed"], found["failed"], found["cancelled"]) == (2, 0, False)
    found = client.ask("workspace/executeCommand", command(uri=uri, rule="LOOP-3"))
    assert [case["line"] for case in found["cases"]] == [1]
    for wrong, words in (
        (command(uri=uri, line=3), "no case begins there"),
        (command(uri=uri, rule="X-1"), "rule X-1"),
    ):
        assert words in client.reply(client.begin("workspace/executeCommand", wrong))["error"]["message"]
    # A suite that is not open is read from disk.
    (client.root / "other.tests.yaml").write_text(GOOD)
    found = client.ask("workspace/executeCommand", command(uri=client.uri("other.tests.yaml")))
    assert found["passed"] == 1


def test_a_failed_case_of_a_rule_of_ones_own(client: Client) -> None:
    """A rule of the specification marks its own cases; others have a rule of their own, which the page explains."""
    uri = client.open("tests.yaml", WRONG.replace("LOOP-2", "MINE-1"))
    lens = client.ask("textDocument/codeLens", {"textDocument": {"uri": uri}})[-1]["command"]
    asked = {"command": lens["command"], "arguments": lens["arguments"]}
    assert client.ask("workspace/executeCommand", asked)["failed"] == 1
    failed = heard(client, "textDocument/publishDiagnostics", lambda p: p["uri"] == uri and len(p["diagnostics"]) > 1)
    found = {one["code"]: one for one in failed["diagnostics"]}
    assert set(found) == {"unknown-rule", "failed-case"}
    assert found["failed-case"]["message"].startswith("failed: expect.result: expected 'another', got 'ok'")
    assert found["failed-case"]["codeDescription"]["href"].endswith("rules.md#failed-case")
    page = Path(__file__).parents[3] / "cantrip_acp" / "lsp" / "recipes" / "rules.md"
    assert "\n## failed-case\n" in page.read_text()


def test_a_run_can_be_cancelled(client: Client) -> None:
    slow = GOOD.replace("{tool_calls", "{delay_ms: 60000, tool_calls")
    uri = client.open("tests.yaml", GOOD + slow + GOOD)
    asked = client.begin("workspace/executeCommand", {**command(uri=uri), "workDoneToken": "run"})
    heard(client, "$/progress", lambda p: (p["value"].get("message") or "").startswith("2 of 3"))
    assert client.ask("textDocument/hover", client.at(uri, 0, 10))
    client.tell("window/workDoneProgress/cancel", {"token": "run"})
    found = client.reply(asked)["result"]
    assert (found["cancelled"], found["passed"]) == (True, 1)
