import { stat } from "node:fs/promises";
import { resolve } from "node:path";
import * as vscode from "vscode";
import type { Diffs } from "./diffs";
import { editorLanguage, forTerminal } from "./fences";
import { fileInside, isInside } from "./pictures";

/** Sets the context key for diff resources whose change waits for a decision, which shows the buttons of the diff editor. */
const PROPOSED = "cantrip.chat.proposedChanges";

/** A change that is shown in the diff editor and not made yet. */
interface Proposal {
  readonly settle: (apply: boolean) => void;
}

/** What the buttons of a code block do in the editor. The code is untrusted: nothing is changed or run before the user has seen it. */
export class CodeBlocks implements vscode.Disposable {
  private readonly proposed = new Map<string, Proposal>();
  private readonly parts: vscode.Disposable[];

  constructor(private readonly diffs: Diffs) {
    this.parts = [
      vscode.commands.registerCommand("cantrip.chat.applyCode", (uri?: unknown) => { this.settle(uri, true); }),
      vscode.commands.registerCommand("cantrip.chat.discardCode", (uri?: unknown) => { this.settle(uri, false); }),
      // Whoever closes the diff has decided, too.
      vscode.window.tabGroups.onDidChangeTabs(({ closed }) => {
        for (const { input } of closed) if (input instanceof vscode.TabInputTextDiff) this.proposed.get(input.modified.toString())?.settle(false);
      }),
    ];
  }

  dispose(): void {
    for (const part of this.parts) part.dispose();
  }

  /** Show what the code would change in a file, and change it if the user says so. It replaces the selection, or the whole file if there is none. */
  async apply(code: string, named: string | undefined, folder: string): Promise<void> {
    const uri = (named === undefined ? editorShown()?.document.uri : await this.named(named, folder)) ?? (await asked(folder));
    if (uri === undefined) return;
    const name = vscode.workspace.asRelativePath(uri);
    const exists = uri.scheme !== "file" || (await stat(uri.fsPath).then((about) => about.isFile(), () => false));
    const document = exists ? await vscode.workspace.openTextDocument(uri) : undefined;
    const before = document?.getText();
    const editor = vscode.window.visibleTextEditors.find((each) => each.document === document);
    const selection = editor?.selection.isEmpty === false ? editor.selection : undefined;
    const text = document?.eol === vscode.EndOfLine.CRLF ? code.replace(/\r?\n/g, "\r\n") : code;
    const after = document === undefined || before === undefined ? `${text}\n` : replaced(document, before, text, selection);
    if (after === before) {
      void vscode.window.showInformationMessage(`${name} has this text already.`);
      return;
    }
    const [what, beside] =
      before === undefined ? [`Create ${name}`, "new file"] : selection !== undefined ? [`Replace the selection in ${name}`, "replaces the selection"] : [`Replace the whole text of ${name}`, "replaces the whole text"];
    if (await this.decided(uri, before, after, what, beside)) await write(uri, before, after, name);
  }

  /** Open the code in a new file that has no name yet. */
  async newFile(code: string, language: string): Promise<void> {
    const id = editorLanguage(language);
    const known = id !== "" && (await vscode.languages.getLanguages()).includes(id);
    await vscode.window.showTextDocument(await vscode.workspace.openTextDocument({ content: `${code}\n`, ...(known ? { language: id } : {}) }), { viewColumn: vscode.ViewColumn.One });
  }

  /** Put a command into a terminal of the user. One line waits there for Enter; several lines run after the user has confirmed them. */
  async runInTerminal(code: string, language: string, folder: string): Promise<void> {
    const checked = forTerminal(code);
    if (checked.how === "refuse") {
      const open = "Open as New File";
      if ((await vscode.window.showWarningMessage(`${checked.why} Nothing was put into a terminal.`, open)) === open) await this.newFile(code, language);
      return;
    }
    if (checked.how === "ask") {
      const run = checked.lines === 1 ? "Put It Into the Terminal" : `Run ${checked.lines} Lines`;
      const question = checked.lines === 1 ? "Characters of this command do not look as they are. Put it into the terminal?" : `Run these ${checked.lines} lines in the terminal?`;
      if ((await vscode.window.showWarningMessage(question, { modal: true, detail: checked.shown }, run)) !== run) return;
    }
    const terminal = [vscode.window.activeTerminal, ...vscode.window.terminals].find(isShellOfUser) ?? vscode.window.createTerminal({ cwd: folder });
    terminal.show();
    terminal.sendText(checked.text, checked.how === "ask" && checked.lines > 1);
  }

