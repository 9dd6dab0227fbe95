/** Reads what a prompt can take from the editor besides files: problems, a terminal's text, changes. */
import { execFile } from "node:child_process";
import * as vscode from "vscode";
import { type contextOf, limited, MOST_CONTEXT, type Problem, problemsText, terminalText } from "./editorcontext";

const GIT_MS = 10_000;
const GIT_BYTES = 4_000_000;
/** The tree without files, which every repository knows: the base of a repository without a commit. */
const EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

/** The text of one of them, with limited size. If it cannot be read, the text says why. */
export async function readContext(wanted: NonNullable<ReturnType<typeof contextOf>>): Promise<string> {
  switch (wanted.context) {
    case "problems": {
      const { file } = wanted;
      return problemsText(problems().filter((each) => file === undefined || each.path === file), file);
    }
    case "terminal":
      return lastOutput();
    case "changes":
      return limited(await changes(), "start");
  }
}

// --- problems

const SEVERITIES = ["error", "warning", "info", "hint"] as const;

/** The problems of the files of the workspace. Hints are left out: they are for the eye, such as code that is never used. */
export function problems(): Problem[] {
  return vscode.languages.getDiagnostics().flatMap(([uri, found]) => {
    if (vscode.workspace.getWorkspaceFolder(uri) === undefined) return [];
    const path = vscode.workspace.asRelativePath(uri);
    return found
      .filter((each) => each.severity !== vscode.DiagnosticSeverity.Hint)
      .map((each) => {
        const code = typeof each.code === "object" ? each.code.value : each.code;
        const { line, character } = each.range.start;
        return { path, line: line + 1, column: character + 1, severity: SEVERITIES[each.severity], message: each.message, source: [each.source, code].filter((word) => word !== undefined && word !== "").join(" ") };
      });
  });
}

/** The path in the workspace of the file that is shown. */
export function fileShown(): string | undefined {
  const editor = vscode.window.activeTextEditor ?? vscode.window.visibleTextEditors[0];
  return editor === undefined || vscode.workspace.getWorkspaceFolder(editor.document.uri) === undefined ? undefined : vscode.workspace.asRelativePath(editor.document.uri);
}

// --- terminals

interface Ran {
  readonly command: string;
  output: string;
  exit: number | undefined;
  ended: boolean;
}

/** The last command of each terminal with shell integration. */
const ran = new WeakMap<vscode.Terminal, Ran>();

/** Shell integration, which older editors and other shells do not have. */
interface Execution {
  readonly commandLine: { readonly value: string };
  read(): AsyncIterable<string>;
}
interface WithExecutions {
  readonly onDidStartTerminalShellExecution?: vscode.Event<{ readonly terminal: vscode.Terminal; readonly execution: Execution }>;
  readonly onDidEndTerminalShellExecution?: vscode.Event<{ readonly terminal: vscode.Terminal; readonly execution: Execution; readonly exitCode: number | undefined }>;
}

/** Keep the last command of each terminal and the end of its output. */
export function recordTerminals(): vscode.Disposable {
  const { onDidStartTerminalShellExecution: started, onDidEndTerminalShellExecution: ended } = vscode.window as WithExecutions;
  const running = new WeakMap<Execution, Ran>();
  const parts = [
    started?.(({ terminal, execution }) => {
      const now: Ran = { command: execution.commandLine.value, output: "", exit: undefined, ended: false };
      ran.set(terminal, now);
      running.set(execution, now);
      void keepOutput(execution, now);
    }),
    ended?.(({ execution, exitCode }) => {
      const now = running.get(execution);
      if (now !== undefined) Object.assign(now, { exit: exitCode, ended: true });
    }),
  ];
  return new vscode.Disposable(() => { for (const part of parts) part?.dispose(); });
}

async function keepOutput(execution: Execution, now: Ran): Promise<void> {
  for await (const data of execution.read()) {
    now.output += data;
    // Escape codes take room too.
    if (now.output.length > 4 * MOST_CONTEXT) now.output = now.output.slice(-2 * MOST_CONTEXT);
  }
}

