import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { contextAttached, contextOf, limited, MOST_CONTEXT, MOST_PROBLEMS, type Problem, problemsCount, problemsText, terminalText } from "../../src/chat/editorcontext";

const problem = (path: string, line: number, severity: Problem["severity"], message = "wrong", source = "tsc 1"): Problem => ({ path, line, column: 2, severity, message, source });

describe("the address of what the editor has", () => {
  for (const [kind, file] of [["problems", undefined], ["problems", "src/a (1)/[id]#?.ts"], ["terminal", undefined], ["changes", undefined]] as const) {
    it(`leads back to ${kind} ${file ?? ""}`, () => {
      const { uri = "" } = contextAttached(kind, file);
      assert.doesNotMatch(uri, /[()\s]/);
      const found = contextOf(uri);
      assert.deepEqual([found?.context, found?.file], [kind, file]);
    });
  }

  for (const other of ["file:///a", "cantrip-editor:/secrets", "cantrip-editor:/problems?file=%zz", "x cantrip-editor:/problems", ""]) {
    it(`is not ${JSON.stringify(other)}`, () => { assert.equal(contextOf(other), undefined); });
  }
});

describe("problems as text", () => {
  it("are one a line, errors first, then by place", () => {
    const text = problemsText([problem("b.ts", 3, "warning"), problem("b.ts", 9, "error", "two\n  lines", ""), problem("a.ts", 1, "error")]);
    assert.deepEqual(text.split("\n").slice(1), ["a.ts:1:2: error: wrong [tsc 1]", "b.ts:9:2: error: two lines", "b.ts:3:2: warning: wrong [tsc 1]"]);
    assert.equal(problemsCount([problem("a", 1, "error"), problem("a", 1, "error"), problem("a", 1, "info")]), "2 errors, 1 info");
    assert.equal(problemsText([], "a.ts"), "The editor shows no problems in a.ts.");
    assert.equal(problemsCount([]), "none");
  });

  it("say how many are left out", () => {
    const text = problemsText(Array.from({ length: MOST_PROBLEMS + 7 }, (_, at) => problem("a.ts", at, "error")));
    assert.match(text, /\(7 more\)$/);
    const long = problemsText([problem("a.ts", 1, "error", "x".repeat(MOST_CONTEXT))]);
    assert.match(long, /\(\d+ more characters are left out\)$/);
  });
});

it("keeps the start or the end of a long text, and says so", () => {
  assert.equal(limited("short", "end"), "short");
  const long = `A${"x".repeat(MOST_CONTEXT)}Z`;
  assert.match(limited(long, "start"), /^Ax+\n\(2 more characters are left out\)$/);
  assert.match(limited(long, "end"), /^\(2 characters before this are left out\)\nx+Z$/);
});

it("reads what a terminal printed as a person does", () => {
  const printed = "\u001b]633;C\u0007\u001b[31mred\u001b[0m text\r\n10 %\r 50 %\r100 %\r\n\u001b]0;title\u001b\\last\u0007 \r\n\u001b(B";
  assert.equal(terminalText(printed), "red text\n100 %\nlast");
});
