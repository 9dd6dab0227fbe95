import { spawn, type ChildProcessWithoutNullStreams } from "node:child_process";
import { Readable, Writable } from "node:stream";
import { type AgentCommand, quotedCommand } from "./command";

const TAIL_LINES = 40;
const LONGEST_LINE = 2000;
const CLOSE_MS = 1500;
const TERM_MS = 1000;
/** How a process ended that was stopped here. */
export const STOPPED = "was stopped";

/**
 * The agent process. It leads its own process group, so that its children end too if it has to be
 * killed. Normally it ends when its stdin closes; then it has some time to write its looms.
 */
export class AgentProcess {
  readonly ended: Promise<string>;
  private readonly child: ChildProcessWithoutNullStreams;
  private readonly tail: string[] = [];
  private rest = "";
  private over = false;
  private stopping = false;

  private constructor(
    readonly command: AgentCommand,
    private readonly heard: (line: string) => void,
  ) {
    const inGroup = process.platform !== "win32";
    this.child = spawn(command.command, [...command.args], {
      cwd: command.cwd,
      env: { ...process.env, ...command.env },
      stdio: ["pipe", "pipe", "pipe"],
      detached: inGroup,
      windowsHide: true,
    });
    // The end of the process reports a broken pipe. Without a listener, the error would end the extension host.
    this.child.stdin.on("error", () => undefined);
    this.child.stderr.setEncoding("utf8").on("data", (text: string) => this.onStderr(text));
    this.ended = new Promise((resolve) => {
      this.child.once("error", (problem: NodeJS.ErrnoException) => {
        this.over = true;
        const why = problem.code === "ENOENT" ? "there is no such program" : problem.message;
        resolve(`could not be started: ${why} (${quotedCommand(command)})`);
      });
      this.child.once("close", (code, signal) => {
        this.over = true;
        if (this.rest) this.keep(this.rest);
        const how = signal ? `ended by ${signal}` : `exit code ${code ?? "unknown"}`;
        resolve(this.stopping ? `${STOPPED} (${how})` : signal ? `was ${how}` : `ended with ${how}`);
      });
    });
  }

  /** Start the process. `ended` reports a failed start. `heard` gets each line of stderr. */
  static start(command: AgentCommand, heard: (line: string) => void = () => undefined): AgentProcess {
    return new AgentProcess(command, heard);
  }

  get running(): boolean {
    return !this.over;
  }

  get pid(): number | undefined {
    return this.child.pid;
  }

  get input(): WritableStream<Uint8Array> {
    return Writable.toWeb(this.child.stdin) as WritableStream<Uint8Array>;
  }

  get output(): ReadableStream<Uint8Array> {
    // Where the page's code is checked, with the types of a browser, they differ.
    // eslint-disable-next-line @typescript-eslint/no-unnecessary-type-assertion
    return Readable.toWeb(this.child.stdout) as unknown as ReadableStream<Uint8Array>;
  }

  /** The last lines of stderr, oldest first. */
  get stderrTail(): readonly string[] {
    return this.tail;
  }

  /** End the process: close stdin, then send SIGTERM, then send SIGKILL to its process group. */
  async stop(): Promise<void> {
    if (this.over) return;
    this.stopping = true;
    this.child.stdin.end();
    if (await this.endsWithin(CLOSE_MS)) return;
    this.signal("SIGTERM");
    if (await this.endsWithin(TERM_MS)) return;
    this.signal("SIGKILL");
    await this.ended;
  }

  private signal(name: NodeJS.Signals): void {
    const pid = this.child.pid;
    if (pid === undefined) return;
    try {
      if (process.platform === "win32") this.child.kill(name);
      else process.kill(-pid, name);
    } catch {
      this.child.kill(name);
    }
  }

  private async endsWithin(milliseconds: number): Promise<boolean> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<boolean>((resolve) => {
      timer = setTimeout(() => resolve(false), milliseconds);
    });
    const ended = await Promise.race([this.ended.then(() => true), late]);
    clearTimeout(timer);
    return ended;
  }

  private onStderr(text: string): void {
    const lines = (this.rest + text).split("\n");
    this.rest = (lines.pop() ?? "").slice(-LONGEST_LINE);
    for (const line of lines) this.keep(line);
  }

  private keep(line: string): void {
    this.tail.push(line.slice(0, LONGEST_LINE));
    if (this.tail.length > TAIL_LINES) this.tail.shift();
    this.heard(line);
  }
}
