"""The server under the capabilities that real editors were recorded with, by pytest-lsp's client.

That client warns of whatever an editor did not say it could take (`LspSpecificationWarning`), which is an error here.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path

import pytest
from lsprotocol import types
from pytest_lsp import LanguageClient, LspSpecificationWarning, client_capabilities, make_test_lsp_client

TEXT = """\
# intent: Say 𝄞.
name: greeter
crystal:
  provider: scripted
  responses:
    - {content: hm, tool_calls: [{gate: echo, args: {text: hi}}]}
    - tool_calls: [{gate: done, args: {answer: hello}}]
circle:
  gates: [done, echo, {python: gates.py}]
  wards: [{max_trns: 5}]
"""

pytestmark = [pytest.mark.filterwarnings(f"error::{LspSpecificationWarning.__module__}.LspSpecificationWarning")]


def editors() -> list[str]:
    """The editors that were recorded, each in its oldest and its newest version."""
    names = [f.name for f in resources.files("pytest_lsp.clients").iterdir() if f.name.endswith(".json")]
    versions: dict[str, list[tuple[list[int], str]]] = {}
    for name in names:
        editor, _, version = name.removesuffix(".json").partition("_v")
        versions.setdefault(editor, []).append(([int(part) for part in version.split(".")], f"{editor}@{version}"))
    return sorted({chosen for found in versions.values() for _, chosen in (min(found), max(found))})


@pytest.fixture(params=editors())
async def editor(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LanguageClient]:
    monkeypatch.setenv("CANTRIP_STATE_DIR", str(tmp_path / "state"))
    client = make_test_lsp_client()
    await client.start_io(sys.executable, "-m", "cantrip_acp.cli.main", "lsp", cwd=tmp_path)
    folder = types.WorkspaceFolder(tmp_path.as_uri(), "root")
    await client.initialize_session(
        types.InitializeParams(
            client_capabilities(request.param), root_uri=tmp_path.as_uri(), workspace_folders=[folder]
        )
    )
    client.folder = tmp_path
    yield client
    await client.shutdown_session()
    await client.stop()


async def said(client: LanguageClient, uri: str, wanted: int) -> list[types.Diagnostic]:
    """The diagnostics of a document, told or asked for as the editor would, once there are so many."""
    about = types.TextDocumentIdentifier(uri)
    for _ in range(600):
        if client.capabilities.text_document.diagnostic is not None:
            report = await client.text_document_diagnostic_async(types.DocumentDiagnosticParams(about))
            found = list(report.items)
        else:
            found = list(client.diagnostics.get(uri, ()))
        if len(found) == wanted:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"{wanted} diagnostics were to come: {found}")


async def test_a_recipe_from_its_first_mistake_to_its_cast(editor: LanguageClient) -> None:
    uri = (editor.folder / "a.cantrip.yaml").as_uri()
    about = types.TextDocumentIdentifier(uri)
    editor.text_document_did_open(types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, "yaml", 1, TEXT)))
    found = await said(editor, uri, 2)
    assert sorted(d.code for d in found) == ["missing-file", "unknown-key"]
    wrong = next(d for d in found if d.code == "unknown-key")
    assert (wrong.range.start.line, wrong.range.start.character) == (9, 11)
    context = types.CodeActionContext([wrong])
    actions = await editor.text_document_code_action_async(types.CodeActionParams(about, wrong.range, context))
    fix = next(a for a in actions if a.title == "Rename to max_turns")
    edit = fix.edit.changes[uri][0]
    editor.text_document_did_change(
        types.DidChangeTextDocumentParams(
            types.VersionedTextDocumentIdentifier(version=2, uri=uri),
            [types.TextDocumentContentChangePartial(edit.range, edit.new_text)],
        )
    )
    assert [d.code for d in await said(editor, uri, 1)] == ["missing-file"]
    place = types.Position(8, 17)
    hover = await editor.text_document_hover_async(types.HoverParams(about, place))
    assert "echo" in hover.contents.value
    kinds = editor.capabilities.text_document.hover.content_format
    assert hover.contents.kind in (kinds or ["markdown"])
    completion = await editor.text_document_completion_async(types.CompletionParams(about, types.Position(8, 14)))
    assert "echo" not in [item.label for item in completion.items][:1]
    item = await editor.completion_item_resolve_async(next(i for i in completion.items if i.label == "plan"))
    assert item.documentation
    symbols = await editor.text_document_document_symbol_async(types.DocumentSymbolParams(about))
    assert [s.name for s in symbols] == ["name", "crystal", "circle"]
    tokens = await editor.text_document_semantic_tokens_full_async(types.SemanticTokensParams(about))
    assert tokens.data
    lenses = await editor.text_document_code_lens_async(types.CodeLensParams(about))
    assert lenses[0].command.title == "▶ Cast: Say 𝄞."
    # The lens' command, run by the server: refused until what it asks for is there and allowed.
    (editor.folder / "gates.py").write_text('def mine() -> str:\n    """Mine."""\n    return "x"\n\n\nGATES = [mine]\n')
    await run(editor, "cantrip.trust", {"uri": uri})
    result = await run(editor, lenses[0].command.command, lenses[0].command.arguments[0])
    assert (result["result"], result["turns"]) == ("hello", 2)
    begun = editor.progress_reports
    offered = editor.capabilities.window is not None and editor.capabilities.window.work_done_progress
    assert bool(begun) is bool(offered)


async def run(client: LanguageClient, name: str, given: object) -> dict:
    result = await client.workspace_execute_command_async(types.ExecuteCommandParams(name, [given]))
    return result if isinstance(result, dict) else vars(result)
