import { structuredPatch } from "diff";
import type { DiffPart, Hunk } from "./items";

/** The maximum number of lines of a change in the conversation: more than a person reads before a decision. */
const MOST_LINES = 3000;
const MOST_IN_LINE = 20_000;
const TOO_LARGE = 2_000_000;

/** The hunks of a file change for the conversation. Lines that are left out are counted. */
export function diffHunks(path: string, shown: string, before: string | null, after: string): DiffPart {
  const base = { type: "diff", path, shown, isNew: before === null } as const;
  if ((before?.length ?? 0) + after.length > TOO_LARGE) return { ...base, added: 0, removed: 0, hunks: [], left: after.split("\n").length };
  const patch = structuredPatch("a", "b", before ?? "", after, "", "", { context: 3, timeout: 1000 });
  let added = 0;
  let removed = 0;
  let shownLines = 0;
  let left = 0;
  let cut = 0;
  const hunks: Hunk[] = [];
  for (const hunk of patch?.hunks ?? []) {
    const lines = hunk.lines.filter((line) => !line.startsWith("\\"));
    for (const line of lines) {
      if (line.startsWith("+")) added += 1;
      else if (line.startsWith("-")) removed += 1;
    }
    const room = Math.max(0, MOST_LINES - shownLines);
    left += Math.max(0, lines.length - room);
    const fitting = lines.slice(0, room);
    for (const line of fitting) cut += Math.max(0, line.length - MOST_IN_LINE);
    if (room > 0) hunks.push({ oldStart: hunk.oldStart, newStart: hunk.newStart, lines: fitting.map((line) => line.slice(0, MOST_IN_LINE)) });
    shownLines += fitting.length;
  }
  // For a change that takes too long to compare, only the size is shown.
  if (patch === undefined) left = after.split("\n").length;
  return { ...base, added, removed, hunks, left, ...(cut > 0 ? { cut } : {}) };
}
