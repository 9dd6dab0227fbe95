"""Requests among each other: their order, those that are taken back, those that ask for diagnostics, folders that come and go."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.lsp_client import Client

GOOD = "name: a\ncircle:\n  gates: [done]\n  wards:\n    - max_turns: 3\n"
BAD = GOOD.replace("max_turns", "max_trns")
PULLS = {
    "textDocument": {"diagnostic": {"dynamicRegistration": False}},
    "workspace": {"diagnostics": {"refreshSupport": True}},
}


def test_an_answer_is_of_the_text_as_it_was_when_it_was_asked_for(client: Client) -> None:
    uri = client.open("a.cantrip.yaml", GOOD)
    asked = []
    for number in range(40):
        about = {"textDocument": {"uri": uri}}
        spot = {
            "start": {"line": 0, "character": 6},
            "end": {"line": 0, "character": 6 + (1 if number == 0 else len(str(number - 1)))},
        }
        client.change(uri, {"range": spot, "text": str(number)})
        asked.append(client.begin("textDocument/documentSymbol", about))
        asked.append(client.begin("workspace/symbol", {"query": str(number)}))
    for number in range(40):
        symbols = client.reply(asked[2 * number])["result"]
        assert symbols[0]["detail"] == str(number)
        assert "error" not in client.reply(asked[2 * number + 1])


def test_what_is_taken_back_is_answered_all_the_same(client: Client) -> None:
    uri = client.open("a.cantrip.yaml", GOOD)
    numbers = []
    for _ in range(30):
        numbers.append(client.begin("workspace/symbol", {"query": ""}))
        client.tell("$/cancelRequest", {"id": numbers[-1]})
        numbers.append(client.begin("textDocument/hover", client.at(uri, 2, 4)))
        client.tell("$/cancelRequest", {"id": numbers[-1]})
    replies = [client.reply(number) for number in numbers]
    assert {r["error"]["code"] for r in replies if "error" in r} <= {-32800}
    # What is not known, or answered already, is nobody's error.
    client.tell("$/cancelRequest", {"id": "never"})
    client.tell("window/workDoneProgress/cancel", {"token": "never"})
    assert client.ask("textDocument/hover", client.at(uri, 2, 4))


@pytest.mark.timing
def test_a_cancel_is_acknowledged_at_once(client: Client) -> None:
    text = (
        "crystal: {provider: scripted, responses: [{content: hm, delay_ms: 60000}]}\n"
        "circle: {gates: [done], wards: [{max_turns: 3}]}\n"
    )
    uri = client.open("a.cantrip.yaml", text)
    times = []
    for number in range(5):
        given = {"uri": uri, "intent": "Wait.", "loom": str(client.root / f"{number}.loom.jsonl")}
        asked = client.begin("workspace/executeCommand", {"command": "cantrip.cast", "arguments": [given]})
        end = time.monotonic() + 60
        while not client.ask("textDocument/codeLens", {"textDocument": {"uri": uri}})[0]["command"]["title"].startswith(
            "■"
        ):
            assert time.monotonic() < end
            time.sleep(0.02)
        time.sleep(0.3)
        begun = time.perf_counter()
        client.tell("$/cancelRequest", {"id": asked})
        assert client.reply(asked)["error"]["code"] == -32800
        times.append(time.perf_counter() - begun)
        while "■" in str(client.ask("textDocument/codeLens", {"textDocument": {"uri": uri}})):
            assert time.monotonic() < end
            time.sleep(0.02)
    assert sorted(times)[2] <= 0.05, times


def codes(report: dict[str, Any]) -> list[str]:
    return [d["code"] for d in report["items"]]


def test_who_asks_for_diagnostics_is_not_told(connect: Callable[..., Client]) -> None:
    client = connect(capabilities=PULLS)
    provider = client.initialized["capabilities"]["diagnosticProvider"]
    assert (provider["workspaceDiagnostics"], provider["identifier"]) == (True, "cantrip")
    uri = client.open("a.cantrip.yaml", BAD)
    about = {"textDocument": {"uri": uri}}
    first = client.ask("textDocument/diagnostic", about)
    assert (first["kind"], sorted(codes(first))) == ("full", ["unknown-key"])
    same = client.ask("textDocument/diagnostic", {**about, "previousResultId": first["resultId"]})
    assert same == {"kind": "unchanged", "resultId": first["resultId"]}
    client.change(uri, {"text": GOOD})
    assert codes(client.ask("textDocument/diagnostic", {**about, "previousResultId": first["resultId"]})) == []
    # The whole workspace, open or not.
    (client.root / "b.cantrip.yaml").write_text(BAD)
    (client.root / "c.cantrip.yaml").write_text("nope: 1\n")
    reports = {r["uri"]: r for r in client.ask("workspace/diagnostic", {"previousResultIds": []})["items"]}
    assert {u.rpartition("/")[2]: len(r["items"]) for u, r in reports.items()} == {
        "a.cantrip.yaml": 0,
        "b.cantrip.yaml": 1,
        "c.cantrip.yaml": 2,
    }
    assert reports[uri]["version"] == 2
    known = [{"uri": u, "value": r["resultId"]} for u, r in reports.items()]
    (client.root / "b.cantrip.yaml").write_text(GOOD)
    again = {r["uri"]: r for r in client.ask("workspace/diagnostic", {"previousResultIds": known})["items"]}
    assert {u.rpartition("/")[2]: r["kind"] for u, r in again.items()} == {
        "a.cantrip.yaml": "unchanged",
        "b.cantrip.yaml": "full",
        "c.cantrip.yaml": "unchanged",
    }
    # A file that a recipe names comes to be: the client is asked to ask.
    client.change(uri, {"text": GOOD + "call: {system_prompt_file: p.md}\n"})
    assert codes(client.ask("textDocument/diagnostic", about)) == ["missing-file"]
    (client.root / "p.md").write_text("x")
    client.kept.clear()
    changed = {"uri": client.uri("p.md"), "type": 1}
    client.tell("workspace/didChangeWatchedFiles", {"changes": [changed]})
    end = time.monotonic() + 60
    while not any(m["method"] == "workspace/diagnostic/refresh" for m in client.kept):
        assert time.monotonic() < end
        client.listen(0.1)
    assert codes(client.ask("textDocument/diagnostic", about)) == []
    assert not [m for m in client.kept if m["method"] == "textDocument/publishDiagnostics"]


def test_who_does_not_ask_is_told(client: Client) -> None:
    assert "diagnosticProvider" not in client.initialized["capabilities"]
    assert client.diagnostics(client.open("a.cantrip.yaml", BAD))


def test_folders_come_and_go(connect: Callable[..., Client]) -> None:
    client = connect()
    for name in ("one", "two"):
        (client.root / name).mkdir()
        (client.root / name / f"{name}.cantrip.yaml").write_text(f"name: {name}\n")

    def change(added: list[str], removed: list[str]) -> None:
        event = {
            "added": [{"uri": client.uri(name), "name": name} for name in added],
            "removed": [{"uri": client.uri(name), "name": name} for name in removed],
        }
        client.tell("workspace/didChangeWorkspaceFolders", {"event": event})

    def names() -> set[str]:
        return {s["name"] for s in client.ask("workspace/symbol", {"query": ""})}

    assert names() == {"one", "two"}
    root = {"uri": client.root.as_uri(), "name": "root"}
    client.tell("workspace/didChangeWorkspaceFolders", {"event": {"added": [], "removed": [root]}})
    change(["one"], [])
    assert names() == {"one"}
    change(["two"], ["one"])
    assert names() == {"two"}
    change([], ["two"])
    assert names() == set()
