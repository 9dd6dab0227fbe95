"""The server's features: a table of methods. The module of the document's kind answers each.

A module's functions have the names in `METHODS` and take the server and the parameters. A function returns its answer,
or a coroutine for slow work. A request without a function is answered with null.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from lsprotocol import types

from cantrip_acp.lsp.commands.registry import COMMANDS
from cantrip_acp.lsp.recipes.semantic_tokens import MODIFIERS, TYPES
from cantrip_acp.lsp.server import document_kinds
from cantrip_acp.lsp.server.file_watch import FileWatch
from cantrip_acp.lsp.server.language_server import Server

METHODS: dict[str, tuple[str, Any]] = {
    types.TEXT_DOCUMENT_COMPLETION: (
        "completion",
        types.CompletionOptions(trigger_characters=[" ", ":", "-", "[", "{", "/", '"'], resolve_provider=True),
    ),
    types.COMPLETION_ITEM_RESOLVE: ("completion_resolved", None),
    types.TEXT_DOCUMENT_HOVER: ("hover", None),
    types.TEXT_DOCUMENT_CODE_ACTION: (
        "code_actions",
        types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix, "source.fixAll.cantrip"]),
    ),
    types.TEXT_DOCUMENT_CODE_LENS: ("lenses", types.CodeLensOptions(resolve_provider=True)),
    types.CODE_LENS_RESOLVE: ("lens_resolved", None),
    types.TEXT_DOCUMENT_DOCUMENT_SYMBOL: ("symbols", None),
    types.TEXT_DOCUMENT_FOLDING_RANGE: ("folds", None),
    types.TEXT_DOCUMENT_FORMATTING: ("formatting", None),
    types.TEXT_DOCUMENT_DEFINITION: ("definition", None),
    types.TEXT_DOCUMENT_REFERENCES: ("references", None),
    types.TEXT_DOCUMENT_DOCUMENT_LINK: ("links", None),
    types.TEXT_DOCUMENT_PREPARE_RENAME: ("renaming", None),
    types.TEXT_DOCUMENT_RENAME: ("renamed", types.RenameOptions(prepare_provider=True)),
    types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT: ("highlights", None),
    types.TEXT_DOCUMENT_SELECTION_RANGE: ("selections", None),
    types.TEXT_DOCUMENT_LINKED_EDITING_RANGE: ("linked", None),
    types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL: ("tokens", types.SemanticTokensLegend(list(TYPES), list(MODIFIERS))),
    types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL_DELTA: ("tokens_changed", None),
    types.TEXT_DOCUMENT_SEMANTIC_TOKENS_RANGE: ("tokens_of_part", None),
    types.TEXT_DOCUMENT_INLAY_HINT: ("hints", None),
    types.TEXT_DOCUMENT_PREPARE_CALL_HIERARCHY: ("prepare_call_hierarchy", None),
    types.CALL_HIERARCHY_OUTGOING_CALLS: ("outgoing_calls", None),
    types.CALL_HIERARCHY_INCOMING_CALLS: ("incoming_calls", None),
    types.TEXT_DOCUMENT_DIAGNOSTIC: (
        "diagnostics",
        types.DiagnosticOptions(inter_file_dependencies=True, workspace_diagnostics=True, identifier="cantrip"),
    ),
}
"""Each method: the name of the function in a kind's module, and the method's options."""


def make_server() -> Server:
    made = Server()
    watch = FileWatch(made)
    made.documents_read = watch.update_soon
    made.run_command = _run_command

    @made.feature(types.INITIALIZE)
    def initialize(ls: Server, params: types.InitializeParams) -> None:
        ls.begin(params)

    @made.feature(types.INITIALIZED)
    def initialized(ls: Server, params: types.InitializedParams) -> None:
        ls.keep(watch.begin())

    @made.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def folders(ls: Server, params: types.DidChangeWorkspaceFoldersParams) -> None:
        ls.roots()

    @made.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(ls: Server, params: types.DidSaveTextDocumentParams) -> None:
        ls.recheck()

    @made.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def watched(ls: Server, params: types.DidChangeWatchedFilesParams) -> None:
        watch.changed([change.uri for change in params.changes])

    for method, (name, options) in METHODS.items():
        made.feature(method, options)(_asking(name))

    @made.feature(types.WINDOW_WORK_DONE_PROGRESS_CANCEL)
    def cancelled(ls: Server, params: types.WorkDoneProgressCancelParams) -> None:
        cancel = ls.works.get(params.token)
        if cancel is not None:
            cancel()

    @made.feature(types.WORKSPACE_SYMBOL)
    async def symbols(ls: Server, params: types.WorkspaceSymbolParams) -> list[types.WorkspaceSymbol]:
        from cantrip_acp.lsp.recipes import answers

        return await answers.workspace_symbols(ls, params)

    @made.feature(types.WORKSPACE_DIAGNOSTIC)
    async def diagnostics(ls: Server, params: types.WorkspaceDiagnosticParams) -> types.WorkspaceDiagnosticReport:
        from cantrip_acp.lsp.recipes import answers

        return await answers.workspace_diagnostics(ls, params)

    for name in LOOM_REQUESTS:
        made.feature(f"cantrip/loom/{name}")(_asking_module("looms.requests", name))

    for name in SUBSTRATE_REQUESTS:
        made.feature(f"cantrip/substrate/{name}")(_asking_module("knowledge", name))

    made.protocol.fm.commands.update(dict.fromkeys(COMMANDS))
    return made


LOOM_REQUESTS = ("list", "forks", "casts", "turns")
"""Requests of a tree view of looms, each a function in `looms.requests`."""


SUBSTRATE_REQUESTS = ("tree", "scope", "chunk", "search")
"""Requests of a tree view of what sessions know; `knowledge` answers them."""


async def _run_command(ls: Server, params: types.ExecuteCommandParams) -> Any:
    from cantrip_acp.lsp.commands.command_run import execute

    return await execute(ls, params)


def _asking_module(module: str, name: str) -> Callable[[Server, Any], Any]:
    """Make a handler that asks a module's `answer` for the request with this name."""

    def handle(ls: Server, params: Any) -> Any:
        return importlib.import_module(f"cantrip_acp.lsp.{module}").answer(name, ls, params)

    return handle


def _asking(name: str) -> Callable[[Server, Any], Any]:
    def handle(ls: Server, params: Any) -> Any:
        kind = _kind(params)
        found = kind.answer(name) if kind is not None else None
        if found is not None:
            return found(ls, params)
        # An item to resolve that belongs to no kind is returned unchanged.
        return params if name.endswith("_resolved") else None

    return handle


def _kind(params: Any) -> document_kinds.DocumentKind | None:
    """The kind of the document in the parameters, or of an item that was sent earlier."""
    about = getattr(params, "text_document", None) or getattr(params, "item", None)
    uri = getattr(about, "uri", None)
    if isinstance(uri, str):
        return document_kinds.of(uri)
    data = getattr(params, "data", None)
    return document_kinds.named(data.get("kind")) if isinstance(data, dict) else None
