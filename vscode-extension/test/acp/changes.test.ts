import assert from "node:assert/strict";
import { it } from "node:test";
import { changedFiles, conflictWords, doneWords, joined, plannedWords, restoreResult } from "../../src/acp/changes";

const file = (lines: readonly string[], more: object = {}): object => ({ path: "a.py", uri: "file:///p/a.py", status: "modified", added: 1, removed: 1, version: "v1", hunks: [{ number: 1, header: "@@ -10,3 +12,3 @@", lines }], ...more });

it("reads changed files with the lines at which their hunks begin", () => {
  const [read] = changedFiles({ files: [file([" a", "-b", "+c"])] });
  assert.deepEqual(read, { path: "a.py", uri: "file:///p/a.py", status: "modified", added: 1, removed: 1, version: "v1", hunks: [{ number: 1, oldStart: 10, newStart: 12, lines: [" a", "-b", "+c"] }], left: 0, perhapsYours: false });
});

it("leaves out hunks that are too long to be read, and counts their lines", () => {
  const long = Array.from({ length: 3000 }, () => "+x");
  const [first, second] = changedFiles({ files: [file(["+a"]), file(long)] });
  assert.deepEqual([first?.hunks.length, first?.left, second?.hunks.length], [1, 0, 0]);
  assert.equal(second?.left, 1001);
});

for (const odd of [null, undefined, 1, {}, { files: "x" }, { files: [null, 3] }]) {
  it(`reads no file from ${JSON.stringify(odd)}`, () => { assert.deepEqual(changedFiles(odd), []); });
}

it("says what a restore would do, what stays, and that it can be taken back", () => {
  const plan = restoreResult({ restored: [{ path: "a.py", action: "merged" }, { path: "b.py", action: "deleted" }], conflicts: [{ path: "c.py", reason: "you changed it" }], left: [{ path: "d.bin", reason: "too large" }] });
  const words = plannedWords(plan);
  for (const part of ["2 files will be restored:", "a.py (merged with your changes)", "b.py (deleted)", "c.py: you changed it", "d.bin: too large", "Redo brings them back"]) assert.ok(words.includes(part), part);
  assert.deepEqual(doneWords(plan)[0], "2 files restored");
  assert.equal(doneWords(joined([]))[0], "The files are already like that");
  assert.equal(plannedWords(joined([])), "");
});

it("asks about the files that the user changed too, by name, and says what each answer does", () => {
  const conflict = (path: string): object => ({ path, reason: "you changed it after the entity did (the same lines)" });
  const [title, words] = conflictWords(restoreResult({ restored: [{ path: "a.py", action: "written" }], conflicts: [conflict("src/c.py")] }));
  assert.equal(title, "Overwrite what you changed in src/c.py?");
  for (const part of ["src/c.py: you changed it after the entity did", "Redo brings it back", "Keep Mine", "1 other file is restored either way, except if you cancel."]) assert.ok(words.includes(part), part);
  const [many, more] = conflictWords(restoreResult({ conflicts: [conflict("c.py"), conflict("d.py")] }));
  assert.equal(many, "Overwrite what you changed in 2 files?");
  assert.ok(more.includes("d.py") && !more.includes("either way"));
});

it("names no more files than fit in a dialog", () => {
  const plan = restoreResult({ restored: Array.from({ length: 40 }, (_, at) => ({ path: `f${at}`, action: "written" })) });
  const words = plannedWords(plan);
  assert.ok(words.includes("40 files will be restored:") && words.includes("… and 28 more") && !words.includes("f20"));
});
