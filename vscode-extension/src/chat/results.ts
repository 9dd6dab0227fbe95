/** What came of a call, in what the agent tells of it: programs, runs of tests, exits, and errors in words for the user. */
import type { Program, TestReport, ToolItem } from "./items";

/** Characters of a program that are shown: nobody approves what is longer unseen, so the rest is counted. */
const MOST_PROGRAM = 200_000;
const MOST_INPUT = 200_000;

type Fields = Record<string, unknown>;

function fields(value: unknown): Fields | undefined {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? (value as Fields) : undefined;
}

/** The command or the code among a call's arguments; nothing where there is more than that. */
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

/** A result, in whichever of the two shapes it comes: as it is, or as `{output: …}`. */
function resultOf(raw: unknown): Fields | undefined {
  const given = fields(raw);
  return fields(given?.output) ?? given;
}

/** How a command ended; nothing where it is told nothing of it. */
export function exitOf(raw: unknown): ToolItem["exit"] {
  const given = resultOf(raw);
  if (given === undefined || !("exit_code" in given) || "failures" in given) return undefined;
  const code = typeof given.exit_code === "number" ? given.exit_code : null;
  const signal = typeof given.signal === "string" && given.signal !== "" ? given.signal : null;
  // A program that ended by itself, and one of which nobody knows how.
  return code === null && signal === null ? undefined : { code, signal };
}

/** A run of tests and the command by which it was run. */
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

/** Why a test failed, of all that its runner says: the error itself, and where. */
function causeOf(text: string): string {
  const lines = text.split("\n").map((line) => line.trimEnd()).filter((line) => line.trim() !== "");
  // pytest marks the error's own lines by E.
  const marked = lines.filter((line) => /^E\s/.test(line)).map((line) => line.replace(/^E\s+/, ""));
  const error = lines.findLast((line) => /^[\w.]*(?:Error|Exception|Failure|Exit|panic|assert\w*)\b/i.test(line.trim()));
  const said = marked.length > 0 ? marked.slice(0, 4) : error === undefined ? lines.slice(-2) : [error.trim()];
  const at = lines.findLast((line) => /^[\w@./+-]+\.\w+:\d+/.test(line));
  const place = at === undefined ? "" : (/^[\w@./+-]+\.\w+:\d+/.exec(at)?.[0] ?? "");
  return [...said, ...(place !== "" && !said.some((line) => line.includes(place)) ? [place] : [])].join("\n");
}

/** The text between the fences, where a text is one code block. */
export function unfenced(text: string): string | undefined {
  return /^(`{3,})[\w-]*\n([\s\S]*)\n\1\s*$/.exec(text)?.[2];
}

/** A failure in words, as a sentence. */
export function sentence(text: string): string {
  const said = text.trim();
  if (said === "") return "";
  // A name that begins it stays as it is.
  const first = /^[a-z]+(?=[\s,])/.test(said) ? said.charAt(0).toUpperCase() + said.slice(1) : said;
  return /[.!?:\]]$/.test(first) || first.includes("\n") ? first : `${first}.`;
}
