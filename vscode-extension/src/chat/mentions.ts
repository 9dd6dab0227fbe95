import * as vscode from "vscode";
import { fileAttached, linesAttached, selectionAttached } from "./attachments";
import { contextAttached, problemsCount } from "./editorcontext";
import { fileShown, lastCommand, problems } from "./editorreader";
import type { Attachment } from "./items";

const MOST = 30;
const MOST_FILES = 5000;
const SKIPPED = "**/{node_modules,.git,.venv,venv,__pycache__,dist,out,.mypy_cache,.ruff_cache}/**";

/** What follows `@` to find symbols alone. */
const SYMBOL = "symbol:";

/** Suggestions for `@`: the selection, problems, the terminal, changes, open files, files and folders of the workspace, and symbols. */
export class Mentions implements vscode.Disposable {
  private files: Promise<vscode.Uri[]> | undefined;
  private readonly watcher = vscode.workspace.createFileSystemWatcher("**/*", false, true, false);

  constructor() {
    const forget = (): void => { this.files = undefined; };
    this.watcher.onDidCreate(forget);
    this.watcher.onDidDelete(forget);
  }

  /** What fits the typed text; `note` says why nothing does. */
  async find(query: string): Promise<{ readonly found: Attachment[]; readonly note?: string }> {
    if (!query.toLowerCase().startsWith(SYMBOL)) return { found: await this.all(query) };
    const name = query.slice(SYMBOL.length);
    const found = await symbols(name, MOST);
    return found.length > 0 ? { found } : { found, note: name === "" ? "No language server offers symbols here" : `No language server offers a symbol “${name}” here` };
  }

  private async all(query: string): Promise<Attachment[]> {
    const wanted = query.toLowerCase();
    const found: Attachment[] = [];
    const editor = vscode.window.activeTextEditor ?? vscode.window.visibleTextEditors[0];
    if (editor?.document.uri.scheme === "file" && !editor.selection.isEmpty && "selection".startsWith(wanted)) found.push(await selectionAttached(editor));
    found.push(...contexts().filter((each) => each.name.startsWith(wanted)));
    const seen = new Set<string>();
    const take = async (uri: vscode.Uri): Promise<void> => {
      if (uri.scheme !== "file" || seen.has(uri.toString()) || found.length >= MOST) return;
      seen.add(uri.toString());
      found.push(await fileAttached(uri));
    };
    const open = vscode.window.tabGroups.all.flatMap((group) => group.tabs).flatMap((tab) => (tab.input instanceof vscode.TabInputText ? [tab.input.uri] : []));
    for (const uri of open) if (score(vscode.workspace.asRelativePath(uri, false), wanted) > 0) await take(uri);
    this.files ??= Promise.resolve(vscode.workspace.findFiles("**/*", SKIPPED, MOST_FILES));
    const files = (await this.files).map((uri) => ({ uri, shown: vscode.workspace.asRelativePath(uri, false) }));
    const scored = [...folders(files), ...files]
      .map((each) => ({ ...each, score: score(each.shown, wanted) }))
      .filter((each) => each.score > 0)
      .sort((a, b) => b.score - a.score || a.shown.length - b.shown.length);
    for (const each of scored.slice(0, MOST)) await take(each.uri);
    if (wanted.length >= 2 && found.length < MOST) found.push(...(await symbols(query, MOST - found.length)));
    return found;
  }

  dispose(): void {
    this.watcher.dispose();
  }
}

/** What can be added besides files. The last one is no attachment: it leads to the symbols. */
function contexts(): Attachment[] {
  const all = problems();
  const file = fileShown();
  const own = all.filter((each) => each.path === file);
  return [
    contextAttached("problems", undefined, problemsCount(all)),
    ...(file !== undefined && own.length > 0 ? [contextAttached("problems", file, problemsCount(own))] : []),
    ...(vscode.window.terminals.length > 0 ? [contextAttached("terminal", undefined, lastCommand() ?? "the last lines")] : []),
    contextAttached("changes", undefined, "git diff of the working tree"),
    { kind: "symbol", name: SYMBOL, detail: "functions and classes by name" },
  ];
}

function folders(files: readonly { uri: vscode.Uri; shown: string }[]): { uri: vscode.Uri; shown: string }[] {
  const found = new Map<string, vscode.Uri>();
  for (const { uri, shown } of files) {
    const folder = shown.slice(0, Math.max(0, shown.lastIndexOf("/")));
    if (folder && !found.has(folder)) found.set(folder, vscode.Uri.joinPath(uri, ".."));
  }
  return [...found].map(([shown, uri]) => ({ uri, shown }));
}

/** How well a path matches the typed text: first by its name, then by the whole path, then by its letters in order; 0 if it does not match. */
export function score(path: string, wanted: string): number {
  if (!wanted) return 1;
  const whole = path.toLowerCase();
  const name = whole.split(/[\\/]/).pop() ?? whole;
  if (name === wanted) return 6;
  if (name.startsWith(wanted)) return 5;
  if (name.includes(wanted)) return 4;
  if (whole.includes(wanted)) return 3;
  let at = 0;
  for (const letter of wanted) {
    at = whole.indexOf(letter, at) + 1;
    if (at === 0) return 0;
  }
  return 2;
}

async function symbols(query: string, most: number): Promise<Attachment[]> {
  let found: vscode.SymbolInformation[] | undefined;
  try {
    const late = new Promise<undefined>((resolve) => setTimeout(resolve, 800, undefined));
    found = await Promise.race([vscode.commands.executeCommand<vscode.SymbolInformation[]>("vscode.executeWorkspaceSymbolProvider", query), late]);
  } catch {
    // A language without symbols.
  }
  return (found ?? [])
    .filter((each) => each.location.uri.scheme === "file")
    .slice(0, most)
    .map((each) => linesAttached(each.location.uri, each.location.range, "symbol", each.name));
}
