import { RequestError } from "@agentclientprotocol/sdk/unstable";
import type * as acp from "@agentclientprotocol/sdk/unstable";
import { type ChildProcess, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { StringDecoder } from "node:string_decoder";
import * as vscode from "vscode";
import type { TerminalServices } from "../acp/connection";

const NOT_FOUND = -32002;
const DEFAULT_LIMIT = 1_000_000;

/** Runs commands of the agent in the editor's terminals (ACP, Terminals). */
export class EditorTerminals implements TerminalServices, vscode.Disposable {
  private readonly running = new Map<string, Run>();

  /** `printed` also gets the output of the terminals. */
  constructor(private readonly printed: (terminalId: string, data: string) => void) {}

  create(request: acp.CreateTerminalRequest): Promise<acp.CreateTerminalResponse> {
    const id = `editor-${randomUUID()}`;
    const run = new Run(request, (data) => this.printed(id, data));
    this.running.set(id, run);
    return Promise.resolve({ terminalId: id });
  }

  output(request: acp.TerminalOutputRequest): acp.TerminalOutputResponse {
    const run = this.find(request.terminalId);
    return { output: run.text, truncated: run.truncated, ...(run.status ? { exitStatus: run.status } : {}) };
  }

  waitForExit(request: acp.WaitForTerminalExitRequest): Promise<acp.WaitForTerminalExitResponse> {
    return this.find(request.terminalId).exited;
  }

  kill(request: acp.KillTerminalRequest): void {
    this.find(request.terminalId).kill();
  }

  release(request: acp.ReleaseTerminalRequest): void {
    const run = this.find(request.terminalId);
    this.running.delete(request.terminalId);
    run.kill();
  }

  /** End all commands, because the agent has ended. */
  dispose(): void {
    for (const run of this.running.values()) run.kill();
    this.running.clear();
  }

  private find(id: string): Run {
    const run = this.running.get(id);
    if (run === undefined) throw new RequestError(NOT_FOUND, `There is no terminal ${id.slice(0, 100)}.`);
    return run;
  }
}

class Run {
  text = "";
  truncated = false;
  status: acp.TerminalExitStatus | undefined;
  readonly exited: Promise<acp.WaitForTerminalExitResponse>;
  private readonly child: ChildProcess;
  private readonly shown = new vscode.EventEmitter<string>();
  private readonly limit: number;

  constructor(request: acp.CreateTerminalRequest, printed: (data: string) => void) {
    this.limit = request.outputByteLimit ?? DEFAULT_LIMIT;
    const line = [request.command, ...(request.args ?? [])].join(" ");
    let ready = "";
    let isOpen = false;
    const write = (data: string): void => {
      const text = data.replace(/\r?\n/g, "\r\n");
      if (isOpen) this.shown.fire(text);
      else ready += text;
    };
    const terminal = vscode.window.createTerminal({
      name: `Cantrip: ${line.slice(0, 40)}`,
      iconPath: new vscode.ThemeIcon("sparkle"),
      pty: {
        onDidWrite: this.shown.event,
        open: () => {
          isOpen = true;
          this.shown.fire(`\u001b[2m$ ${line.replace(/[\r\n]+/g, " ")}\u001b[0m\r\n${ready}`);
        },
        close: () => this.kill(),
      },
    });
    terminal.show(true);
    this.child = spawn(request.command, request.args ?? [], {
      cwd: request.cwd ?? undefined,
      env: { ...process.env, ...Object.fromEntries((request.env ?? []).map((each) => [each.name, each.value])) },
      stdio: ["ignore", "pipe", "pipe"],
      detached: process.platform !== "win32",
      // A command without arguments is a shell command line, as in the editor's terminals.
      shell: (request.args ?? []).length === 0,
    });
    for (const stream of [this.child.stdout, this.child.stderr]) {
      const decoder = new StringDecoder("utf8");
      stream?.on("data", (bytes: Buffer) => {
        const data = decoder.write(bytes);
        this.keep(data);
        printed(data);
        write(data);
      });
    }
    this.exited = new Promise((resolve) => {
      const over = (code: number | null, signal: string | null, said: string): void => {
        if (this.status !== undefined) return;
        this.status = { exitCode: code, signal };
        write(`\r\n\u001b[2m[${said}]\u001b[0m\r\n`);
        resolve(this.status);
      };
      this.child.once("error", (problem) => {
        this.keep(`${problem.message}\n`);
        over(127, null, problem.message);
      });
      this.child.once("close", (code, signal) => over(code, signal, signal ? `ended by ${signal}` : `exit code ${code ?? 0}`));
    });
  }

  kill(): void {
    const pid = this.child.pid;
    if (this.status !== undefined || pid === undefined) return;
    try {
      if (process.platform === "win32") this.child.kill();
      else process.kill(-pid, "SIGKILL");
    } catch {
      this.child.kill("SIGKILL");
    }
  }

  private keep(data: string): void {
    this.text += data;
    const bytes = Buffer.byteLength(this.text);
    if (bytes <= this.limit) return;
    this.truncated = true;
    // Cut at the beginning, between two characters.
    const kept = Buffer.from(this.text).subarray(bytes - this.limit);
    let start = 0;
    while (start < kept.length && ((kept[start] ?? 0) & 0xc0) === 0x80) start += 1;
    this.text = kept.subarray(start).toString("utf8");
  }
}
