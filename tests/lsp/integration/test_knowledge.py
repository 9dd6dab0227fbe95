"""What sessions in a folder would read: the requests of a tree view, pins and facts, and the hover of a recipe."""

from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Loom
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.substrate.recorder import SessionRecorder
from tests.support.lsp_client import Client

RECIPE = """\
crystal: {provider: scripted, responses: [{content: Port 4711., repeat: true}]}
circle: {medium: conversation, gates: [done], wards: [{max_turns: 2}]}
memory:
  culture: true
  max_tokens: 600
"""


@pytest.fixture
def folder(client: Client, monkeypatch: pytest.MonkeyPatch) -> Client:
    root = client.root
    (root / "AGENTS.md").write_text("Ports begin at **4000**.\n")
    (root / ".cantrip" / "culture").mkdir(parents=True)
    (root / ".cantrip" / "culture" / "tone.md").write_text("Be kind.\n")
    (root / "web").mkdir()
    (root / "web" / "CLAUDE.md").write_text("Use tabs.\n")
    return client


def refused(client: Client, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return client.reply(client.begin(method, params))["error"]


def test_the_tree_shows_what_a_session_reads_and_what_it_finds(folder: Client) -> None:
    uri = folder.root.as_uri()
    tree = folder.ask("cantrip/substrate/tree", {"uri": uri})
    parts = {part["name"]: part for scope in tree["reads"] for part in scope["placed"]}
    assert list(parts) == [".cantrip/culture/tone.md", "AGENTS.md"]
    assert parts["AGENTS.md"]["source"] == "repository:AGENTS.md"
    assert parts["AGENTS.md"]["uri"] == (folder.root / "AGENTS.md").as_uri()
    assert tree["maxTokens"] == 16_000
    assert 0 < sum(scope["tokens"] for scope in tree["reads"]) <= tree["tokens"]
    (nested,) = tree["finds"]
    assert (nested["name"], nested["count"]) == ("nested", 1)
    page = folder.ask("cantrip/substrate/scope", {"uri": uri, "id": nested["id"]})
    assert [each["name"] for each in page["chunks"]] == ["web/CLAUDE.md"]
    assert folder.ask("cantrip/substrate/scope", {"id": nested["id"], "offset": 1})["chunks"] == []
    chunk = folder.ask("cantrip/substrate/chunk", {"id": page["chunks"][0]["id"]})
    assert (chunk["text"], chunk["source"]) == ("Use tabs.", "repository:web/CLAUDE.md")
    assert [each["name"] for each in folder.ask("cantrip/substrate/search", {"query": "ports"})["chunks"]] == [
        "AGENTS.md"
    ]


def test_a_session_that_was_cast_is_found_the_latest_first(folder: Client) -> None:
    import anyio

    path = folder.root / "a.cantrip.yaml"
    path.write_text(RECIPE)

    async def cast(intent: str) -> None:
        made = build(load(path), workspace=folder.root, loom=Loom.memory())
        await made.cast(intent)
        assert all(each.flush() for each in made.contributors if isinstance(each, SessionRecorder))

    for intent in ("Which port?", "And then?"):
        anyio.run(cast, intent)
    tree = folder.ask("cantrip/substrate/tree", {})
    sessions = next(each for each in tree["finds"] if each["name"] == "sessions")
    page = folder.ask("cantrip/substrate/scope", {"id": sessions["id"], "limit": 1})
    assert (page["total"], [each["name"] for each in page["chunks"]]) == (2, ["And then?"])
    assert page["chunks"][0]["count"] >= 2


def test_a_scope_is_pinned_and_a_fact_remembered(folder: Client) -> None:
    def run(name: str, **given: Any) -> dict[str, Any]:
        given["uri"] = folder.root.as_uri()
        return folder.ask("workspace/executeCommand", {"command": f"cantrip.substrate.{name}", "arguments": [given]})

    nested = folder.ask("cantrip/substrate/tree", {})["finds"][0]["id"]
    assert run("pin", scope=nested)["pinned"] is True
    tree = folder.ask("cantrip/substrate/tree", {})
    pinned = next(scope for scope in tree["reads"] if scope["id"] == nested)
    assert (pinned["pinned"], [part["name"] for part in pinned["placed"]]) == (True, ["web/CLAUDE.md"])
    assert tree["finds"] == []
    assert run("pin", scope=nested, remove=True)["pinned"] is False
    assert run("remember", text="Answer in French.")["name"] == "Answer in French."
    tree = folder.ask("cantrip/substrate/tree", {})
    fact = next(part for scope in tree["reads"] for part in scope["placed"] if part["name"] == "Answer in French.")
    assert (fact["source"], fact["uri"]) == ("user", None)
    wrong = {"command": "cantrip.substrate.pin", "arguments": [{"uri": folder.root.as_uri(), "scope": "nothing"}]}
    assert "no chunk has the id or name 'nothing'" in refused(folder, "workspace/executeCommand", wrong)["message"]


@pytest.mark.parametrize(
    ("method", "params", "code", "words"),
    [
        ("chunk", {"id": "none"}, -32803, "no chunk has the id 'none'"),
        ("chunk", {}, -32602, "'id' is the id of a chunk"),
        ("tree", {"uri": "https://example.org"}, -32602, "'uri' must be the address of a file or folder"),
        ("scope", {"offset": -1}, -32602, "'offset' must be a whole number"),
        ("search", {"query": 7}, -32602, "'query' is a text"),
    ],
)
def test_a_wrong_request_is_answered(
    folder: Client, method: str, params: dict[str, Any], code: int, words: str
) -> None:
    error = refused(folder, f"cantrip/substrate/{method}", params)
    assert error["code"] == code
    assert words in error["message"]


def test_the_hover_of_memory_counts_what_is_read_now(folder: Client) -> None:
    uri = folder.open("a.cantrip.yaml", RECIPE)
    shown = folder.ask("textDocument/hover", folder.at(uri, 3, 4))["contents"]["value"]
    assert "| AGENTS\\.md |" in shown
    assert "in each query" in shown
    (folder.root / "CLAUDE.md").write_text("Never guess. " * 300)
    shown = folder.ask("textDocument/hover", folder.at(uri, 2, 2))["contents"]["value"]
    assert "| CLAUDE\\.md (left out: no room) | 0 |" in shown
    off = folder.open("b.cantrip.yaml", RECIPE.replace("culture: true", "culture: false"))
    assert "| AGENTS" not in folder.ask("textDocument/hover", folder.at(off, 3, 4))["contents"]["value"]


def test_nothing_is_written_into_the_workspace(folder: Client) -> None:
    before = sorted(Path(folder.root).rglob("*"))
    folder.ask("cantrip/substrate/tree", {})
    assert sorted(Path(folder.root).rglob("*")) == before
