import { RequestError } from "@agentclientprotocol/sdk/unstable";
import type * as acp from "@agentclientprotocol/sdk/unstable";
import * as vscode from "vscode";

const NOT_FOUND = -32002;
const INVALID = -32602;
const MARK = /^\uFEFF/;

/**
 * The file system of the editor for the agent (ACP, File System): open files are read with their unsaved changes, and
 * writes go through the editor, so that the user can undo them.
 */
export class EditorFiles {
  constructor(private readonly wrote: (uri: vscode.Uri) => void = () => undefined) {}

  async read(request: acp.ReadTextFileRequest): Promise<acp.ReadTextFileResponse> {
    const text = await this.text(uriOf(request.path));
    if (request.line == null && request.limit == null) return { content: text };
    const lines = text.split(/(?<=\n)/);
    const first = Math.max(0, (request.line ?? 1) - 1);
    return { content: lines.slice(first, request.limit == null ? undefined : first + request.limit).join("") };
  }

  async write(request: acp.WriteTextFileRequest): Promise<acp.WriteTextFileResponse> {
    const uri = uriOf(request.path);
    const open = opened(uri);
    if (open !== undefined && !isBehind(open, await bytesOf(uri))) {
      const edit = new vscode.WorkspaceEdit();
      // The editor writes the byte order mark of a file itself.
      edit.replace(uri, new vscode.Range(open.positionAt(0), open.positionAt(open.getText().length)), request.content.replace(MARK, ""));
      if (!(await vscode.workspace.applyEdit(edit))) throw new RequestError(INVALID, `The editor did not take the change of ${request.path}.`);
      if (!(await open.save())) throw new RequestError(INVALID, `${request.path} was changed in the editor and could not be saved there.`);
    } else {
      try {
        await vscode.workspace.fs.writeFile(uri, encoded(request.content, await bytesOf(uri)));
      } catch (problem) {
        throw requestError(problem, request.path);
      }
    }
    this.wrote(uri);
    return {};
  }

  private async text(uri: vscode.Uri): Promise<string> {
    const open = opened(uri);
    // Without unsaved changes the file counts: the editor may not have noticed yet that it was changed.
    if (open?.isDirty === true) return open.getText();
    let bytes: Uint8Array;
    try {
      bytes = await vscode.workspace.fs.readFile(uri);
    } catch (problem) {
      throw requestError(problem, uri.fsPath);
    }
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: false }).decode(bytes);
    } catch {
      // The editor may know its encoding.
      if (open !== undefined) return open.getText();
      throw new RequestError(INVALID, `${uri.fsPath} is not text in UTF-8.`);
    }
  }
}

async function bytesOf(uri: vscode.Uri): Promise<Uint8Array> {
  try {
    return await vscode.workspace.fs.readFile(uri);
  } catch {
    return new Uint8Array();
  }
}

/** Whether an editor without unsaved changes shows an older text than the file has. It would refuse to save over the newer one,
 * and takes what is written to the file by itself. */
function isBehind(open: vscode.TextDocument, bytes: Uint8Array): boolean {
  if (open.isDirty) return false;
  try {
    const saved = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return saved.replaceAll("\r\n", "\n") !== open.getText().replaceAll("\r\n", "\n");
  } catch {
    // In another encoding, which the editor knows.
    return false;
  }
}

/** The bytes of a text for a file that is not open: with its byte order mark. A file in another encoding is refused. */
export function encoded(text: string, old: Uint8Array): Uint8Array {
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(old);
  } catch {
    throw new RequestError(INVALID, "The file is not text in UTF-8, so the editor would change its encoding.");
  }
  const marked = old[0] === 0xef && old[1] === 0xbb && old[2] === 0xbf;
  return new TextEncoder().encode(marked && !text.startsWith("\ufeff") ? `\ufeff${text}` : text);
}

function opened(uri: vscode.Uri): vscode.TextDocument | undefined {
  return vscode.workspace.textDocuments.find((document) => document.uri.scheme === "file" && document.uri.fsPath === uri.fsPath && !document.isClosed);
}

function uriOf(path: string): vscode.Uri {
  if (!/^(?:\/|[A-Za-z]:[\\/]|\\\\)/.test(path)) throw new RequestError(INVALID, `An absolute path is needed, not ${JSON.stringify(path.slice(0, 200))}.`);
  return vscode.Uri.file(path);
}

function requestError(problem: unknown, path: string): RequestError {
  if (problem instanceof RequestError) return problem;
  if (problem instanceof vscode.FileSystemError && problem.code === "FileNotFound") return new RequestError(NOT_FOUND, `There is no file ${path}.`, { uri: path });
  return new RequestError(INVALID, `${path}: ${problem instanceof Error ? problem.message : String(problem)}`);
}
