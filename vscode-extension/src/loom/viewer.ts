/** The viewer process (`cantrip loom view`): serves a page on the loopback address, which a frame of the editor shows. */
import { type ChildProcess, spawn } from "node:child_process";
import { createServer } from "node:net";
import * as vscode from "vscode";
import type { Environment } from "../environment/environment";

/** The time limit for the first page in milliseconds. A large loom is read later, and the page shows the progress. */
const PATIENCE_MS = 60_000;

/**
 * Origins that may show the page in a frame: every page between the view and the window. On a desktop these are the editor's
 * schemes, in a browser the page's host and where VS Code for the Web serves webviews from.
 */
const FRAMES = ["vscode-webview:", "vscode-file:", "https://*.vscode-cdn.net", "https://vscode.dev", "https://*.github.dev"];

export class Viewer implements vscode.Disposable {
  private constructor(
    private readonly process: ChildProcess,
    /** The URL for the editor's window, with its token. */
    readonly address: vscode.Uri,
    /** Resolves when the process has ended. */
    readonly ended: Promise<string>,
  ) {}

  /** Serve a loom, or two side by side; each is a path or the id of a session. Rejects with a message that says what failed and what to do. */
  static async open(environment: Environment, looms: readonly string[], token: vscode.CancellationToken): Promise<Viewer> {
    const program = await environment.need();
    if (program === undefined) throw new Error("The viewer is a part of Cantrip, which is not set up here.");
    const port = await freePort();
    const inside = vscode.Uri.parse(`http://127.0.0.1:${port}/`);
    // The window may reach this machine directly, through a tunnel or through a proxy.
    const outside = await vscode.env.asExternalUri(inside);
    const args = ["loom", "view", ...looms, "--no-browser", "--port", String(port)];
    for (const frame of FRAMES) args.push("--frame", frame);
    if (outside.authority !== inside.authority) {
      args.push("--host", outside.authority, "--frame", `${outside.scheme}://${outside.authority}`);
    }
    const child = spawn(program.command, [...program.args, ...args], {
      cwd: environment.safeCwd,
      env: { ...environment.env(), ...program.env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    let errors = "";
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      errors = (errors + text).slice(-4000);
    });
    const ended = new Promise<string>((resolve) => {
      child.once("error", (error) => { resolve(error.message); });
      child.once("exit", (code, signal) => { resolve(errors.trim() === "" ? `it ended with ${signal ?? `status ${code ?? "?"}`}` : errors.trim()); });
    });
    try {
      const printed = await firstLine(child, ended, token);
      const fragment = vscode.Uri.parse(printed, true).fragment;
      return new Viewer(child, outside.with({ path: outside.path.endsWith("/") ? outside.path : `${outside.path}/`, fragment }), ended);
    } catch (error) {
      child.kill();
      throw error;
    }
  }

  dispose(): void {
    this.process.kill();
  }
}

function firstLine(child: ChildProcess, ended: Promise<string>, token: vscode.CancellationToken): Promise<string> {
  return new Promise((resolve, reject) => {
    let text = "";
    const late = setTimeout(() => { reject(new Error(`The viewer printed no address within ${PATIENCE_MS / 1000} seconds.`)); }, PATIENCE_MS);
    const settle = (act: () => void) => {
      clearTimeout(late);
      act();
    };
    token.onCancellationRequested(() => { settle(() => { reject(new vscode.CancellationError()); }); });
    child.stdout?.setEncoding("utf8").on("data", (more: string) => {
      text += more;
      const end = text.indexOf("\n");
      if (end >= 0) settle(() => { resolve(text.slice(0, end).trim()); });
    });
    void ended.then((why) => { settle(() => { reject(new Error(why)); }); });
  });
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const address = server.address();
      server.close(() => {
        if (address !== null && typeof address === "object") resolve(address.port);
        else reject(new Error("no free port on 127.0.0.1"));
      });
    });
  });
}
