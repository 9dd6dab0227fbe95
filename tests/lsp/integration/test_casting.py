"""Casting from the editor: results, progress, cancelling, trust and lenses, over the wire with real processes."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.lsp_client import Client

HEAD = "name: greeter\n"
CIRCLE = "circle:\n  gates: [done]\n  wards:\n    - max_turns: 5\n"
ANSWERS = """\
crystal:
  provider: scripted
  responses:
    - content: thinking about it
      tool_calls: [{gate: echo, args: {text: hi}}]
      usage: {prompt_tokens: 100, completion_tokens: 20}
    - tool_calls: [{gate: done, args: {answer: hello}}]
      usage: {prompt_tokens: 150, completion_tokens: 5}
"""
GREETER = HEAD + ANSWERS + CIRCLE.replace("[done]", "[done, echo]")
SLOW = """\
name: slow
crystal:
  provider: scripted
  responses:
    - tool_calls: [{gate: bash, args: {command: "sleep 987.MARK"}}]
    - tool_calls: [{gate: done, args: {answer: late}}]
circle:
  medium: bash
  gates: [done]
  wards: [{max_turns: 5}]
"""
PROGRESS = {"window": {"workDoneProgress": True, "showDocument": {"support": True}}}


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("CANTRIP_STATE_DIR", str(folder))
    return folder


def command(name: str, **given: Any) -> dict[str, Any]:
    return {"command": name, "arguments": [given]}


def cast(client: Client, uri: str, **given: Any) -> Any:
    return client.ask("workspace/executeCommand", command("cantrip.cast", uri=uri, **given))


def progress(client: Client) -> list[dict[str, Any]]:
    return [m["params"] for m in client.kept if m["method"] == "$/progress"]


def refused(client: Client, params: dict[str, Any]) -> dict[str, Any]:
    return client.reply(client.begin("workspace/executeCommand", params))["error"]


def sleeping(mark: str) -> list[int]:
    """The processes that sleep for the time that carries this mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:1] == [b"sleep"] and words[1:2] == [f"987.{mark}".encode()]:
                found.append(int(entry.name))
    return found


def eventually(holds: Callable[[], Any], client: Client | None = None, patience: float = 60.0) -> Any:
    end = time.monotonic() + patience
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < end, "it never came"
        if client is not None:
            client.listen(0.05)
        else:
            time.sleep(0.05)


def test_the_result_is_data_and_the_loom_is_where_the_command_line_puts_it(client: Client, state: Path) -> None:
    uri = client.open("a.cantrip.yaml", GREETER)  # never saved
    found = cast(client, uri, intent="Say hello.")
    assert {k: found[k] for k in ("result", "reason", "terminated", "truncated", "turns", "intent")} == {
        "result": "hello",
        "reason": "done",
        "terminated": True,
        "truncated": False,
        "turns": 2,
        "intent": "Say hello.",
    }
    assert found["usage"]["prompt_tokens"] == 250
    loom = Path(found["loom"])
    assert loom.parent == state / "looms"
    casts = [record for record in map(json.loads, loom.read_text().splitlines()) if record["type"] == "cast"]
    assert casts[0]["intent"] == "Say hello."
    assert found["cast_id"] in loom.read_text()
    # The next one is on the intent of before, and can be recorded elsewhere.
    other = client.root / "mine.loom.jsonl"
    again = cast(client, uri, loom=str(other))
    assert again["intent"] == "Say hello."
    assert again["loom"] == str(other)


@pytest.mark.parametrize("mine", [False, True])
def test_progress_tells_turns_and_the_last_words(connect: Callable[..., Client], mine: bool) -> None:
    client = connect(capabilities=PROGRESS)
    text = GREETER.replace("content: thinking", "delay_ms: 300\n      content: thinking")
    text = text.replace("- tool_calls: [{gate: done", "- delay_ms: 600\n      tool_calls: [{gate: done")
    text = text.replace("completion_tokens: 20}", "completion_tokens: 20, cost: 0.25}")
    uri = client.open("a.cantrip.yaml", text)
    params = command("cantrip.cast", uri=uri, intent="Say hello.")
    if mine:
        params["workDoneToken"] = "mine"
    client.ask("workspace/executeCommand", params)
    told = progress(client)
    asked = [m for m in client.kept if m["method"] == "window/workDoneProgress/create"]
    assert len(asked) == (0 if mine else 1)
    assert {p["token"] for p in told} == {"mine" if mine else asked[0]["params"]["token"]}
    values = [p["value"] for p in told]
    assert (values[0]["kind"], values[0]["title"], values[0]["cancellable"]) == ("begin", "Cast", True)
    assert [v["kind"] for v in values].count("begin") == [v["kind"] for v in values].count("end") == 1
    assert values[-1] == {"kind": "end", "message": "done: hello · 2 turns · $0.2500"}
    said = " ".join(v.get("message") or "" for v in values)
    assert "turn 2 · 120 tokens · $0.2500" in said, values