function shownTerminal(): vscode.Terminal | undefined {
  return vscode.window.activeTerminal ?? vscode.window.terminals.at(-1);
}

/** The last command of the active terminal, if shell integration tells it. */
export function lastCommand(): string | undefined {
  const terminal = shownTerminal();
  return terminal && ran.get(terminal)?.command;
}

/** The last command with its output; without shell integration, the last lines of the terminal. */
async function lastOutput(): Promise<string> {
  const terminal = shownTerminal();
  if (terminal === undefined) return "No terminal is open in the editor.";
  const last = ran.get(terminal);
  // The output of a short command is sometimes not told.
  const printed = terminalText(last?.output ?? "");
  if (last === undefined || printed === "") return `The terminal “${terminal.name}” shows:\n\n${limited(terminalText(await everything(terminal)), "end")}`;
  const state = !last.ended ? "It still runs." : last.exit === undefined ? "" : `Exit code ${last.exit}.`;
  return `The last command in the terminal “${terminal.name}”: ${last.command}\n${state}\n\n${limited(printed, "end")}`;
}

/** All text of a terminal, through the clipboard, because extensions have no other way. The clipboard's text is restored. */
async function everything(terminal: vscode.Terminal): Promise<string> {
  terminal.show(true);
  return throughClipboard(async () => {
    await vscode.commands.executeCommand("workbench.action.terminal.selectAll");
    await vscode.commands.executeCommand("workbench.action.terminal.copySelection");
    await vscode.commands.executeCommand("workbench.action.terminal.clearSelection");
  });
}

/** The text that is selected in the active terminal. */
export async function terminalSelection(): Promise<string> {
  return throughClipboard(async () => { await vscode.commands.executeCommand("workbench.action.terminal.copySelection"); });
}

async function throughClipboard(copy: () => Promise<void>): Promise<string> {
  const { clipboard } = vscode.env;
  const before = await clipboard.readText();
  await clipboard.writeText("");
  try {
    await copy();
    return await clipboard.readText();
  } finally {
    await clipboard.writeText(before);
  }
}

// --- changes

/** What changed in the working trees of the workspace since the last commit, and which files are new. */
async function changes(): Promise<string> {
  const folders = (vscode.workspace.workspaceFolders ?? []).filter((folder) => folder.uri.scheme === "file").map((folder) => folder.uri.fsPath);
  const found = await Promise.all(
    folders.map(async (folder) => {
      try {
        const base = await git(folder, "rev-parse", "--verify", "--quiet", "HEAD").catch(() => EMPTY_TREE);
        const diff = await git(folder, "diff", "--no-ext-diff", "--no-textconv", "--relative", base.trim(), "--", ".");
        const added = (await git(folder, "ls-files", "--others", "--exclude-standard")).trim();
        const parts = [diff.trim(), added && `New files that git does not know yet:\n${added}`].filter(Boolean);
        return `Changes in ${folder} since the last commit:\n\n${parts.join("\n\n") || "none"}`;
      } catch (problem) {
        return `The changes in ${folder} are unknown: ${problem instanceof Error ? problem.message.trim().split("\n").at(-1) ?? "" : String(problem)}`;
      }
    }),
  );
  return found.join("\n\n");
}

/** Run git, without the monitor and the diff programs that a repository's configuration may name. */
async function git(folder: string, ...args: readonly string[]): Promise<string> {
  const named = vscode.workspace.getConfiguration("git").get<unknown>("path");
  const program = typeof named === "string" && named !== "" ? named : "git";
  return new Promise((resolve, reject) => {
    const options = { cwd: folder, timeout: GIT_MS, maxBuffer: GIT_BYTES, env: { ...process.env, GIT_OPTIONAL_LOCKS: "0" } };
    execFile(program, ["-c", "core.fsmonitor=false", ...args], options, (problem, out) => {
      // A diff that is too long is cut anyway.
      if (problem === null || (problem as NodeJS.ErrnoException).code === "ERR_CHILD_PROCESS_STDIO_MAXBUFFER") resolve(out);
      else reject(new Error(problem.message));
    });
  });
}
