"""What the server can do, a function a method; each imports its own file when it is asked for the first time."""

from __future__ import annotations

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from cantrip_acp.lsp.server import Server


def server() -> Server:
    """A server with every feature."""
    made = Server()

    @made.feature(types.INITIALIZE)
    def initialize(ls: Server, params: types.InitializeParams) -> None:
        ls.begin(params)

    @made.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def folders(ls: Server, params: types.DidChangeWorkspaceFoldersParams) -> None:
        ls.roots()

    @made.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(ls: Server, params: types.DidSaveTextDocumentParams) -> None:
        ls.again()

    @made.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def watched(ls: Server, params: types.DidChangeWatchedFilesParams) -> None:
        ls.again()

    _reading(made)
    _whole(made)
    return made


def _reading(made: Server) -> None:
    """What is asked of one place."""

    @made.feature(
        types.TEXT_DOCUMENT_COMPLETION,
        types.CompletionOptions(trigger_characters=[" ", ":", "-", "[", "{", "/", '"'], resolve_provider=True),
    )
    def completion(ls: Server, params: types.CompletionParams) -> types.CompletionList | None:
        held = ls.documents.recipe(params.text_document.uri)
        if held is None:
            return None
        from cantrip_acp.lsp.completion import completions

        found = completions(held, params.position, ls.documents.workspace(held.path))
        return types.CompletionList(is_incomplete=False, items=found)

    @made.feature(types.COMPLETION_ITEM_RESOLVE)
    def resolved(ls: Server, item: types.CompletionItem) -> types.CompletionItem:
        from cantrip_acp.lsp.completion import resolve

        return resolve(item)

    @made.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(ls: Server, params: types.HoverParams) -> types.Hover | None:
        held = ls.documents.recipe(params.text_document.uri)
        if held is None:
            return None
        from cantrip_acp.lsp.hover import hover

        return hover(held, ls.reading(held), params.position)

    @made.feature(
        types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix])
    )
    def fixes(ls: Server, params: types.CodeActionParams) -> list[types.CodeAction] | None:
        held = ls.documents.recipe(params.text_document.uri)
        if held is None:
            return None
        from cantrip_acp.lsp.fixes import actions

        return actions(held, ls.reading(held), params, ls.diagnostic)


def _whole(made: Server) -> None:
    """What is asked of a file as a whole, and of the names in it."""

    @made.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def symbols(ls: Server, params: types.DocumentSymbolParams) -> list[types.DocumentSymbol] | None:
        held = ls.documents.recipe(params.text_document.uri)
        if held is None:
            return None
        from cantrip_acp.lsp.outline import symbols

        return symbols(held)

    @made.feature(types.TEXT_DOCUMENT_FOLDING_RANGE)
    def folds(ls: Server, params: types.FoldingRangeParams) -> list[types.FoldingRange] | None:
        held = ls.documents.recipe(params.text_document.uri)
        if held is None:
            return None
        from cantrip_acp.lsp.outline import folds

        return folds(held)

    @made.feature(types.TEXT_DOCUMENT_FORMATTING)
    def layout(ls: Server, params: types.DocumentFormattingParams) -> list[types.TextEdit] | None:
        held = ls.documents.recipe(params.text_document.uri)
        if held is None:
            return None
        from cantrip_acp.lsp.layout import edits

        return edits(held)

    @made.feature(types.TEXT_DOCUMENT_DEFINITION)
    def definition(ls: Server, params: types.DefinitionParams) -> list[types.Location] | None:
        held = ls.documents.recipe(params.text_document.uri)
        if held is None:
            return None
        from cantrip_acp.lsp.references import definition

        return definition(held, params.position)

    @made.feature(types.TEXT_DOCUMENT_REFERENCES)
    def references(ls: Server, params: types.ReferenceParams) -> list[types.Location] | None:
        held = ls.documents.recipe(params.text_document.uri)
        if held is None:
            return None
        from cantrip_acp.lsp.references import references

        return references(held, params.position, params.context.include_declaration)

    @made.feature(types.TEXT_DOCUMENT_DOCUMENT_LINK)
    def links(ls: Server, params: types.DocumentLinkParams) -> list[types.DocumentLink] | None:
        held = ls.documents.recipe(params.text_document.uri)
        if held is None:
            return None
        from cantrip_acp.lsp.references import links

        return links(held)

    @made.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
    def renaming(ls: Server, params: types.PrepareRenameParams) -> types.Range | None:
        held = ls.documents.recipe(params.text_document.uri)
        if held is None:
            return None
        from cantrip_acp.lsp.references import renaming

        span = renaming(held, params.position)
        return held.text.range(*span) if span is not None else None

    @made.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    def renamed(ls: Server, params: types.RenameParams) -> types.WorkspaceEdit | None:
        held = ls.documents.recipe(params.text_document.uri)
        if held is None:
            return None
        from cantrip_acp.lsp.references import rename

        try:
            return rename(held, params.position, params.new_name)
        except ValueError as error:
            raise JsonRpcInvalidParams(str(error)) from None