def test_a_client_without_progress_gets_none(client: Client) -> None:
    cast(client, client.open("a.cantrip.yaml", GREETER), intent="x")
    assert not progress(client)
    assert not [m for m in client.kept if "id" in m]


@pytest.mark.parametrize("how", ["request", "progress", "command"])
def test_cancelling_ends_the_processes(connect: Callable[..., Client], how: str, state: Path) -> None:
    client = connect(capabilities=PROGRESS)
    mark = f"{os.getpid()}{['request', 'progress', 'command'].index(how)}"
    uri = client.open("a.cantrip.yaml", SLOW.replace("MARK", mark))
    number = client.begin("workspace/executeCommand", command("cantrip.cast", uri=uri, intent="Sleep."))
    eventually(lambda: sleeping(mark), client)
    # Other requests are answered meanwhile.
    assert client.ask("textDocument/hover", client.at(uri, 6, 1))["contents"]
    lenses = client.ask("textDocument/codeLens", {"textDocument": {"uri": uri}})
    assert "■ Stop" in [lens["command"]["title"] for lens in lenses]
    if how == "request":
        client.tell("$/cancelRequest", {"id": number})
        assert client.reply(number)["error"]["code"] == -32800
    else:
        if how == "progress":
            token = eventually(lambda: progress(client), client)[0]["token"]
            client.tell("window/workDoneProgress/cancel", {"token": token})
        else:
            assert client.ask("workspace/executeCommand", command("cantrip.stop", uri=uri)) == {"cancelled": 1}
        found = client.reply(number)["result"]
        assert (found["reason"], found["terminated"], found["result"]) == ("cancelled", False, None)
        assert '"cancelled"' in Path(found["loom"]).read_text()
    eventually(lambda: not sleeping(mark))
    eventually(lambda: [p for p in progress(client) if p["value"]["kind"] == "end"], client)


@pytest.mark.parametrize("how", ["exit", "stdin", "kill"])
def test_the_end_of_the_server_is_the_end_of_its_casts(client: Client, how: str) -> None:
    mark = f"{os.getpid()}9{['exit', 'stdin', 'kill'].index(how)}"
    uri = client.open("a.cantrip.yaml", SLOW.replace("MARK", mark))
    client.begin("workspace/executeCommand", command("cantrip.cast", uri=uri, intent="Sleep."))
    eventually(lambda: sleeping(mark), client)
    if how == "exit":
        client.reply(client.begin("shutdown", None))
        client.tell("exit", None)
    elif how == "stdin":
        client.process.stdin.close()
    else:
        client.process.kill()
    client.process.wait(timeout=60)
    eventually(lambda: not sleeping(mark))


def test_what_is_wrong_is_said(client: Client) -> None:
    uri = client.open("a.cantrip.yaml", GREETER)
    assert "did you mean 'cantrip.cast'" in refused(client, command("cantrip.cats"))["message"]
    wrong = refused(client, command("cantrip.cast", uri=uri, intnt="x"))
    assert (wrong["code"], "did you mean 'intent'" in wrong["message"]) == (-32602, True)
    assert "file:///" in refused(client, command("cantrip.cast", uri="untitled:1", intent="x"))["message"]
    none = refused(client, command("cantrip.cast", uri=uri))
    assert none["code"] == -32803
    assert "intent is required" in none["message"]
    assert none["data"]["error"] == "IntentRequired"
    broken = client.open("b.cantrip.yaml", GREETER.replace("done, echo", "done, ecko"))
    said = refused(client, command("cantrip.cast", uri=broken, intent="x"))
    assert "b.cantrip.yaml:11:17: circle.gates[1]: unknown gate 'ecko'; did you mean 'echo'?" in said["message"], said
    failing = client.open("c.cantrip.yaml", HEAD + "crystal: {provider: scripted, responses: []}\n" + CIRCLE)
    failed = refused(client, command("cantrip.cast", uri=failing, intent="x"))
    assert "run out" in failed["message"] or "no more" in failed["message"], failed
    assert Path(failed["data"]["loom"]).exists()


