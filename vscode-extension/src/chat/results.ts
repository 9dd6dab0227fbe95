/* eslint-disable no-control-regex -- escape codes are control characters */
/** Reads the data of a tool call: programs, test reports, exit codes, and errors as text for the user. */
import type { Program, TestReport, ToolItem } from "./items";

/** The maximum length of a program in characters. The rest is counted, so that the user knows of it. */
const MOST_PROGRAM = 200_000;
const MOST_INPUT = 200_000;

type Fields = Record<string, unknown>;

function fields(value: unknown): Fields | undefined {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? (value as Fields) : undefined;
}

/** The command or the code in the arguments of a call; undefined if there are other arguments. */
export function programOf(raw: unknown): Program | undefined {
  const given = fields(raw);
  if (given === undefined || Object.keys(given).length !== 1) return undefined;
  const text = given.command ?? given.code;
  if (typeof text !== "string") return undefined;
  return program(text, given.command === undefined ? "python" : "bash");
}

export function program(text: string, language: Program["language"]): Program {
  return { text: text.slice(0, MOST_PROGRAM), language, left: Math.max(0, text.length - MOST_PROGRAM) };
}

/** A call's arguments as text. */
export function inputOf(raw: unknown): string {
  const given = fields(raw);
  if (given !== undefined && Object.keys(given).length === 0) return "";
  const text = typeof raw === "string" ? raw : JSON.stringify(raw, null, 2);
  return text.length > MOST_INPUT ? `${text.slice(0, MOST_INPUT)}\n(${text.length - MOST_INPUT} more characters are not shown)` : text;
}

/** The result in one of its two forms: directly, or as `{output: …}`. */
function resultOf(raw: unknown): Fields | undefined {
  const given = fields(raw);
  return fields(given?.output) ?? given;
}

/** How a command ended; undefined if unknown. */
export function exitOf(raw: unknown): ToolItem["exit"] {
  const given = resultOf(raw);
  if (given === undefined || !("exit_code" in given) || "failures" in given) return undefined;
  const code = typeof given.exit_code === "number" ? given.exit_code : null;
  const signal = typeof given.signal === "string" && given.signal !== "" ? given.signal : null;
  // A program that ended itself, and one whose end is unknown.
  return code === null && signal === null ? undefined : { code, signal };
}

/** The recorded output of a command or a cell; undefined if it is not there. */
export function recordedOutput(name: string | undefined, raw: unknown): string | undefined {
  const given = fields(raw);
  if ((name !== "bash" && name !== "python") || given === undefined || !("exit_code" in given)) return undefined;
  return typeof given.output === "string" ? given.output : undefined;
}

const CODES = /\u001b\[[0-9;]*m/g;
const STYLE = /^[0-9;]{0,100}$/;

/** The text with an escape code where its style changes: pairs of a character's number and the style that begins there. */
export function inColours(text: string, styles: unknown): string {
  if (!Array.isArray(styles)) return text;
  // The agent counts characters, and JavaScript counts a pair of surrogates as two.
  const characters = /[\ud800-\udbff]/.test(text) ? Array.from(text) : undefined;
  const length = characters?.length ?? text.length;
  const part = (from: number, to: number): string => characters?.slice(from, to).join("") ?? text.slice(from, to);
  let out = "";
  let last = 0;
  let now = "";
  for (const each of styles) {
    const [at, style] = Array.isArray(each) ? (each as unknown[]) : [];
    if (typeof at !== "number" || typeof style !== "string" || at < last || at >= length || !STYLE.test(style)) continue;
    out += `${part(last, at)}\u001b[${now !== "" && style !== "" ? "0;" : ""}${style || "0"}m`;
    last = at;
    now = style;
  }
  return out + part(last, length) + (now === "" ? "" : "\u001b[0m");
}

export function withoutColours(text: string): string {
  return text.replace(CODES, "");
}

/** The report of a test run, and its command. */
export function testsOf(raw: unknown): { report: TestReport; command: string | undefined } | undefined {
  const given = resultOf(raw);
  if (given === undefined || typeof given.ok !== "boolean" || !Array.isArray(given.failures)) return undefined;
  const words = (["passed", "failed", "errors", "skipped"] as const).flatMap((name) => (typeof given[name] === "number" && given[name] > 0 ? [`${given[name]} ${name}`] : []));
  const failures = given.failures.flatMap((each) => {
    const failure = fields(each);
    const text = typeof failure?.text === "string" ? failure.text : "";
    return typeof failure?.name === "string" ? [{ name: failure.name, text, cause: causeOf(text) }] : [];
  });
  const command = typeof given.command === "string" ? given.command : undefined;
  const output = typeof given.output === "string" ? given.output : "";
  const note = typeof given.note === "string" ? given.note : "";
  return { report: { ok: given.ok, summary: words.join(", ") || (given.ok ? "passed" : "failed"), note, failures, output }, command };
}

/** Why a test failed: the error and its location, from the output of the test runner. */
function causeOf(text: string): string {
  const lines = text.split("\n").map((line) => line.trimEnd()).filter((line) => line.trim() !== "");
  // pytest marks the lines of the error with E.
  const marked = lines.filter((line) => /^E\s/.test(line)).map((line) => line.replace(/^E\s+/, ""));
  const error = lines.findLast((line) => /^[\w.]*(?:Error|Exception|Failure|Exit|panic|assert\w*)\b/i.test(line.trim()));
  const said = marked.length > 0 ? marked.slice(0, 4) : error === undefined ? lines.slice(-2) : [error.trim()];
  const at = lines.findLast((line) => /^[\w@./+-]+\.\w+:\d+/.test(line));
  const place = at === undefined ? "" : (/^[\w@./+-]+\.\w+:\d+/.exec(at)?.[0] ?? "");
  return [...said, ...(place !== "" && !said.some((line) => line.includes(place)) ? [place] : [])].join("\n");
}

/** The text inside the fences, if the whole text is one code block. */
export function unfenced(text: string): string | undefined {
  return /^(`{3,})[\w-]*\n([\s\S]*)\n\1\s*$/.exec(text)?.[2];
}

/** A failure as a sentence. */
export function sentence(text: string): string {
  const said = text.trim();
  if (said === "") return "";
  // A name at the beginning is not changed.
  const first = /^[a-z]+(?=[\s,])/.test(said) ? said.charAt(0).toUpperCase() + said.slice(1) : said;
  return /[.!?:\]]$/.test(first) || first.includes("\n") ? first : `${first}.`;
}
