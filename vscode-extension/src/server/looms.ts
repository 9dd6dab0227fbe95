/** Keeps the text of looms from the server: the server reads the file itself, and a large text would be sent for nothing. */
import type * as vscode from "vscode";
import type { Middleware } from "vscode-languageclient/node";

/** The same document with an empty text. */
function empty(document: vscode.TextDocument): vscode.TextDocument {
  return Object.create(document, { getText: { value: () => "" } }) as vscode.TextDocument;
}

const isLoom = (document: vscode.TextDocument) => document.fileName.endsWith(".loom.jsonl");

/** The middleware of the client that sends looms without their text. */
export const looms: Pick<Middleware, "didOpen" | "didChange" | "provideDocumentSemanticTokens"> = {
  didOpen: (document, next) => next(isLoom(document) ? empty(document) : document),
  didChange: async (event, next) => {
    if (!isLoom(event.document)) await next(event);
  },
  provideDocumentSemanticTokens: (document, token, next) => (isLoom(document) ? null : next(document, token)),
};
