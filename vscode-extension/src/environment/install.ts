/** Makes a virtual environment and installs the package into it. Knows nothing of the editor. */
import { existsSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { dirname } from "node:path";
import { run, type Program } from "./program";
import { pythonOf, which } from "./search";

export interface Wanted {
  /** The environment's folder. */
  readonly folder: string;
  /** What pip is told to install. */
  readonly source: string;
  readonly cwd: string;
  readonly env: NodeJS.ProcessEnv;
  readonly signal: AbortSignal;
}

/** `why` is for the user, its first line a whole sentence; missing where the user cancelled. */
export type Installed = { readonly ok: true } | { readonly ok: false; readonly why?: string };

const INSTALL_MS = 15 * 60_000;
const PYTHONS = ["python3.14", "python3.13", "python3.12", "python3.11", "python3", "python"];

/** Installs; an environment that is there is brought up to date. Half an environment is never left behind. */
export async function install(wanted: Wanted, say: (message: string) => void): Promise<Installed> {
  const places = { env: wanted.env, trusted: true };
  const uv = which("uv", places);
  const call = (command: string, ...args: string[]) =>
    run({ command, args: [], origin: "" } satisfies Program, args, wanted.cwd, wanted.env, wanted.signal, INSTALL_MS);
  const python = pythonOf(wanted.folder);
  const fresh = !existsSync(python);
  try {
    if (fresh) {
      say("looking for Python 3.11 or later");
      const system = await newEnough(wanted);
      if (system === undefined && uv === undefined) {
        return {
          ok: false,
          why: "No Python 3.11 or later was found on PATH: install one (https://www.python.org/downloads), or uv (https://docs.astral.sh/uv), and try again.",
        };
      }
      say(`creating an environment in ${wanted.folder}`);
      await rm(wanted.folder, { recursive: true, force: true });
      await mkdir(dirname(wanted.folder), { recursive: true });
      const made =
        uv !== undefined
          ? await call(uv, "venv", "--seed", "--python", system ?? "3.12", wanted.folder)
          : await call(system ?? "python3", "-m", "venv", wanted.folder);
      if (made.error !== undefined) {
        return await failed(wanted, fresh, "The environment could not be created", `${made.stdout}${made.stderr}`);
      }
    }
    say(`installing ${wanted.source}`);
    const put =
      uv !== undefined
        ? await call(uv, "pip", "install", "--python", python, "--upgrade", wanted.source)
        : await call(python, "-m", "pip", "install", "--disable-pip-version-check", "--upgrade", wanted.source);
    if (put.error !== undefined) {
      return await failed(wanted, fresh, `${wanted.source} could not be installed`, `${put.stdout}${put.stderr}`);
    }
    return { ok: true };
  } catch (error) {
    return failed(wanted, fresh, "The set-up failed", String(error));
  }
}

async function newEnough(wanted: Wanted): Promise<string | undefined> {
  for (const name of PYTHONS) {
    const file = which(name, { env: wanted.env, trusted: true });
    if (file === undefined) continue;
    const program: Program = { command: file, args: [], origin: "PATH" };
    const test = "import sys; sys.exit(sys.version_info < (3, 11))";
    const answer = await run(program, ["-c", test], wanted.cwd, wanted.env, wanted.signal);
    if (answer.error === undefined) return file;
  }
  return undefined;
}

async function failed(wanted: Wanted, fresh: boolean, what: string, output: string): Promise<Installed> {
  if (fresh) await rm(wanted.folder, { recursive: true, force: true });
  if (wanted.signal.aborted) return { ok: false };
  const lines = output.trim().split("\n");
  const last = lines.findLast((line) => /error|No module|not found|failed/i.test(line)) ?? lines.at(-1) ?? "";
  return { ok: false, why: `${what}: ${hint(output) ?? last.trim()}\n${output.trim()}` };
}

/** What to do about failures that everybody meets. */
function hint(output: string): string | undefined {
  if (/ensurepip is not available|No module named (ensurepip|venv)/.test(output)) {
    return "this Python cannot make environments. On Debian and Ubuntu: sudo apt install python3-venv";
  }
  if (/Could not find a version|No matching distribution/.test(output)) {
    return "the package index does not have it. Is the network there, and the setting cantrip.installSource right?";
  }
  if (/Temporary failure in name resolution|Failed to establish a new connection|dns error/i.test(output)) {
    return "the package index cannot be reached. Is the network there, and is a proxy needed (HTTPS_PROXY)?";
  }
  return undefined;
}
