import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { changedFiles } from "../../src/acp/changes";
import { beyond, mapped, marksOf, moved } from "../../src/chat/hunkmarks";

const [file] = changedFiles({
  files: [{ path: "a.py", uri: "file:///a.py", status: "modified", version: "v", hunks: [
    { number: 1, header: "@@ -1,5 +1,6 @@", lines: [" a", "-b", "+B", "+C", " d", "-e", " f"] },
    { number: 2, header: "@@ -20,2 +20,3 @@", lines: [" x", "+y", " z"] },
  ] }],
});
const marks = marksOf(file?.hunks ?? []);
const places = (found: typeof marks): number[][] => found.flatMap(({ runs }) => runs.map((run) => [run.line, run.count]));

describe("the marks of changed lines", () => {
  it("are where the hunks say, with the removed lines", () => {
    assert.deepEqual(places(marks), [[1, 2], [4, 0], [20, 1]]);
    assert.deepEqual(marks[0]?.runs.map((run) => run.removed), [["b"], ["e"]]);
    assert.deepEqual(marks.map(({ number }) => number), [1, 2]);
  });

  it("follow lines that are typed above, inside and below", () => {
    const typed = (first: number, last: number, count: number, atStart = false): number[][] => places(moved(marks, { first, last, count, atStart }));
    assert.deepEqual(typed(0, 0, 3), [[3, 2], [6, 0], [22, 1]]);
    assert.deepEqual(typed(1, 1, 2), [[1, 3], [5, 0], [21, 1]]);
    // A line that is put before a run is not of it.
    assert.deepEqual(typed(1, 1, 2, true), [[2, 2], [5, 0], [21, 1]]);
    assert.deepEqual(typed(21, 21, 9), [[1, 2], [4, 0], [20, 1]]);
    assert.deepEqual(typed(5, 8, 1), [[1, 2], [4, 0], [17, 1]]);
    // The user deletes the lines of a run, and some before it.
    assert.deepEqual(typed(0, 3, 1)[0], [0, 0]);
    assert.deepEqual(typed(10, 10, 1), places(marks));
  });

  it("are found again in a text that is not saved", () => {
    const from = Array.from({ length: 24 }, (_, n) => `line ${n}`);
    assert.deepEqual(places(mapped(marks, from, ["new", ...from.slice(0, 10), ...from.slice(12)])), [[2, 2], [5, 0], [19, 1]]);
    assert.deepEqual(places(mapped(marks, from, from)), places(marks));
  });

  it("are gone through in order", () => {
    assert.equal(beyond([1, 4, 20], 1, true), 4);
    assert.equal(beyond([1, 4, 20], 4, false), 1);
    assert.equal(beyond([1, 4, 20], 20, true), undefined);
  });
});
