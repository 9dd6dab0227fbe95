"""Files that change outside the editor: the client tells of those that it watches, the server finds the others by itself."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.lsp_client import Client

RECIPE = """\
crystal: {provider: openai, model: %s}
call: {system_prompt_file: prompt.md}
circle:
  gates: [done, {python: ../tools/gates.py}, {name: read_file, root: data}]
  wards: [{max_turns: 3}]
"""
WATCHES = {"workspace": {"didChangeWatchedFiles": {"dynamicRegistration": True}, "codeLens": {"refreshSupport": True}}}


def codes(client: Client, uri: str, wanted: list[str]) -> None:
    """Waits until these are all that is said of a document."""
    end = time.monotonic() + 60
    while True:
        said = [
            m["params"]["diagnostics"]
            for m in client.kept
            if m["method"] == "textDocument/publishDiagnostics" and m["params"]["uri"] == uri
        ]
        if said and [d["code"] for d in said[-1]] == wanted:
            return
        client._next(end - time.monotonic())


def touched(path: Path, text: str) -> None:
    """A write that is seen even if the watching begins this moment."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("capabilities", [{}, WATCHES], ids=["server", "client"])
def test_what_a_recipe_names_is_watched(connect: Callable[..., Client], capabilities: dict) -> None:
    client = connect(capabilities=capabilities)
    (client.root / "recipes").mkdir()
    uri = client.open("recipes/a.cantrip.yaml", RECIPE % "gpt-6.1-sol", write=True)
    codes(client, uri, ["missing-file"] * 3)
    time.sleep(1.0)
    touched(client.root / "recipes" / "prompt.md", "Hello.")
    codes(client, uri, ["missing-file"] * 2)
    (client.root / "data").mkdir()
    codes(client, uri, ["missing-file"])
    # A folder that was not there: it is watched as soon as it is.
    touched(client.root / "tools" / "gates.py", "def mine() -> str:\n")
    codes(client, uri, ["broken-file"])
    touched(client.root / "tools" / "gates.py", "def mine() -> str:\n    '''Mine.'''\n    return ''\n")
    codes(client, uri, [])
    os.unlink(client.root / "recipes" / "prompt.md")
    codes(client, uri, ["missing-file"])


def test_a_client_that_watches_is_asked_to(connect: Callable[..., Client]) -> None:
    client = connect(capabilities=WATCHES)
    uri = client.open(
        "a.cantrip.yaml", "circle: {gates: [done, {name: read_file, root: data}], wards: [{max_turns: 3}]}\n"
    )
    codes(client, uri, ["missing-file"])
    (asked,) = [m["params"] for m in client.kept if m["method"] == "client/registerCapability"]
    (registration,) = asked["registrations"]
    assert registration["method"] == "workspace/didChangeWatchedFiles"
    globs = {watcher["globPattern"] for watcher in registration["registerOptions"]["watchers"]}
    assert {"**/*.cantrip.yaml", "**/*.loom.jsonl", "**/.cantrip/**"} <= globs
    client.kept.clear()
    client.tell(
        "workspace/didChangeWatchedFiles", {"changes": [{"uri": client.uri(".cantrip/b.cantrip.yaml"), "type": 1}]}
    )
    end = time.monotonic() + 60
    while not any(m["method"] == "workspace/codeLens/refresh" for m in client.kept):
        client._next(end - time.monotonic())


def test_the_users_own_models_are_watched(
    connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    own = tmp_path / "config" / "cantrip"
    own.mkdir(parents=True)
    client = connect()
    text = "crystal: {provider: openai, model: my-own-model}\ncircle: {gates: [done], wards: [{max_turns: 3}]}\n"
    uri = client.open("a.cantrip.yaml", text, write=True)
    codes(client, uri, ["unknown-model"])
    time.sleep(1.0)
    (own / "models.toml").write_text('[openai."my-own-model"]\ncontext_window = 1000\n')
    codes(client, uri, [])


def test_a_loom_that_grows_has_no_recipe_read_again(connect: Callable[..., Client]) -> None:
    client = connect(capabilities=WATCHES)
    uri = client.open("a.cantrip.yaml", "circle: {gates: [done], wards: [{max_turns: 3}]}\n", write=True)
    codes(client, uri, [])
    since = time.monotonic()
    while time.monotonic() < since + 1.5:  # until nothing is on its way any more
        client.ask("textDocument/hover", client.at(uri, 0, 2))
        if client.kept:
            client.kept.clear()
            since = time.monotonic()
        time.sleep(0.05)
    client.tell("workspace/didChangeWatchedFiles", {"changes": [{"uri": client.uri("a.loom.jsonl"), "type": 2}]})
    client.ask("textDocument/hover", client.at(uri, 0, 2))
    assert "workspace/codeLens/refresh" not in {m["method"] for m in client.kept}
