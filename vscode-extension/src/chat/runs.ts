/** Runs of calls that are shown as one line: "Read 6 files, ran 4 commands · 12 s". */
import type { Item, ToolItem } from "./items";

/** A run is folded if it has at least this many calls. */
const LEAST = 3;

export interface Run {
  /** The places of its first and its last call. */
  readonly from: number;
  readonly to: number;
  readonly calls: readonly ToolItem[];
}

/** The runs among items that follow each other. */
export function runsOf(items: readonly Item[]): Run[] {
  const runs: Run[] = [];
  let calls: { at: number; item: ToolItem }[] = [];
  const close = (): void => {
    const first = calls[0];
    const last = calls.at(-1);
    if (first !== undefined && last !== undefined && calls.length >= LEAST) runs.push({ from: first.at, to: last.at, calls: calls.map((each) => each.item) });
    calls = [];
  };
  for (const [at, item] of items.entries()) {
    if (item.type === "tool" && folds(item)) calls.push({ at, item });
    else if (!isQuiet(item)) close();
  }
  close();
  return runs;
}

/** Whether a call is only what the agent did on its way: it succeeded, changed no file, and nobody was asked about it. */
function folds(item: ToolItem): boolean {
  const { status, exit, question, answer, stopped, parts, tests, name, kind, output } = item;
  if (status !== "completed" || question !== undefined || answer !== undefined || stopped === true || tests !== undefined) return false;
  if (exit !== undefined && (exit.code !== 0 || exit.signal !== null)) return false;
  if (kind === "switch_mode" || isHidden(item) || name?.startsWith("call_agent") === true || name === "ask_user") return false;
  return !parts.some((part) => part.type === "diff" || part.type === "image") && (output === undefined || output.length <= 200_000);
}

/** Calls whose result is shown elsewhere. */
export function isHidden({ name, status, question, asked }: ToolItem): boolean {
  if (asked === true || (name === "ask_user" && (status === "pending" || status === "in_progress"))) return true;
  return (name === "done" || name === "plan") && status !== "failed" && question === undefined;
}

/** Whether an item may be between the calls of a run. */
function isQuiet(item: Item): boolean {
  return item.type === "thought" || (item.type === "agent" && item.text.trim() === "") || (item.type === "tool" && isHidden(item));
}

const WORDS: Readonly<Record<string, readonly [string, string, string]>> = {
  read: ["read", "file", "files"],
  search: ["searched", "time", "times"],
  execute: ["ran", "command", "commands"],
  fetch: ["fetched", "page", "pages"],
  other: ["used", "tool", "tools"],
};

/** What the calls of a run did, with their number, and how long they took if that is known. */
export function runWords(calls: readonly ToolItem[]): string {
  const counts = new Map<string, number>();
  for (const { kind } of calls) {
    const known = kind in WORDS ? kind : "other";
    counts.set(known, (counts.get(known) ?? 0) + 1);
  }
  const words = [...counts].map(([kind, count]) => {
    const [verb, one, many] = WORDS[kind] ?? ["used", "tool", "tools"];
    return kind === "search" && count === 1 ? "searched once" : `${verb} ${count} ${count === 1 ? one : many}`;
  });
  const said = words.join(", ");
  const took = timeOf(calls[0]?.started, calls.at(-1)?.ended);
  return `${said.charAt(0).toUpperCase()}${said.slice(1)}${took === "" ? "" : ` · ${took}`}`;
}

/** A time between two points in ms as people write it; empty if it is unknown or short. */
export function timeOf(from: number | undefined, to: number | undefined): string {
  if (from === undefined || to === undefined) return "";
  const seconds = Math.floor((to - from) / 1000);
  if (seconds < 1) return "";
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}
