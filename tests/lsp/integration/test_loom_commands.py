"""Forking, rewarding, replaying, exporting and viewing by `workspace/executeCommand`, on looms that real casts left."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lsp.integration.test_looms import heard
from tests.support.lsp_client import Client
from tests.support.lsp_looms import family

RECIPE = """\
crystal:
  provider: scripted
  responses:
    - {when: Say hello., tool_calls: [{gate: echo, args: {text: hello}}], repeat: true}
    - {when: Louder., content: HELLO, delay_ms: 400}  # a progress is shown only while the command runs
    - {when: Slowly., content: later, delay_ms: 60000}
circle:
  gates: [done, echo]
  wards: [{max_turns: 2}]
"""


def command(name: str, **given: Any) -> dict[str, Any]:
    return {"command": f"cantrip.loom.{name}", "arguments": [given]}


def run(client: Client, name: str, **given: Any) -> Any:
    return client.ask("workspace/executeCommand", command(name, **given))


def refused(client: Client, name: str, **given: Any) -> dict[str, Any]:
    return client.reply(client.begin("workspace/executeCommand", command(name, **given)))["error"]


@pytest.fixture
def cast(connect: Callable[..., Client]) -> tuple[Client, str, dict[str, Any]]:
    """A client whose server has cast a recipe into a loom, which is open."""
    window = {"showDocument": {"support": True}, "workDoneProgress": True}
    client = connect(capabilities={"window": window, "workspace": {"codeLens": {"refreshSupport": True}}})
    client.answers["window/showDocument"] = {"success": True}
    client.open("a.cantrip.yaml", RECIPE, write=True)
    given = {"uri": client.uri("a.cantrip.yaml"), "intent": "Say hello.", "loom": str(client.root / "a.loom.jsonl")}
    told = client.ask("workspace/executeCommand", {"command": "cantrip.cast", "arguments": [given]})
    assert told["reason"] == "max_turns"
    return client, client.open("a.loom.jsonl", ""), told


def test_a_fork_goes_on_from_a_turn(cast: tuple[Client, str, dict[str, Any]]) -> None:
    client, uri, _ = cast
    first = client.ask("cantrip/loom/turns", {"uri": uri})["turns"][1]["id"]
    told = run(client, "fork", uri=uri, turn=first, intent="Louder.")
    assert (told["result"], told["reason"], told["from"]) == ("HELLO", "text", first)
    assert told["recipe"] == client.uri("a.cantrip.yaml")  # with which it was cast from here
    heard(client, "cantrip/loom/changed", lambda p: p["uri"] == uri and p["casts"] == 2)
    casts = client.ask("cantrip/loom/casts", {"uri": uri})["casts"]
    assert [c["forkedFrom"] for c in casts] == [None, first]
    begun = [m["params"]["value"] for m in client.kept if m["method"] == "$/progress"]
    assert {"Fork"} <= {value.get("title") for value in begun}
    # Without an intent it is that of the turn's own cast, tried once more.
    again = run(client, "fork", uri=uri, turn=first, recipe="file://" + str(client.root / "a.cantrip.yaml"))
    assert (again["intent"], again["reason"]) == ("Say hello.", "max_turns")
    assert "must be one of auto" in refused(client, "fork", uri=uri, turn=first, state="never")["message"]
    assert refused(client, "fork", uri=uri, turn="t_none")["data"]["error"] == "TurnNotFound"
    assert "no such loom" in refused(client, "fork", uri=client.uri("none.loom.jsonl"))["message"]


def test_a_fork_can_be_cancelled(cast: tuple[Client, str, dict[str, Any]]) -> None:
    client, uri, _ = cast
    first = client.ask("cantrip/loom/turns", {"uri": uri})["turns"][1]["id"]
    asked = client.begin(
        "workspace/executeCommand", {**command("fork", uri=uri, turn=first, intent="Slowly."), "workDoneToken": 7}
    )
    heard(client, "cantrip/loom/changed", lambda p: p["uri"] == uri and p["casts"] == 2)
    assert client.ask("textDocument/hover", client.at(uri, 0, 1))  # others are answered
    locked = refused(client, "reward", uri=uri, turn=first, reward=1)
    assert "a session is writing" in locked["message"]
    client.tell("window/workDoneProgress/cancel", {"token": 7})
    assert client.reply(asked)["result"]["reason"] == "cancelled"
    assert run(client, "reward", uri=uri, turn=first, reward=1)["reward"] == 1


def test_the_user_is_asked_for_what_is_missing(cast: tuple[Client, str, dict[str, Any]]) -> None:
    client, uri, _ = cast
    leaf = client.ask("cantrip/loom/casts", {"uri": uri})["casts"][0]["leaf"]
    client.answers["window/showMessageRequest"] = {"title": "0.5"}
    given = run(client, "reward", uri=uri, turn=leaf[:24], note="halfway")
    assert (given["turn_id"], given["reward"], given["note"]) == (leaf, 0.5, "halfway")
    heard(client, "workspace/codeLens/refresh")
    lenses = client.ask("textDocument/codeLens", {"textDocument": {"uri": uri}})
    assert "Reward: 0.5" in {lens["command"]["title"] for lens in lenses}
    # Another's loom, and two recipes that it might go on with.
    other = family(client.root / "other.loom.jsonl").as_uri()
    (client.root / "b.cantrip.yaml").write_text(RECIPE)
    client.answers["window/showMessageRequest"] = {"title": "a.cantrip.yaml"}
    forked = run(client, "fork", uri=other, turn="t_one", intent="Louder.")
    assert forked["result"] == "HELLO"
    asked = [m["params"] for m in client.kept if m["method"] == "window/showMessageRequest"][-1]
    assert [a["title"] for a in asked["actions"]] == ["a.cantrip.yaml", "b.cantrip.yaml"]
    client.answers["window/showMessageRequest"] = None
    fresh = family(client.root / "fresh.loom.jsonl").as_uri()
    assert "as the argument `recipe`" in refused(client, "fork", uri=fresh, turn="t_one")["message"]
    assert "as the argument `reward`" in refused(client, "reward", uri=fresh, turn="t_one")["message"]


def test_a_recipe_that_asks_for_more_than_it_may_forks_nothing(cast: tuple[Client, str, dict[str, Any]]) -> None:
    client, uri, _ = cast
    evil = client.root / ".cantrip" / "evil.cantrip.yaml"
    evil.parent.mkdir()
    evil.write_text(RECIPE.replace("  gates: [done, echo]", "  gates: [done, echo, {python: gates.py}]"))
    (evil.parent / "gates.py").write_text("def g() -> str:\n    '''G.'''\n    return ''\n")
    for name in ("fork", "replay"):
        error = refused(client, name, uri=uri, turn="", recipe="evil")
        assert (error["data"]["error"], error["data"]["command"]["command"]) == ("UntrustedRecipe", "cantrip.trust")


def test_a_replay_tells_where_it_goes_another_way(cast: tuple[Client, str, dict[str, Any]]) -> None:
    client, uri, _ = cast
    told = run(client, "replay", uri=uri)
    assert (told["turns"], told["divergence"]) == (2, None)
    assert "2 turns, all the same" in heard(client, "window/showMessage")["message"]
    path = client.root / "a.loom.jsonl"
    path.write_text(path.read_text().replace('"result":"hello"', '"result":"hullo"'))
    differs = run(client, "replay", uri=uri)["divergence"]
    assert differs["number"] == 1
    assert run(client, "replay", uri=uri, recordedGates=True)["divergence"] is None


def test_exports_are_files_beside_the_loom(client: Client) -> None:
    path = family(client.root / "a.loom.jsonl")
    uri = path.as_uri()
    told = run(client, "export", uri=uri, turn="t_two", format="trl-sft")
    assert (told["file"], told["rows"]) == (str(client.root / "a.trl-sft.jsonl"), 1)
    row = json.loads(Path(told["file"]).read_text())
    assert "Count the words." in json.dumps(row)
    assert run(client, "export", uri=uri, format="trl-sft")["file"].endswith("a.trl-sft-2.jsonl")
    client.answers["window/showMessageRequest"] = {"title": "openai"}
    asked = run(client, "export", uri=uri, output=str(client.root / "o.jsonl"))
    assert (asked["format"], asked["uri"]) == ("openai", client.uri("o.jsonl"))
    assert "did you mean 'openai'" in refused(client, "export", uri=uri, format="opnai")["message"]
    assert (
        "it is a loom, which is never replaced"
        in refused(client, "export", uri=uri, format="openai", output=str(path))["message"]
    )
    assert refused(client, "export", uri=uri, format="openai", output="o.jsonl")["code"] == -32602


def test_the_viewer_is_opened_by_the_client(cast: tuple[Client, str, dict[str, Any]]) -> None:
    client, uri, _ = cast
    leaf = client.ask("cantrip/loom/casts", {"uri": uri})["casts"][0]["leaf"]
    told = run(client, "view", uri=uri, turn=leaf)
    assert told["shown"] is True
    (asked,) = [m["params"] for m in client.kept if m["method"] == "window/showDocument"]
    assert (asked["uri"], asked["external"]) == (told["url"], True)
    assert told["url"].endswith(f"&turn={leaf}")
    page, _, token = told["url"].partition("#token=")
    with urllib.request.urlopen(page, timeout=60) as answer:
        assert "frame-ancestors" in answer.headers["Content-Security-Policy"]
        assert "vscode-webview:" in answer.headers["Content-Security-Policy"]
    again = run(client, "view", uri=uri, hidden=True)
    assert (again["port"], again["shown"], again["url"].partition("#token=")[2]) == (
        told["port"],
        False,
        token.partition("&")[0],
    )
    assert run(client, "view", uri=uri, hidden=True, hosts="proxy.example:443")["port"] == told["port"]
    html = run(client, "view", uri=uri, html=str(client.root / "page.html"))
    assert html["turns"] == 3
    assert (client.root / "page.html").stat().st_size > 1000


def test_a_client_that_opens_nothing_is_told_the_address(client: Client) -> None:
    told = run(client, "view", uri=family(client.root / "a.loom.jsonl").as_uri())
    assert told["shown"] is False
    assert told["url"] in heard(client, "window/showMessage")["message"]
    (client.root / "b.loom.jsonl").write_text("nothing\n")
    assert refused(client, "view", uri=client.uri("b.loom.jsonl"))["data"]["error"] == "LoomError"
