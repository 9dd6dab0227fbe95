import { homedir } from "node:os";
import { isAbsolute, resolve } from "node:path";
import * as vscode from "vscode";
import { contextOf } from "./editorcontext";

/**
 * Follow a link in a conversation. The text of the agent is not trusted: only web pages (which the editor asks about)
 * and files are opened. Other schemes, such as `command:`, do nothing.
 */
export async function follow(href: string, folder: string): Promise<void> {
  const context = contextOf(href);
  if (context !== undefined) {
    await vscode.commands.executeCommand({ problems: "workbench.actions.view.problems", terminal: "workbench.action.terminal.focus", changes: "workbench.view.scm" }[context.context]);
    return;
  }
  if (/^(https?|mailto):/i.test(href)) {
    await vscode.env.openExternal(vscode.Uri.parse(href, true));
    return;
  }
  // `app.py:12` is a line of a file, not a scheme.
  const isPlace = /^[^:]+:\d{1,9}(?::\d+)?$/.test(href);
  const scheme = isPlace ? undefined : /^([A-Za-z][A-Za-z0-9+.-]+):/.exec(href)?.[1]?.toLowerCase();
  if (scheme !== undefined && scheme !== "file") return;
  const [, path = "", fragment = ""] = /^([^#]*)#?(.*)$/s.exec(href) ?? [];
  const line = /^L?(\d{1,9})/.exec(fragment)?.[1] ?? /:(\d{1,9})(?::\d+)?$/.exec(path)?.[1];
  const bare = path.replace(/:(\d{1,9})(?::\d+)?$/, "");
  let file: string;
  try {
    file = scheme === "file" ? vscode.Uri.parse(bare, true).fsPath : decodeURIComponent(bare).replace(/^~(?=\/)/, homedir());
  } catch {
    return;
  }
  if (!file) return;
  await reveal(isAbsolute(file) ? file : resolve(folder, file), line === undefined ? undefined : Number(line));
}

/** Show a file, at a line (from 1) if one is given. Folders are shown in the explorer. */
export async function reveal(path: string, line: number | undefined, quiet = false): Promise<void> {
  const uri = vscode.Uri.file(path);
  try {
    const stat = await vscode.workspace.fs.stat(uri);
    if ((stat.type & vscode.FileType.Directory) !== 0) {
      if (!quiet) await vscode.commands.executeCommand("revealInExplorer", uri);
      return;
    }
    const at = line === undefined ? undefined : new vscode.Range(Math.max(0, line - 1), 0, Math.max(0, line - 1), 0);
    await vscode.window.showTextDocument(uri, {
      preview: true,
      preserveFocus: quiet,
      ...(at === undefined ? {} : { selection: at }),
      viewColumn: vscode.ViewColumn.One,
    });
  } catch (problem) {
    if (!quiet) void vscode.window.showWarningMessage(`${vscode.workspace.asRelativePath(uri)} cannot be shown: ${problem instanceof Error ? problem.message : String(problem)}`);
  }
}
