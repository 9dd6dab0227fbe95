/** A webview that shows the viewer's page in a frame. */
import { randomBytes } from "node:crypto";
import * as vscode from "vscode";
import type { Environment } from "../environment/environment";
import type { Viewer } from "./viewer";

export class ViewerFrame {
  private viewer: Viewer | undefined;
  private closed = false;

  constructor(
    private readonly environment: Environment,
    private readonly panel: vscode.WebviewPanel,
    /** What is shown, for the log. */
    private readonly name: string,
    private readonly open: () => Promise<Viewer>,
    private turn?: string,
  ) {
    // A tab that the editor brings back has them already; to set them again loads its page again, at the same time as the text.
    if (panel.webview.options.enableScripts !== true) panel.webview.options = { enableScripts: true, localResourceRoots: [] };
    panel.webview.html = page("Opening the record…");
    panel.webview.onDidReceiveMessage((message: unknown) => {
      if (message === "again") void this.start();
    });
    panel.onDidDispose(() => {
      this.closed = true;
      this.viewer?.dispose();
    });
  }

  /** Show a turn. */
  go(turn: string): void {
    this.turn = turn;
    this.draw();
  }

  async start(): Promise<void> {
    const { panel } = this;
    try {
      const viewer = await this.open();
      this.viewer = viewer;
      if (this.closed) {
        viewer.dispose();
        return;
      }
      this.draw();
      void viewer.ended.then((why) => {
        if (!this.closed && this.viewer === viewer) panel.webview.html = page("The viewer has ended.", why, true);
      });
    } catch (error) {
      if (error instanceof vscode.CancellationError || this.closed) return;
      const why = error instanceof Error ? error.message : String(error);
      this.environment.output.error(`the viewer of ${this.name}: ${why}`);
      panel.webview.html = page("The record cannot be shown.", why, true);
    }
  }

  private draw(): void {
    if (this.viewer !== undefined) this.panel.webview.html = framed(this.viewer.address, this.turn);
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
