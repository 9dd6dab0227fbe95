import type * as acp from "@agentclientprotocol/sdk/unstable";
import * as vscode from "vscode";
import { contextOf, limited } from "./editorcontext";
import { readContext } from "./editorreader";
import type { Attachment } from "./items";

/** The text and the attachments of a prompt as content blocks of the protocol. The editor's problems and so on are read now. */
export async function contentOf(text: string, attachments: readonly Attachment[]): Promise<acp.ContentBlock[]> {
  const blocks: acp.ContentBlock[] = [{ type: "text", text }];
  for (const each of attachments) {
    const context = each.uri === undefined ? undefined : contextOf(each.uri);
    if (context !== undefined) blocks.push({ type: "resource", resource: { uri: each.uri ?? "", mimeType: context.kind === "changes" ? "text/x-diff" : "text/plain", text: each.text === undefined ? await readContext(context) : limited(each.text, "end") } });
    else if (each.data !== undefined) blocks.push({ type: "image", data: each.data, mimeType: each.mime ?? "image/png" });
    else if (each.uri !== undefined) blocks.push({ type: "resource_link", name: each.name, uri: each.uri });
  }
  return blocks;
}

export async function fileAttached(uri: vscode.Uri): Promise<Attachment> {
  const shown = vscode.workspace.asRelativePath(uri, false);
  const name = shown.split(/[\\/]/).pop() ?? shown;
  let folder = false;
  try {
    folder = ((await vscode.workspace.fs.stat(uri)).type & vscode.FileType.Directory) !== 0;
  } catch {
    // The agent reports a file that it cannot read.
  }
  return { kind: folder ? "folder" : "file", name: folder ? `${name}/` : name, uri: uri.toString(), detail: shown };
}

/** A link to the selected lines; to the whole file if nothing is selected. */
export async function selectionAttached(editor: vscode.TextEditor): Promise<Attachment> {
  const { document, selection } = editor;
  if (selection.isEmpty) return fileAttached(document.uri);
  return linesAttached(document.uri, selection, "selection");
}

export function linesAttached(uri: vscode.Uri, range: vscode.Range, kind: "selection" | "symbol", symbol?: string): Attachment {
  const first = range.start.line + 1;
  // If the selection ends at the beginning of a line, that line is not part of it.
  const last = range.end.character === 0 && range.end.line > range.start.line ? range.end.line : range.end.line + 1;
  const shown = vscode.workspace.asRelativePath(uri, false);
  const name = shown.split(/[\\/]/).pop() ?? shown;
  const lines = `L${first}${last > first ? `-${last}` : ""}`;
  return {
    kind,
    name: symbol ?? `${name}:${first}${last > first ? `-${last}` : ""}`,
    uri: `${uri.toString()}${symbol === undefined ? "" : `?symbol=${encodeURIComponent(symbol)}`}#${lines}`,
    detail: `${shown}:${first}${last > first ? `-${last}` : ""}`,
  };
}
