import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { atEnd, withActions } from "../../src/chat/children";

const action = (child: string, kind: string, text: string, number = ""): unknown => ({ child, kind, text, number });

describe("the children of a call", () => {
  it("have their task, what they do now, their steps and their time", () => {
    let all = withActions([], [action("a", "intent", "Read it", "1"), action("b", "intent", "Write it", "2")], 1_000);
    all = withActions(all, [action("a", "action", "Read x.py", "1"), action("a", "text", "First line.\nLast line.", "1")], 2_000);
    all = withActions(all, [action("b", "stopped", "stopped: max_turns", "2")], 3_000);
    assert.deepEqual(
      all.map(({ number, task, state, now, started, ended }) => [number, task, state, now, started, ended]),
      [["1", "Read it", "running", "Last line.", 1_000, undefined], ["2", "Write it", "stopped", "stopped: max_turns", 1_000, 3_000]],
    );
    assert.deepEqual(all[0]?.steps.map((step) => step.text), ["Read x.py", "First line.\nLast line."]);
  });

  it("have no time in a replay, and do not run on when their call has ended", () => {
    const all = withActions([], [action("a", "intent", "Read it")], undefined);
    assert.deepEqual(atEnd(all, undefined).map(({ state, started, ended }) => [state, started, ended]), [["stopped", undefined, undefined]]);
  });

  it("keep a bounded number of steps and of children, and those that run longest", () => {
    const steps = Array.from({ length: 70 }, (_, at) => action("a", "action", `step ${at}`));
    const [one] = withActions([], [action("a", "intent", "Work"), ...steps], 1);
    assert.deepEqual([one?.steps.length, one?.earlier, one?.steps[0]?.text], [60, 10, "step 10"]);
    const many = Array.from({ length: 150 }, (_, at) => [action(`c${at}`, "intent", "Work"), ...(at > 0 ? [action(`c${at}`, "done", "done")] : [])]).flat();
    const kept = withActions([], many, 1);
    assert.deepEqual([kept.length, kept[0]?.id, kept.at(-1)?.id], [100, "c0", "c149"]);
  });

  it("are known from agents that name no child", () => {
    const all = withActions([], [{ number: "1", kind: "intent", text: "A" }, { number: "2", kind: "intent", text: "B" }, { number: "1", kind: "done", text: "done" }, null, { kind: 1 }], 1);
    assert.deepEqual(all.map(({ task, state }) => [task, state]), [["A", "done"], ["B", "running"]]);
  });
});
