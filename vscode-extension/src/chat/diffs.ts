import { randomUUID } from "node:crypto";
import { basename } from "node:path";
import * as vscode from "vscode";

const SCHEME = "cantrip-diff";
const KEPT = 100;

/** Changes in the editor's own diff editor: both sides as they were told, whatever became of the file since. */
export class Diffs implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly texts = new Map<string, string>();
  private readonly registration = vscode.workspace.registerTextDocumentContentProvider(SCHEME, this);

  /** `named` is told the resource of what would be there, before it is shown. */
  async open(path: string, before: string | null, after: string, named: (resource: vscode.Uri) => void = () => undefined): Promise<void> {
    const id = randomUUID();
    const left = this.keep(id, "before", path, before ?? "");
    const right = this.keep(id, "after", path, after);
    named(right);
    const title = `${basename(path)} (${before === null ? "new file" : "Cantrip's change"})`;
    await vscode.commands.executeCommand("vscode.diff", left, right, title, { preview: true });
  }

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.texts.get(uri.query) ?? "This change is no longer kept. Open it from the conversation again.";
  }

  dispose(): void {
    this.registration.dispose();
  }

  private keep(id: string, side: string, path: string, text: string): vscode.Uri {
    const key = `${id}.${side}`;
    this.texts.set(key, text);
    while (this.texts.size > 2 * KEPT) this.texts.delete(this.texts.keys().next().value as string);
    // The path keeps its ending, by which the editor knows the language.
    return vscode.Uri.file(path).with({ scheme: SCHEME, query: key });
  }
}
