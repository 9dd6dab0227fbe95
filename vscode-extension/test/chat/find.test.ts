import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { findWords } from "../../src/chat/find";
import type { Item } from "../../src/chat/items";

const items: Item[] = [
  { type: "user", id: "1", text: "Find the Needle", attachments: [{ kind: "file", name: "needle.py" }], after: 0 },
  { type: "agent", id: "2", text: "Nothing here." },
  { type: "tool", id: "3", callId: "c", title: "Run", kind: "execute", status: "completed", locations: [], output: "a needle\na needle", parts: [{ type: "diff", path: "/a", shown: "a", isNew: false, added: 1, removed: 0, left: 0, hunks: [{ oldStart: 1, newStart: 1, lines: ["+needle"] }] }] },
];

describe("words in a conversation", () => {
  it("are found in all items, whatever their case", () => {
    assert.deepEqual(findWords(items, "NEEDLE"), [{ index: 0, id: "1", count: 2 }, { index: 2, id: "3", count: 3 }]);
    assert.deepEqual(findWords(items, "elsewhere"), []);
    assert.deepEqual(findWords(items, ""), []);
  });
});
