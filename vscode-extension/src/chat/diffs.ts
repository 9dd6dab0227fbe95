import { randomUUID } from "node:crypto";
import { basename } from "node:path";
import * as vscode from "vscode";

const SCHEME = "cantrip-diff";
const KEPT = 100;

// Colours and other escape sequences, which an editor would show as characters.
// eslint-disable-next-line no-control-regex -- escape codes are control characters
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[ -/]*[0-~])/g;

/**
 * Shows changes in the diff editor: both sides as the agent sent them, also if the file has changed since. Shows outputs in a
 * read-only editor.
 */
export class Diffs implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly texts = new Map<string, string>();
  private readonly registration = vscode.workspace.registerTextDocumentContentProvider(SCHEME, this);

  /** `named` gets the resource of the new side before it is shown. `what` is said beside the file's name. */
  async open(path: string, before: string | null, after: string, named: (resource: vscode.Uri) => void = () => undefined, what = before === null ? "new file" : "Cantrip's change"): Promise<void> {
    const id = randomUUID();
    const left = this.keep(id, "before", path, before ?? "");
    const right = this.keep(id, "after", path, after);
    named(right);
    const title = `${basename(path)} (${what})`;
    await vscode.commands.executeCommand("vscode.diff", left, right, title, { preview: true });
  }

  async openOutput(title: string, text: string): Promise<void> {
    const name = title.replace(/[\\/:*?"<>|\s]+/g, " ").trim().slice(0, 60) || "output";
    const resource = this.keep(randomUUID(), "output", `/${name}.log`, text.replace(ESCAPES, ""));
    await vscode.window.showTextDocument(await vscode.workspace.openTextDocument(resource), { preview: true });
  }

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.texts.get(uri.query) ?? "This text is no longer kept. Open it from the conversation again.";
  }

  dispose(): void {
    this.registration.dispose();
  }

  private keep(id: string, side: string, path: string, text: string): vscode.Uri {
    const key = `${id}.${side}`;
    this.texts.set(key, text);
    while (this.texts.size > 2 * KEPT) this.texts.delete(this.texts.keys().next().value as string);
    // The path keeps its suffix, which gives the language.
    return vscode.Uri.file(path).with({ scheme: SCHEME, query: key });
  }
}
