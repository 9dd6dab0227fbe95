import assert from "node:assert/strict";
import { describe, it } from "node:test";
import type { Item, ToolItem } from "../../src/chat/items";
import { runsOf, runWords, timeOf } from "../../src/chat/runs";

const tool = (id: string, more: Partial<ToolItem> = {}): ToolItem => ({ type: "tool", id, callId: id, title: id, kind: "read", status: "completed", parts: [], locations: [], ...more });
const places = (items: readonly Item[]): (readonly [number, number])[] => runsOf(items).map(({ from, to }) => [from, to] as const);

describe("a run of calls", () => {
  it("has three calls at least, and ends at words, changes, failures, questions and what still runs", () => {
    const three = [tool("a"), tool("b"), tool("c")];
    assert.deepEqual(places([tool("a"), tool("b")]), []);
    assert.deepEqual(places(three), [[0, 2]]);
    const words: Item = { type: "agent", id: "w", text: "So." };
    const breaks: Item[] = [
      words,
      tool("x", { status: "failed" }),
      tool("x", { status: "in_progress" }),
      tool("x", { exit: { code: 1, signal: null } }),
      tool("x", { answer: "reject_once", status: "failed" }),
      tool("x", { question: { id: "q", options: [] } }),
      tool("x", { parts: [{ type: "diff", path: "/a", shown: "a", isNew: false, added: 1, removed: 0, hunks: [], left: 0 }] }),
      tool("x", { name: "call_agent" }),
      tool("x", { tests: { ok: true, summary: "", note: "", failures: [], output: "" } }),
    ];
    for (const each of breaks) assert.deepEqual(places([...three, each, ...three, each]), [[0, 2], [4, 6]], JSON.stringify(each));
  });

  it("goes on over thoughts and calls that are shown elsewhere, and does not end with them", () => {
    const thought: Item = { type: "thought", id: "t", text: "Hm." };
    assert.deepEqual(places([thought, tool("a"), thought, tool("b"), tool("p", { name: "plan" }), tool("c"), thought]), [[1, 5]]);
  });

  it("says what it did, in the order in which it began", () => {
    const calls = [tool("a", { started: 1000 }), tool("b", { kind: "execute" }), tool("c"), tool("d", { kind: "search" }), tool("e", { kind: "think", ended: 76_400 })];
    assert.equal(runWords(calls), "Read 2 files, ran 1 command, searched once, used 1 tool · 1 min 15 s");
    assert.equal(runWords([tool("a"), tool("b"), tool("c")]), "Read 3 files");
    assert.equal(timeOf(0, 999), "");
  });
});
