/** How a loom's text goes to the server: not at all. It reads the file, and a large one would cross the wire for nothing. */
import type * as vscode from "vscode";
import type { Middleware } from "vscode-languageclient/node";

/** The same document with nothing in it. */
function empty(document: vscode.TextDocument): vscode.TextDocument {
  return Object.create(document, { getText: { value: () => "" } }) as vscode.TextDocument;
}

const isLoom = (document: vscode.TextDocument) => document.fileName.endsWith(".loom.jsonl");

/** The part of the client's middleware that does so. */
export const looms: Pick<Middleware, "didOpen" | "didChange" | "provideDocumentSemanticTokens"> = {
  didOpen: (document, next) => next(isLoom(document) ? empty(document) : document),
  didChange: async (event, next) => {
    if (!isLoom(event.document)) await next(event);
  },
  provideDocumentSemanticTokens: (document, token, next) => (isLoom(document) ? null : next(document, token)),
};
