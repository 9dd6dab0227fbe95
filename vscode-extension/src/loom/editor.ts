/** The custom editor for looms: shows the viewer's page in a frame. The text is never loaded into the editor. */
import * as vscode from "vscode";
import type { Environment } from "../environment/environment";
import { ViewerFrame } from "./frame";
import { Viewer } from "./viewer";

export const VIEW_TYPE = "cantrip.loom";

interface LoomDocument extends vscode.CustomDocument {
  readonly uri: vscode.Uri;
}

export class LoomEditor implements vscode.CustomReadonlyEditorProvider<LoomDocument>, vscode.Disposable {
  private readonly registration: vscode.Disposable;
  /** The panels of each loom, and the turn to show when its panel opens. */
  private readonly panels = new Map<string, Set<ViewerFrame>>();
  private readonly wanted = new Map<string, string>();

  constructor(private readonly environment: Environment) {
    this.registration = vscode.window.registerCustomEditorProvider(VIEW_TYPE, this, {
      webviewOptions: { retainContextWhenHidden: true },
    });
  }

  /** Show a loom, at a turn if one is given. */
  async show(uri: vscode.Uri, turn?: string): Promise<void> {
    const open = this.panels.get(uri.toString());
    if (turn !== undefined) {
      if (open !== undefined && open.size > 0) for (const each of open) each.go(turn);
      else this.wanted.set(uri.toString(), turn);
    }
    await vscode.commands.executeCommand("vscode.openWith", uri, VIEW_TYPE);
  }

  openCustomDocument(uri: vscode.Uri): LoomDocument {
    return { uri, dispose: () => undefined };
  }

  async resolveCustomEditor(document: LoomDocument, panel: vscode.WebviewPanel, token: vscode.CancellationToken): Promise<void> {
    const name = document.uri.toString();
    const { fsPath } = document.uri;
    const frame = new ViewerFrame(this.environment, panel, fsPath, () => Viewer.open(this.environment, [fsPath], token), this.wanted.get(name));
    this.wanted.delete(name);
    const all = this.panels.get(name) ?? new Set();
    this.panels.set(name, all.add(frame));
    panel.onDidDispose(() => {
      all.delete(frame);
      if (all.size === 0) this.panels.delete(name);
    });
    await frame.start();
  }

  dispose(): void {
    this.registration.dispose();
  }
}
