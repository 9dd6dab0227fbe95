/** Where to search for Cantrip, and in which order. Does not use the VS Code API: its values come in as `Places`. */
import { accessSync, constants, statSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, isAbsolute, join, relative, resolve } from "node:path";
import { probe, type FoundProgram, type Program, type RejectedProgram } from "./program";

const WINDOWS = process.platform === "win32";
const BIN = WINDOWS ? "Scripts" : "bin";
const EXE = WINDOWS ? ".exe" : "";

/** The places to search. */
export interface Places {
  /** The settings `cantrip.path` and `cantrip.python`; empty if not set. */
  readonly path: string;
  readonly python: string;
  /** The interpreter that the Python extension has selected. */
  readonly interpreter?: string;
  /** Folders of the workspace. */
  readonly folders: readonly string[];
  /** Whether the workspace is trusted to choose the program. */
  readonly trusted: boolean;
  /** The virtual environment that the guided setup makes. */
  readonly own: string;
  readonly useUvx: boolean;
  /** What uvx runs; undefined if there is nothing. */
  readonly installSource: string | undefined;
  readonly env: NodeJS.ProcessEnv;
}

/** The command that runs `cantrip` with a Python interpreter. */
export function byPython(python: string, origin: string): Program {
  return { command: python, args: ["-m", "cantrip_acp"], origin };
}

/** The Python of a virtual environment. */
export function pythonOf(environment: string): string {
  return join(environment, BIN, `python${EXE}`);
}

/**
 * The candidates in order. If a setting names a program that does not work, the user sees an error, and
 * nothing else is tried in its place.
 */
export function candidates(places: Places): Program[] {
  const expanded = (text: string) => expand(text, places.folders[0]);
  if (places.path.trim() !== "")
    return [{ command: onPath(expanded(places.path), places), args: [], origin: "the setting cantrip.path" }];
  if (places.python.trim() !== "")
    return [byPython(onPath(expanded(places.python), places), "the setting cantrip.python")];
  const found: Program[] = [];
  const inWorkspace = (file: string) => places.folders.some((folder) => inside(folder, file));
  if (places.interpreter !== undefined && (places.trusted || !inWorkspace(places.interpreter))) {
    found.push(byPython(places.interpreter, "the Python extension's interpreter"));
  }
  if (places.trusted) {
    for (const folder of places.folders) {
      for (const name of [".venv", "venv"]) {
        const program = join(folder, name, BIN, `cantrip${EXE}`);
        if (runs(program)) found.push({ command: program, args: [], origin: `${name} of the workspace` });
      }
    }
  }
  const own = pythonOf(places.own);
  if (runs(own)) found.push(byPython(own, "this extension's own environment"));
  const program = which("cantrip", places, inWorkspace);
  if (program !== undefined) found.push({ command: program, args: [], origin: "PATH" });
  if (places.useUvx && places.installSource !== undefined) {
    const uvx = which("uvx", places, inWorkspace);
    if (uvx !== undefined)
      found.push({ command: uvx, args: ["--from", places.installSource, "cantrip"], origin: "uvx" });
  }
  return found;
}

/** The first candidate that works; otherwise the reason for each that does not. */
export async function search(places: Places, cwd: string): Promise<FoundProgram | readonly RejectedProgram[]> {
  const refused: RejectedProgram[] = [];
  for (const program of candidates(places)) {
    const answer = await probe(program, cwd, places.env);
    if ("version" in answer) return answer;
    refused.push(answer);
  }
  return refused;
}

/** Find a program on PATH and in the folders of pip and uv. Relative entries and untrusted workspaces are left out. */
export function which(
  name: string,
  places: Pick<Places, "env" | "trusted">,
  inWorkspace: (file: string) => boolean = () => false,
): string | undefined {
  const folders = (places.env["PATH"] ?? "").split(delimiter);
  for (const folder of [...folders, join(homedir(), ".local", "bin")]) {
    if (!isAbsolute(folder)) continue;
    const file = join(folder, `${name}${EXE}`);
    if (runs(file) && (places.trusted || !inWorkspace(file))) return file;
  }
  return undefined;
}

/** Expand `~` and `${workspaceFolder}`. A relative path is relative to the first folder. */
export function expand(text: string, folder: string | undefined): string {
  const meant = text
    .trim()
    .replace(/^~(?=$|[\\/])/, homedir())
    .replace(/\$\{workspaceFolder\}/g, folder ?? ".")
    .replace(/\$\{env:(\w+)\}/g, (_, name: string) => process.env[name] ?? "");
  return /[\\/]/.test(meant) && !isAbsolute(meant) && folder !== undefined ? resolve(folder, meant) : meant;
}

/** Whether a file is inside a folder. */
export function inside(folder: string, file: string): boolean {
  const way = relative(folder, file);
  return way !== "" && !way.startsWith("..") && !isAbsolute(way);
}

function onPath(name: string, places: Places): string {
  return /[\\/]/.test(name) ? name : (which(name, places) ?? name);
}

function runs(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return statSync(file).isFile();
  } catch {
    return false;
  }
}
