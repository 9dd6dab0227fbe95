/** How to start Cantrip, and whether its version is new enough. Does not use the VS Code API. */
import { execFile } from "node:child_process";

/** The oldest `cantrip` that this extension works with. */
export const OLDEST = "0.1.0";

/** The time limit for the version check in milliseconds. The first start of Python from a slow disk takes long. */
const PATIENCE_MS = 30_000;

/** A program with the arguments that come before the subcommand. */
export interface Program {
  readonly command: string;
  readonly args: readonly string[];
  /** Where it was found, as text for the user, such as `the setting cantrip.path`. */
  readonly origin: string;
  /** Additional environment variables. */
  readonly env?: Readonly<Record<string, string>>;
}

/** A program that works, with its version. */
export interface FoundProgram extends Program {
  readonly version: string;
}

/** A program that cannot be used, with the reason and what to do. */
export interface RejectedProgram {
  readonly program: Program;
  readonly why: string;
  /** Whether the package is installed but too old. */
  readonly old?: boolean;
}

/** The command line of the program, as a user would type it. */
export function commandLine(program: Program, more: readonly string[] = []): string {
  return [program.command, ...program.args, ...more]
    .map((word) => (/[\s"']/.test(word) ? JSON.stringify(word) : word))
    .join(" ");
}

/** Compare two versions: negative if `a` is older. Parts that are not numbers count as 0. */
export function compareVersions(a: string, b: string): number {
  const parts = (text: string) => text.split(/[.+-]/).map((part) => Number.parseInt(part, 10) || 0);
  const [left, right] = [parts(a), parts(b)];
  for (let at = 0; at < Math.max(left.length, right.length); at++) {
    const difference = (left[at] ?? 0) - (right[at] ?? 0);
    if (difference !== 0) return difference;
  }
  return 0;
}

/**
 * Ask a program for its version. A Python that is started this way imports nothing from the current folder, and standard input
 * is closed.
 */
export async function probe(
  program: Program,
  cwd: string,
  env: NodeJS.ProcessEnv = process.env,
): Promise<FoundProgram | RejectedProgram> {
  const answer = await run(program, ["--version"], cwd, env);
  if (answer.error !== undefined) return { program, why: explain(program, answer) };
  const version = /^cantrip(?:-acp)?\s+(\d[^\s]*)\s*$/m.exec(answer.stdout)?.[1];
  if (version === undefined) {
    return {
      program,
      why: `${commandLine(program)} (${program.origin}) is another program: to --version it answers ${JSON.stringify(answer.stdout.slice(0, 80))}.`,
    };
  }
  if (compareVersions(version, OLDEST) < 0) {
    return {
      program,
      old: true,
      why: `${commandLine(program)} (${program.origin}) is cantrip ${version}; this extension needs ${OLDEST} or later. Run "Cantrip: Set Up", or install it again from the folder it came from.`,
    };
  }
  return { ...program, version };
}

export interface Answer {
  readonly stdout: string;
  readonly stderr: string;
  readonly error?: { readonly code: string | number | null; readonly message: string };
}

/** Run a program and return its output. Never throws. */
export function run(
  program: Program,
  args: readonly string[],
  cwd: string,
  env: NodeJS.ProcessEnv = process.env,
  signal?: AbortSignal,
  patience = PATIENCE_MS,
): Promise<Answer> {
  return new Promise((resolve) => {
    const options = {
      cwd,
      env: { ...env, ...program.env, PYTHONSAFEPATH: "1" },
      timeout: patience,
      maxBuffer: 256 * 1024 * 1024,
      ...(signal === undefined ? {} : { signal }),
    };
    const child = execFile(program.command, [...program.args, ...args], options, (error, stdout, stderr) => {
      if (error === null) resolve({ stdout, stderr });
      else
        resolve({
          stdout,
          stderr,
          error: {
            code: error.killed === true && error.name !== "AbortError" ? "ETIMEDOUT" : (error.code ?? null),
            message: error.message,
          },
        });
    });
    child.stdin?.end();
  });
}

function explain(program: Program, answer: Answer): string {
  const what = `${commandLine(program)} (${program.origin})`;
  const code = answer.error?.code;
  if (code === "ENOENT") return `${what} does not exist.`;
  if (code === "EACCES") return `${what} may not be run: it is not executable for this user.`;
  if (code === "ETIMEDOUT") return `${what} did not say its version within ${PATIENCE_MS / 1000} seconds.`;
  if (/No module named ['"]?cantrip_acp/.test(answer.stderr))
    return `${what} is a Python without the package cantrip-acp.`;
  const last = answer.stderr.trim().split("\n").at(-1);
  return `${what} failed${typeof code === "number" ? ` with status ${code}` : ""}${last ? `: ${last}` : ""}.`;
}
