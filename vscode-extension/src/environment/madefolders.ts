/**
 * What the set-up made on this machine, so that uninstalling can remove it. Does not use the VS Code API, because the hook
 * `vscode:uninstall` runs in plain node, when the editor is gone. The hook finds its own folder only, so the extension keeps a
 * list there, and each folder that the set-up made has a mark with its own path.
 */
import { existsSync, lstatSync, readFileSync, realpathSync, writeFileSync } from "node:fs";
import { rm, rmdir } from "node:fs/promises";
import { dirname, isAbsolute, join } from "node:path";

const LIST = ".set-up.json";
const MARK = ".made-by-cantrip-set-up";

/** Mark a virtual environment as made by the set-up. Raises an error of the file system. */
export function mark(venv: string): void {
  writeFileSync(join(venv, MARK), realpathSync(venv));
}

/** Let the extension's folder know an environment, if the set-up made it. Each version of the extension has its own folder. */
export function list(extension: string, venv: string): void {
  if (!isMade(venv)) return;
  const known = listed(extension);
  if (!known.includes(venv)) writeFileSync(join(extension, LIST), JSON.stringify([...known, venv]));
}

/** Remove all listed environments that the set-up made, and their parent folders if those are empty then. */
export async function removeMade(extension: string): Promise<void> {
  for (const venv of listed(extension).filter(isMade)) {
    await rm(venv, { recursive: true, force: true });
    await rmdir(dirname(venv)).catch(() => undefined);
  }
}

/** Whether this is an environment that the set-up made here: not a copy of one, not a link to another folder. */
function isMade(venv: string): boolean {
  try {
    return isAbsolute(venv) && lstatSync(venv).isDirectory() && existsSync(join(venv, "pyvenv.cfg")) && readFileSync(join(venv, MARK), "utf8") === realpathSync(venv);
  } catch {
    return false;
  }
}

function listed(extension: string): string[] {
  try {
    const found: unknown = JSON.parse(readFileSync(join(extension, LIST), "utf8"));
    return Array.isArray(found) ? found.filter((each) => typeof each === "string") : [];
  } catch {
    return [];
  }
}
