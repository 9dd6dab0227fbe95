import assert from "node:assert/strict";
import { test } from "node:test";
import { FORMATS, preselected, recipeChoices, rewardOf, rewardProblem } from "../src/loom/choices";
import type { CastData, ForkData, TurnData } from "../src/loom/data";
import * as words from "../src/loom/labels";

const cast: CastData = {
  id: "c_1", line: 3, intent: "Say hello.", told: "", state: "terminated", reason: "done", turns: 2,
  tokens: { prompt: 900, completion: 100 }, cost: 0.0031, model: "m", started: "", forkedFrom: null, leaf: "t_2",
};
const turn: TurnData = {
  id: "t_2", line: 5, sequence: 2, role: "crystal", kind: "calls", text: "notes.txt", said: "", gates: ["read_file"],
  tokens: { prompt: 12_000, completion: 40 }, cost: null, ms: 1234, timestamp: "2026-01-01T00:00:00Z", model: null,
  reward: null, failed: false, state: null, reason: null, children: 0, forks: 0,
};

test("casts in a few words", () => {
  assert.equal(words.castLabel(cast), "Say hello.");
  assert.equal(words.castDescription(cast), "done · 2 turns · 1000 tokens · $0.0031");
  const active: CastData = { ...cast, state: "active", reason: null, turns: 1, tokens: { prompt: 0, completion: 0 }, cost: null, forkedFrom: "t_1" };
  assert.equal(words.castDescription(active), "fork · active · 1 turn");
  assert.equal(words.castLabel({ ...cast, intent: "" }), "run c_1");
  const unknown: CastData = { ...cast, tokens: { prompt: null, completion: null }, cost: null };
  assert.equal(words.castDescription(unknown), "done · 2 turns · tokens unknown");
  assert.equal(words.tokens({ prompt: 900, completion: null }), "900 tokens");
});

test("turns in a few words", () => {
  assert.equal(words.turnLabel(turn), "2  read_file: notes.txt");
  assert.equal(words.turnLabel({ ...turn, gates: [], text: "", said: "Well." }), "2  Well.");
  assert.equal(words.turnLabel({ ...turn, gates: [], text: "" }), "2  (said nothing)");
  assert.equal(words.turnLabel({ ...turn, role: "call" }), "call");
  assert.equal(words.turnLabel({ ...turn, role: "fold", gates: [], text: "what was" }), "fold  what was");
  assert.equal(words.turnDescription({ ...turn, reward: 0.5, failed: true, children: 2, forks: 1 }), "reward 0.5 · failed · 2 children · 1 fork · 1.2 s");
  assert.equal(words.turnDescription({ ...turn, children: 1 }), "1 child · 1.2 s");
  assert.equal(words.turnFacts(turn), "2026-01-01T00:00:00Z · 1.2 s · 12k tokens");
});

test("times and amounts", () => {
  const now = 1_000_000_000;
  assert.equal(words.ago(now - 3_000, now), "now");
  assert.equal(words.ago(now - 120_000, now), "2 min ago");
  assert.equal(words.ago(now - 7_200_000, now), "2 h ago");
  assert.equal(words.ago(now - 200_000_000, now), "2 d ago");
  assert.equal(words.ago(now + 60_000, now), "now");
  assert.equal(words.duration(12), "12 ms");
  assert.equal(words.duration(125_000), "2 min 5 s");
  assert.equal(words.money(12.345), "$12.35");
  assert.equal(words.money(null), "");
});

test("recipes to choose among, the workspace's first", () => {
  const found = recipeChoices([["sub/b.cantrip.yaml", "/w/sub/b.cantrip.yaml"], [".cantrip/a.cantrip.yaml", "/w/.cantrip/a.cantrip.yaml"]]);
  assert.deepEqual(found.slice(0, 3).map((each) => each.label), ["a", "b", "familiar"]);
  assert.equal(found[0]?.recipe, "/w/.cantrip/a.cantrip.yaml");
  // What a loom was made with comes first, so that Enter takes it.
  assert.equal(preselected(found, "familiar")[0]?.label, "familiar");
  assert.equal(preselected(found, "/w/sub/b.cantrip.yaml")[0]?.recipe, "/w/sub/b.cantrip.yaml");
  assert.deepEqual(preselected(found, "/gone"), found);
});

test("a reward is a number", () => {
  for (const good of ["1", " 0.5 ", "-1", "1e-3", "1,5", "-,5"]) assert.equal(rewardProblem(good), undefined);
  for (const bad of ["", " ", "good", "1,5,2", "NaN", "Infinity"]) assert.notEqual(rewardProblem(bad), undefined);
});

test("a reward has decimals, by a point or a comma", () => {
  assert.deepEqual(["0.5", "0,25", "-1", " .5 "].map(rewardOf), [0.5, 0.25, -1, 0.5]);
});

test("formats are named once", () => {
  assert.equal(new Set(FORMATS.map(([name]) => name)).size, FORMATS.length);
});

test("a fork to compare with is its first message that differs", () => {
  const fork: ForkData = { uri: "file:///b", name: "b", title: "Begin.", size: 1, modified: 0, message: "Stop.", sent: "1970-01-01T01:00:00Z", instead: "Go on." };
  const hours = 3_600_000;
  assert.deepEqual(words.forkChoice(fork, 3 * hours), { label: "Stop.", description: "2 h ago", detail: "In place of: Go on.", uri: "file:///b" });
  assert.equal(words.forkChoice({ ...fork, instead: null }, hours).detail, "No message is in its place here.");
  const shorter = words.forkChoice({ ...fork, message: null, sent: null }, 5 * hours);
  assert.deepEqual([shorter.label, shorter.description, shorter.detail], ["Nothing else", "5 h ago", "It ends before: Go on."]);
  assert.equal(words.forkChoice({ ...fork, message: null, sent: null, instead: null }, 0).detail, "It has the same messages.");
});

test("the title of a comparison is short", () => {
  assert.equal(words.comparisonTitle("Make greet return its text, please.", "Stop."), "Make greet return its t… ↔ Stop.");
  assert.equal(words.comparisonTitle("", "Stop."), "Compare: Stop.");
});
