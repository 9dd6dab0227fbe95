import assert from "node:assert/strict";
import { test } from "node:test";
import { chunkDescription, queryDescription, readsDescription, rowDescription, tokensLabel } from "../src/knowledge/data";

const chunk = { id: "a", name: "A", source: "user", tokens: 1234, uri: null };

test("a chunk says its size, and what is wrong with it", () => {
  assert.equal(chunkDescription(chunk), "1,234 tokens");
  assert.equal(chunkDescription({ ...chunk, cut: true, pinned: true, count: 2 }), "1,234 tokens · cut · pinned · 2 inside");
  assert.equal(chunkDescription({ ...chunk, tokens: 0, leftOut: true }), "left out: no room");
  assert.equal(chunkDescription({ ...chunk, tokens: 0, count: 0 }), "");
});

test("a query says its size, its window and its price where all of it is known", () => {
  const rows = [{ what: "prompts", tokens: 10, cost: 0.5 }, { what: "turns", tokens: 5, cost: 0.75 }];
  assert.equal(queryDescription({ rows, tokens: 15, window: 200_000 }), "15 of 200,000 tokens · $1.25");
  assert.equal(queryDescription({ rows: [...rows, { what: "tools", tokens: 1 }], tokens: 16 }), "16 tokens");
  assert.equal(queryDescription({ rows: [], tokens: 0 }), "0 tokens");
  assert.equal(rowDescription({ what: "knowledge: A", tokens: 1, source: "user", cost: 0.00012 }), "1 token · $0.0001 · user");
});

test("what sessions read is measured against its limit", () => {
  assert.equal(readsDescription({ tokens: 812, maxTokens: 16_000, reads: [], finds: [] }), "812 of 16,000 tokens");
  assert.equal(tokensLabel(1), "1 token");
});