def test_untrusted_recipes_are_refused_until_the_user_says(client: Client) -> None:
    (client.root / ".cantrip").mkdir()
    text = GREETER.replace("[done, echo]", "[done, echo, {python: gates.py}]")
    (client.root / ".cantrip" / "gates.py").write_text(
        'def mine() -> str:\n    """Mine."""\n    return "x"\n\n\nGATES = [mine]\n'
    )
    uri = client.open(".cantrip/a.cantrip.yaml", text, write=True)
    client.diagnostics(uri)

    def titles() -> list[str]:
        lenses = client.ask("textDocument/codeLens", {"textDocument": {"uri": uri}})
        return [lens["command"]["title"] for lens in lenses]

    eventually(lambda: "Trust… (1 key asks for it)" in titles() or None, client)
    wrong = refused(client, command("cantrip.cast", uri=uri, intent="x"))
    assert "its code would run on this machine" in wrong["message"]
    assert f"cantrip trust {client.root}" in wrong["message"]
    assert wrong["data"]["error"] == "UntrustedRecipe"
    offered = wrong["data"]["command"]
    said = client.ask("workspace/executeCommand", {k: offered[k] for k in ("command", "arguments")})
    assert said["folder"] == str(client.root)
    assert [(d["key"], d["line"]) for d in said["demands"]] == [("circle.gates[2].python", 11)]
    assert cast(client, uri, intent="x")["result"] == "hello"
    eventually(lambda: not any(t.startswith("Trust") for t in titles()), client)
    # What is written and not saved is judged, too.
    client.change(uri, {"text": text.replace("hello", "hullo")})
    assert "save it first" in refused(client, command("cantrip.trust", uri=uri))["message"]
    assert refused(client, command("cantrip.cast", uri=uri, intent="x"))["data"]["error"] == "UntrustedRecipe"
    # A recipe elsewhere is trusted for as long as the server lives.
    (client.root / "gates.py").write_text('def mine() -> str:\n    """Mine."""\n    return "x"\n\n\nGATES = [mine]\n')
    other = client.open("b.cantrip.yaml", text)
    assert "cantrip.trust" in refused(client, command("cantrip.cast", uri=other, intent="x"))["message"]
    assert client.ask("workspace/executeCommand", command("cantrip.trust", uri=other))["folder"] is None
    assert cast(client, other, intent="x")["result"] == "hello"
    client.ask("workspace/executeCommand", command("cantrip.trust", uri=other, revoke=True))
    assert refused(client, command("cantrip.cast", uri=other, intent="x"))["data"]["error"] == "UntrustedRecipe"


def test_cast_with_asks_where_the_client_does_not(client: Client) -> None:
    text = "# intent: One.\n# intent: Two.\n" + GREETER
    uri = client.open("a.cantrip.yaml", text)
    client.answers["window/showMessageRequest"] = {"title": "Two."}
    found = client.ask("workspace/executeCommand", command("cantrip.castWith", uri=uri))
    assert found["intent"] == "Two."
    asked = next(m["params"] for m in client.kept if m["method"] == "window/showMessageRequest")
    assert [a["title"] for a in asked["actions"]] == ["One.", "Two."]
    client.answers["window/showMessageRequest"] = None
    assert "no intent was chosen" in refused(client, command("cantrip.castWith", uri=uri))["message"]
    bare = client.open("b.cantrip.yaml", GREETER)
    assert "intent is required" in refused(client, command("cantrip.castWith", uri=bare))["message"]


def test_lenses(connect: Callable[..., Client]) -> None:
    client = connect(capabilities={**PROGRESS, "workspace": {"codeLens": {"refreshSupport": True}}})
    text = (
        "# intent: Say hello.\n# Intent:  Say 𝄞 twice, in as many words as there are; they will be cut off.\n" + GREETER
    )
    uri = client.open("a.cantrip.yaml", text)

    def lenses() -> list[tuple[int, str, str]]:
        found = client.ask("textDocument/codeLens", {"textDocument": {"uri": uri}})
        assert all(lens["command"]["arguments"][0]["uri"] == uri for lens in found)
        return [(x["range"]["start"]["line"], x["command"]["title"], x["command"]["command"]) for x in found]

    assert lenses() == [
        (0, "▶ Cast: Say hello.", "cantrip.cast"),
        (1, "▶ Cast: Say 𝄞 twice, in as many words as there are; they …", "cantrip.cast"),
        (2, "▶ Cast", "cantrip.cast"),
        (2, "Cast with…", "cantrip.castWith"),
    ]
    found = cast(client, uri)
    assert found["intent"] == "Say hello."
    assert [m for m in client.kept if m["method"] == "workspace/codeLens/refresh"]
    assert lenses()[4:] == [
        (2, "✓ done: hello · 2 turns", "cantrip.lastResult"),
        (2, "Open loom", "cantrip.openLoom"),
    ]
    assert client.ask("workspace/executeCommand", command("cantrip.lastResult", uri=uri)) == found
    shown = [m["params"] for m in client.kept if m["method"] == "window/showMessage"]
    assert shown == [{"type": 3, "message": "done: hello · 2 turns"}]
    opened = client.ask("workspace/executeCommand", command("cantrip.openLoom", uri=uri))
    assert opened["uri"] == Path(found["loom"]).as_uri()
    assert [m["params"]["uri"] for m in client.kept if m["method"] == "window/showDocument"] == [opened["uri"]]


def test_the_commands_are_announced(client: Client) -> None:
    offered = client.initialized["capabilities"]["executeCommandProvider"]
    assert offered["workDoneProgress"] is True
    assert {"cantrip.cast", "cantrip.castWith", "cantrip.stop", "cantrip.trust"} <= set(offered["commands"])
