/** Makes a virtual environment and installs the package there. Does not use the VS Code API. */
import { existsSync, readdirSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { mark } from "./madefolders";
import { run, type Answer, type Program } from "./program";
import { pythonOf, which } from "./search";

export interface InstallOptions {
  /** The environment's folder. */
  readonly folder: string;
  /** The requirement for pip; if empty, the package from `wheels`. */
  readonly source: string;
  /** The folder of the wheels in the extension: the package, and its dependencies if they were packed for this platform. */
  readonly wheels?: string;
  readonly cwd: string;
  readonly env: NodeJS.ProcessEnv;
  readonly signal: AbortSignal;
}

/** `why` is the reason for the user, and its first line is a whole sentence; undefined if the user cancelled. */
export type InstallResult = { readonly ok: true } | { readonly ok: false; readonly why?: string };

const INSTALL_MS = 15 * 60_000;
const PYTHONS = ["python3.14", "python3.13", "python3.12", "python3.11", "python3", "python"];

/** Install the package, or update an existing environment. A failed installation leaves no partial environment. */
export async function install(wanted: InstallOptions, say: (message: string) => void): Promise<InstallResult> {
  const places = { env: wanted.env, trusted: true };
  const uv = which("uv", places);
  const call = (command: string, ...args: string[]) =>
    run({ command, args: [], origin: "" } satisfies Program, args, wanted.cwd, wanted.env, wanted.signal, INSTALL_MS);
  const python = pythonOf(wanted.folder);
  const fresh = !existsSync(python);
  // Never a name on an index: until there is a release, a package of our name there is a stranger's.
  const source = withExtra(wanted.source) || ownPackage(wanted.wheels);
  if (source === undefined) {
    return { ok: false, why: "This extension comes without the package of Cantrip: name one in the setting cantrip.installSource, such as the folder of a clone or a wheel." };
  }
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
      const made = await makeEnvironment(call, wanted, system, uv);
      if (made.error !== undefined) {
        return await failed(wanted, fresh, "The environment could not be created", `${made.stdout}${made.stderr}`);
      }
      mark(wanted.folder);
    }
    const pip = await pipOf(call, python, wanted.wheels, uv);
    let put: Answer | undefined;
    if (wanted.source === "" && wanted.wheels !== undefined) {
      say("installing Cantrip from the extension");
      put = await call(...pip, "--no-index", "--find-links", wanted.wheels, source);
      if (put.error !== undefined && !wanted.signal.aborted) say("fetching what the extension does not have for this platform from the package index");
    }
    if (put === undefined || (put.error !== undefined && !wanted.signal.aborted)) {
      if (put === undefined) say(`installing ${source}`);
      put = await call(...pip, ...(wanted.wheels === undefined ? [] : ["--find-links", wanted.wheels]), source);
    }
    if (put.error !== undefined) {
      return await failed(wanted, fresh, `${wanted.source === "" ? "Cantrip" : source} could not be installed`, `${put.stdout}${put.stderr}`);
    }
    return { ok: true };
  } catch (error) {
    return failed(wanted, fresh, "The set-up failed", String(error));
  }
}

/** A requirement for pip that names the package or a wheel of it, with the extra for editors unless it names extras. */
export function withExtra(source: string): string {
  return source.replace(/^(cantrip-acp|.*\.whl)(?=$|[\s<>=!~@;])/, "$1[editor]");
}

type Call = (command: string, ...args: string[]) => Promise<Answer>;

/** Without uv's option --seed, which would download pip. */
async function makeEnvironment(call: Call, wanted: InstallOptions, system: string | undefined, uv: string | undefined): Promise<Answer> {
  if (system === undefined) return call(uv ?? "uv", "venv", "--python", "3.12", wanted.folder);
  if (uv !== undefined) return call(uv, "venv", "--python", system, wanted.folder);
  const made = await call(system, "-m", "venv", wanted.folder);
  // For a Python without ensurepip: pip is one of the wheels.
  if (made.error === undefined || wheel(wanted.wheels, "pip-") === undefined) return made;
  await rm(wanted.folder, { recursive: true, force: true });
  return call(system, "-m", "venv", "--without-pip", wanted.folder);
}

/** The first words of a command that installs into an environment. */
async function pipOf(call: Call, python: string, wheels: string | undefined, uv: string | undefined): Promise<[string, ...string[]]> {
  if (uv !== undefined) return [uv, "pip", "install", "--python", python, "--upgrade"];
  const install = ["install", "--disable-pip-version-check", "--upgrade"];
  const packed = wheel(wheels, "pip-");
  const here = packed === undefined ? undefined : await call(python, "-c", "import pip");
  // A wheel of pip can be run directly.
  if (packed !== undefined && here?.error !== undefined) return [python, join(packed, "pip"), ...install];
  return [python, "-m", "pip", ...install];
}

/** The wheel in a folder whose name has this prefix. */
/** The package of Cantrip in the extension, with what an editor needs: the language server, MCP, web pages, the models of Google. */
export function ownPackage(wheels: string | undefined): string | undefined {
  const own = wheel(wheels, "cantrip_acp-");
  return own === undefined ? undefined : withExtra(own);
}

function wheel(folder: string | undefined, name: string): string | undefined {
  if (folder === undefined || !existsSync(folder)) return undefined;
  const found = readdirSync(folder).find((each) => each.startsWith(name) && each.endsWith(".whl"));
  return found === undefined ? undefined : join(folder, found);
}

async function newEnough(wanted: InstallOptions): Promise<string | undefined> {
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

async function failed(wanted: InstallOptions, fresh: boolean, what: string, output: string): Promise<InstallResult> {
  if (fresh) await rm(wanted.folder, { recursive: true, force: true });
  if (wanted.signal.aborted) return { ok: false };
  const lines = output.trim().split("\n");
  const last = lines.findLast((line) => /error|No module|not found|failed/i.test(line)) ?? lines.at(-1) ?? "";
  return { ok: false, why: `${what}: ${hint(output) ?? last.trim()}\n${output.trim()}` };
}

/** What to do about frequent failures. */
function hint(output: string): string | undefined {
  if (/ensurepip is not available|No module named (ensurepip|venv)/.test(output)) {
    return "this Python cannot make environments. On Debian and Ubuntu: sudo apt install python3-venv";
  }
  if (/Could not find a version|No matching distribution/.test(output)) {
    return "the package index does not have all that is needed. Check the network and the setting cantrip.installSource.";
  }
  if (/Temporary failure in name resolution|Failed to establish a new connection|dns error/i.test(output)) {
    return "the package index cannot be reached. Check the network, and HTTPS_PROXY where a proxy is needed.";
  }
  return undefined;
}