  /** The file that an answer names, if it is or would be inside the workspace. */
  private async named(path: string, folder: string): Promise<vscode.Uri | undefined> {
    const roots = (vscode.workspace.workspaceFolders ?? []).map(({ uri }) => uri.fsPath);
    const full = resolve(folder, path);
    const real = await fileInside(full, roots);
    if (real !== undefined) return (await stat(real)).isFile() ? vscode.Uri.file(full) : undefined;
    if (!roots.some((root) => isInside(full, root)) || (await stat(full).then(() => true, () => false))) return undefined;
    // A new file: the nearest folder that exists must be inside, after all links.
    for (let above = resolve(full, ".."); ; above = resolve(above, "..")) {
      if (roots.includes(above) || (await fileInside(above, roots)) !== undefined) return vscode.Uri.file(full);
      if (above === resolve(above, "..") || (await stat(above).then(() => true, () => false))) return undefined;
    }
  }

  /** Show the diff until the user has decided: by its title, by the notification, which goes away with it, or by closing it. */
  private async decided(uri: vscode.Uri, before: string | undefined, after: string, what: string, beside: string): Promise<boolean> {
    let resource = "";
    try {
      const answer = new Promise<boolean>((settle) => {
        void this.diffs.open(uri.path, before ?? null, after, (right) => {
          resource = right.toString();
          this.proposed.set(resource, { settle });
          this.tell();
        }, beside).catch(() => { settle(false); });
      });
      const title = `${what}? ✓ in the title of the diff applies it, ✗ discards it.`;
      return await vscode.window.withProgress({ location: vscode.ProgressLocation.Notification, title, cancellable: true }, (_, cancel) => {
        cancel.onCancellationRequested(() => this.proposed.get(resource)?.settle(false));
        return answer;
      });
    } finally {
      this.proposed.delete(resource);
      this.tell();
      const tab = vscode.window.tabGroups.all.flatMap((group) => group.tabs).find(({ input }) => input instanceof vscode.TabInputTextDiff && input.modified.toString() === resource);
      if (tab !== undefined) await vscode.window.tabGroups.close(tab);
    }
  }

  private settle(uri: unknown, apply: boolean): void {
    const input = vscode.window.tabGroups.activeTabGroup.activeTab?.input;
    const resource = uri instanceof vscode.Uri ? uri : input instanceof vscode.TabInputTextDiff ? input.modified : undefined;
    const found = this.proposed.get(resource?.toString() ?? "");
    if (found !== undefined) found.settle(apply);
    else void vscode.window.showInformationMessage("This change was decided already. Use Apply to File in the Cantrip chat again.");
  }

  private tell(): void {
    void vscode.commands.executeCommand("setContext", PROPOSED, [...this.proposed.keys()]);
  }
}

function replaced(document: vscode.TextDocument, before: string, text: string, selection: vscode.Selection | undefined): string {
  if (selection !== undefined) return before.slice(0, document.offsetAt(selection.start)) + text + before.slice(document.offsetAt(selection.end));
  return /\n$/.test(before) || before === "" ? text + (document.eol === vscode.EndOfLine.CRLF ? "\r\n" : "\n") : text;
}

/** The editor with a file that the user looks at; the chat may be in a tab before it. */
function editorShown(): vscode.TextEditor | undefined {
  return [vscode.window.activeTextEditor, ...vscode.window.visibleTextEditors].find((each) => ["file", "untitled"].includes(each?.document.uri.scheme ?? ""));
}

/** Whether text in a terminal reaches a shell: the agent's own terminals only show what it runs. */
function isShellOfUser(terminal: vscode.Terminal | undefined): terminal is vscode.Terminal {
  return terminal !== undefined && terminal.exitStatus === undefined && !("pty" in terminal.creationOptions);
}

async function asked(folder: string): Promise<vscode.Uri | undefined> {
  return (await vscode.window.showOpenDialog({ title: "Apply the code to which file?", openLabel: "Show the Change", defaultUri: vscode.Uri.file(folder), canSelectMany: false }))?.[0];
}

async function write(uri: vscode.Uri, before: string | undefined, after: string, name: string): Promise<void> {
  const edit = new vscode.WorkspaceEdit();
  if (before === undefined) {
    edit.createFile(uri, { overwrite: false, contents: new TextEncoder().encode(after) });
  } else {
    const document = await vscode.workspace.openTextDocument(uri);
    if (document.getText() !== before) {
      void vscode.window.showWarningMessage(`${name} has changed since the diff was shown. Nothing was applied; use Apply to File again.`);
      return;
    }
    edit.replace(uri, new vscode.Range(document.positionAt(0), document.positionAt(before.length)), after);
  }
  if (!(await vscode.workspace.applyEdit(edit))) void vscode.window.showWarningMessage(`The editor did not take the change of ${name}.`);
  else await vscode.window.showTextDocument(uri, { viewColumn: vscode.ViewColumn.One });
}
