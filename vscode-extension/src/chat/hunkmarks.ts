/** Where the hunks of a changed file are in the text of an editor. Uses no editor. */
import { diffArrays } from "diff";
import type { ChangedHunk } from "../acp/changes";

/** Changed lines of a hunk: `count` new lines from `line` (from 0) in place of `removed`. */
export interface Run {
  readonly line: number;
  readonly count: number;
  readonly removed: readonly string[];
}

export interface HunkMark {
  readonly number: number;
  readonly runs: readonly Run[];
}

/** An edit of a text: the lines from `first` to `last` (from 0) become `count` lines. `atStart`: it only inserts before the first line. */
export interface LineEdit {
  readonly first: number;
  readonly last: number;
  readonly count: number;
  readonly atStart: boolean;
}

/** The changed lines of each hunk. */
export function marksOf(hunks: readonly ChangedHunk[]): HunkMark[] {
  return hunks.map((hunk) => {
    const runs: Run[] = [];
    let line = Math.max(0, hunk.newStart - 1);
    for (let at = 0; at < hunk.lines.length; ) {
      if (hunk.lines[at]?.startsWith(" ")) {
        line += 1;
        at += 1;
        continue;
      }
      const removed: string[] = [];
      const start = line;
      for (; at < hunk.lines.length && !hunk.lines[at]?.startsWith(" "); at += 1) {
        const text = hunk.lines[at] ?? "";
        if (text.startsWith("+")) line += 1;
        else removed.push(text.slice(1));
      }
      runs.push({ line: start, count: line - start, removed });
    }
    return { number: hunk.number, runs };
  });
}

/** The marks after an edit of the text. An edit inside of a run changes its size; one beside it only its place. */
export function moved(marks: readonly HunkMark[], edit: LineEdit): HunkMark[] {
  const by = edit.count - (edit.last - edit.first + 1);
  if (by === 0) return [...marks];
  return marks.map((mark) => ({
    ...mark,
    runs: mark.runs.map((run) => {
      if (edit.last < run.line || (edit.atStart && edit.first <= run.line)) return { ...run, line: run.line + by };
      if (edit.first >= run.line + run.count) return run;
      const line = Math.min(run.line, edit.first);
      return { ...run, line, count: Math.max(0, run.count + (run.line - line) + by) };
    }),
  }));
}

/** The marks of one text in another one, for a text that was changed and not saved. */
export function mapped(marks: readonly HunkMark[], from: readonly string[], to: readonly string[]): HunkMark[] {
  const parts = diffArrays([...from], [...to], { timeout: 500 });
  if (parts === undefined) return [...marks];
  const places: number[] = [];
  let at = 0;
  for (const part of parts) {
    if (part.added) at += part.count;
    else for (let each = 0; each < part.count; each += 1) places.push(part.removed ? at : at++);
  }
  places.push(at);
  const place = (line: number): number => places[Math.min(line, places.length - 1)] ?? at;
  return marks.map((mark) => ({ ...mark, runs: mark.runs.map((run) => ({ ...run, line: place(run.line), count: run.count === 0 ? 0 : Math.max(0, place(run.line + run.count - 1) + 1 - place(run.line)) })) }));
}

/** The place after (or before) a line among places in order, or undefined if there is none in this direction. */
export function beyond(lines: readonly number[], line: number, forward: boolean): number | undefined {
  return forward ? lines.find((each) => each > line) : lines.findLast((each) => each < line);
}
