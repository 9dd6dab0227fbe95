"""The tests of `tests/lsp/unit/test_fixes.py` that start processes."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from lsprotocol import types

from cantrip_acp.lsp.server.positions import TextDocument
from tests.lsp.unit.test_fixes import HEAD, NO_DONE, WARDS
from tests.support.lsp_client import Client


def test_over_the_wire(client: Client) -> None:
    uri = client.open("a.cantrip.yaml", NO_DONE[0])
    wrong = client.diagnostics(uri)
    found = client.ask(
        "textDocument/codeAction",
        {"textDocument": {"uri": uri}, "range": wrong[0]["range"], "context": {"diagnostics": wrong}},
    )
    assert [(a["title"], a["kind"], a.get("isPreferred")) for a in found] == [
        ("Add the done gate", "quickfix", True),
        ("Fix all that is plain", "source.fixAll.cantrip", None),
    ]
    assert found[0]["edit"]["changes"][uri][0]["newText"] == "    - done\n"
    assert found[0]["diagnostics"] == [wrong[0]]
    refactors = client.ask(
        "textDocument/codeAction",
        {
            "textDocument": {"uri": uri},
            "range": wrong[0]["range"],
            "context": {"diagnostics": [], "only": ["refactor"]},
        },
    )
    assert refactors == []


def asked(client: Client, uri: str, *only: str) -> list[dict]:
    """The actions for all of a file."""
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 999, "character": 0}}
    context = {"diagnostics": [], **({"only": list(only)} if only else {})}
    return client.ask("textDocument/codeAction", {"textDocument": {"uri": uri}, "range": whole, "context": context})


CREATES = {"workspace": {"workspaceEdit": {"documentChanges": True, "resourceOperations": ["create"]}}}


@pytest.mark.parametrize("able", [True, False])
def test_missing_files_are_made_where_the_client_can(connect: Callable[..., Client], able: bool) -> None:
    client = connect(capabilities=CREATES if able else None)
    text = (
        "crystal: {provider: scripted, script: script.yaml}\ncall: {system_prompt_file: prompts/one.md}\n"
        "circle:\n  gates: [done, {python: 'my gates.py'}, {name: read_file, root: data}]\n"
        + WARDS
        + "  score: {python: s.py}\n"
    )
    uri = client.open("a.cantrip.yaml", text, write=True)
    client.diagnostics(uri)
    found = {a["title"]: a for a in asked(client, uri, "quickfix")}
    if not able:
        assert not found
        return
    assert set(found) == {
        *(f"Create {name}" for name in ("script.yaml", "prompts/one.md", "my gates.py", "s.py")),
        "Create the folder data",
    }
    for action in found.values():
        made, *edits = action["edit"]["documentChanges"]
        assert made["kind"] == "create"
        assert made["options"] == {"ignoreIfExists": True}
        file = Path(url2pathname(urlsplit(made["uri"]).path))
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(e["newText"] for edit in edits for e in edit["edits"]))
    # What was made is what the loader takes: the recipe can be cast.
    client.tell("textDocument/didSave", {"textDocument": {"uri": uri}})
    client.kept.clear()
    assert client.diagnostics(uri) == []
    client.ask("workspace/executeCommand", {"command": "cantrip.trust", "arguments": [{"uri": uri}]})
    cast = {
        "command": "cantrip.cast",
        "arguments": [{"uri": uri, "intent": "Try.", "loom": str(client.root / "l.loom.jsonl")}],
    }
    assert client.ask("workspace/executeCommand", cast)["result"] == "the answer"


def test_all_that_is_plain_at_once(client: Client) -> None:
    text = (
        "nme: 'é𝄞'\ncall: {require_done: true}\ncircle:\n  medum: bash\n"
        "  wards: [{bash_network: true}]\n  gates: [call_entity]\n"
    )
    uri = client.open("a.cantrip.yaml", text)
    client.diagnostics(uri)
    (action,) = asked(client, uri, "source.fixAll")
    assert (action["kind"], action["title"]) == ("source.fixAll.cantrip", "Fix all that is plain")
    made = TextDocument(text)
    for edit in reversed(action["edit"]["changes"][uri]):
        spot = types.Range(types.Position(**edit["range"]["start"]), types.Position(**edit["range"]["end"]))
        made = made.changed(types.TextDocumentContentChangePartial(spot, edit["newText"]))
    assert made.source == (
        "name: 'é𝄞'\ncall: {require_done_tool: true}\ncircle:\n  medium: bash\n"
        "  wards: [{max_turns: 20}, {bash_network: true}]\n  gates: [done, call_agent]\n"
    )
    assert asked(client, uri, "source.organizeImports") == []
    assert {a["kind"] for a in asked(client, uri)} == {"quickfix", "source.fixAll.cantrip"}
    # Nothing is done to what only somebody can decide.
    client.change(uri, {"text": HEAD.replace("[done]", "[done, read_file, fetch]")})
    client.diagnostics(uri, 2)
    assert asked(client, uri, "source.fixAll.cantrip") == []
