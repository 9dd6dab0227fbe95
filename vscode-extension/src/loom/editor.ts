/** The custom editor for looms: shows the viewer's page in a frame. The text is never loaded into the editor. */
import { randomBytes } from "node:crypto";
import * as vscode from "vscode";
import type { Environment } from "../environment/environment";
import { Viewer } from "./viewer";

export const VIEW_TYPE = "cantrip.loom";

interface LoomDocument extends vscode.CustomDocument {
  readonly uri: vscode.Uri;
}

export class LoomEditor implements vscode.CustomReadonlyEditorProvider<LoomDocument>, vscode.Disposable {
  private readonly registration: vscode.Disposable;
  /** The panels of each loom, and the turn to show when its panel opens. */
  private readonly panels = new Map<string, Set<(turn: string) => void>>();
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
      if (open !== undefined && open.size > 0) for (const go of open) go(turn);
      else this.wanted.set(uri.toString(), turn);
    }
    await vscode.commands.executeCommand("vscode.openWith", uri, VIEW_TYPE);
  }

  openCustomDocument(uri: vscode.Uri): LoomDocument {
    return { uri, dispose: () => undefined };
  }

  async resolveCustomEditor(document: LoomDocument, panel: vscode.WebviewPanel, token: vscode.CancellationToken): Promise<void> {
    const name = document.uri.toString();
    panel.webview.options = { enableScripts: true, localResourceRoots: [] };
    panel.webview.html = page("Opening the record…");
    let viewer: Viewer | undefined;
    let turn = this.wanted.get(name);
    this.wanted.delete(name);
    const draw = () => {
      if (viewer !== undefined) panel.webview.html = framed(viewer.address, turn);
    };
    const go = (to: string) => {
      turn = to;
      draw();
    };
    const all = this.panels.get(name) ?? new Set();
    this.panels.set(name, all.add(go));
    let closed = false;
    const start = async () => {
      try {
        viewer = await Viewer.open(this.environment, document.uri.fsPath, token);
        if (closed) {
          viewer.dispose();
          return;
        }
        draw();
        const mine = viewer;
        void mine.ended.then((why) => {
          if (closed || viewer !== mine) return;
          panel.webview.html = page("The viewer has ended.", why, true);
        });
      } catch (error) {
        if (error instanceof vscode.CancellationError) return;
        const why = error instanceof Error ? error.message : String(error);
        this.environment.output.error(`the viewer of ${document.uri.fsPath}: ${why}`);
        panel.webview.html = page("The record cannot be shown.", why, true);
      }
    };
    panel.webview.onDidReceiveMessage((message: unknown) => {
      if (message === "again") void start();
    });
    panel.onDidDispose(() => {
      closed = true;
      viewer?.dispose();
      all.delete(go);
      if (all.size === 0) this.panels.delete(name);
    });
    await start();
  }

  dispose(): void {
    this.registration.dispose();
  }
}

/** The page may load only the frame. */
function framed(address: vscode.Uri, turn: string | undefined): string {
  const dark = [vscode.ColorThemeKind.Dark, vscode.ColorThemeKind.HighContrast].includes(vscode.window.activeColorTheme.kind);
  const more = `&theme=${dark ? "dark" : "light"}${turn === undefined ? "" : `&turn=${encodeURIComponent(turn)}`}`;
  const source = `${address.scheme}://${address.authority}${address.path}#${address.fragment}${more}`;
  const nonce = randomBytes(16).toString("base64");
  return `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; frame-src ${address.scheme}://${address.authority}; style-src 'nonce-${nonce}'">
<style nonce="${nonce}">html, body { margin: 0; padding: 0; height: 100%; overflow: hidden } iframe { border: 0; width: 100%; height: 100vh; display: block }</style>
<title>Loom</title></head><body><iframe src="${escaped(source)}" title="Loom viewer" allow="clipboard-write"></iframe></body></html>`;
}

function page(title: string, detail = "", again = false): string {
  const nonce = randomBytes(16).toString("base64");
  const button = again
    ? `<button id="again">Try again</button><script nonce="${nonce}">const api = acquireVsCodeApi(); document.getElementById("again").addEventListener("click", () => api.postMessage("again"))</script>`
    : "";
  return `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'nonce-${nonce}'; style-src 'nonce-${nonce}'">
<style nonce="${nonce}">body { padding: 2em; max-width: 60em } pre { white-space: pre-wrap; color: var(--vscode-descriptionForeground) }
button { color: var(--vscode-button-foreground); background: var(--vscode-button-background); border: 0; padding: 6px 14px; cursor: pointer }
button:hover { background: var(--vscode-button-hoverBackground) }</style>
<title>Loom</title></head><body><h3>${escaped(title)}</h3><pre>${escaped(detail)}</pre>${button}</body></html>`;
}

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}
