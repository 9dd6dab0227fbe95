/** What a prompt can take from the editor besides files: problems, a terminal's text, changes. Their addresses and texts. */
import type { Attachment, EditorContext } from "./items";

const SCHEME = "cantrip-editor:/";
/** The most characters of one of them in a prompt. */
export const MOST_CONTEXT = 60_000;
/** The most problems in a prompt. */
export const MOST_PROBLEMS = 200;

/** An attachment that is read when the prompt is sent. `file` limits problems to a file, by its path in the workspace. */
export function contextAttached(kind: EditorContext, file?: string, detail?: string): Attachment {
  const query = file === undefined ? "" : `?file=${encodeURIComponent(file).replace(/[!'()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16)}`)}`;
  return { kind, name: file === undefined ? kind : `${kind} in ${file.split("/").pop() ?? file}`, uri: `${SCHEME}${kind}${query}`, ...(detail === undefined ? {} : { detail }) };
}

/** The attachment with this address; undefined for other addresses. */
export function contextOf(uri: string): (Attachment & { readonly context: EditorContext; readonly file?: string }) | undefined {
  const found = /^cantrip-editor:\/(problems|terminal|changes)(?:\?file=([^&#]*))?$/.exec(uri);
  if (found === null) return undefined;
  let file: string | undefined;
  try {
    file = found[2] === undefined ? undefined : decodeURIComponent(found[2]);
  } catch {
    return undefined;
  }
  const context = found[1] as EditorContext;
  return { ...contextAttached(context, file), context, ...(file === undefined ? {} : { file }) };
}

export interface Problem {
  /** The path in the workspace, and the position, both from 1. */
  readonly path: string;
  readonly line: number;
  readonly column: number;
  readonly severity: "error" | "warning" | "info" | "hint";
  readonly message: string;
  /** Who found it, such as `Pylance reportMissingImports`. */
  readonly source: string;
}

const ORDER = ["error", "warning", "info", "hint"] as const;

/** Problems as text, one a line, errors first. */
export function problemsText(problems: readonly Problem[], file?: string): string {
  const where = file ?? "the workspace";
  if (problems.length === 0) return `The editor shows no problems in ${where}.`;
  const sorted = [...problems].sort((a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity) || a.path.localeCompare(b.path) || a.line - b.line);
  const lines = sorted
    .slice(0, MOST_PROBLEMS)
    .map((each) => `${each.path}:${each.line}:${each.column}: ${each.severity}: ${each.message.replace(/\s*\n\s*/g, " ")}${each.source === "" ? "" : ` [${each.source}]`}`);
  const left = problems.length - lines.length;
  return limited([`The problems that the editor shows in ${where}:`, ...lines, ...(left > 0 ? [`(${left} more)`] : [])].join("\n"), "start");
}

/** How many problems there are: `2 errors, 1 warning`. */
export function problemsCount(problems: readonly Problem[]): string {
  const words = ORDER.flatMap((severity) => {
    const count = problems.filter((each) => each.severity === severity).length;
    return count === 0 ? [] : [`${count} ${severity}${count === 1 || severity === "info" ? "" : "s"}`];
  });
  return words.join(", ") || "none";
}

/** A text with at most `MOST_CONTEXT` characters: of a long one its start, or its end. It says how many were left out. */
export function limited(text: string, keep: "start" | "end"): string {
  const left = text.length - MOST_CONTEXT;
  if (left <= 0) return text;
  return keep === "start" ? `${text.slice(0, MOST_CONTEXT)}\n(${left} more characters are left out)` : `(${left} characters before this are left out)\n${text.slice(left)}`;
}

/** What a terminal printed, as plain text: without escape codes, and lines as they stood at the end. */
export function terminalText(printed: string): string {
  const plain = printed
    // OSC (titles, marks of shell integration), then CSI and the short sequences.
    // eslint-disable-next-line no-control-regex
    .replace(/\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)/g, "")
    // eslint-disable-next-line no-control-regex
    .replace(/\u001b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_]|[()][A-Z0-9])/g, "");
  return plain
    .split(/\r?\n/)
    .map((line) => line.split("\r").findLast((part) => part !== "") ?? "")
    // eslint-disable-next-line no-control-regex
    .map((line) => line.replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, "").trimEnd())
    .join("\n")
    .trim();
}
