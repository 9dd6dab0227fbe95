import type * as acp from "@agentclientprotocol/sdk/unstable";
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, describe, it } from "node:test";
import type { Item, Op, ToolItem } from "../../src/chat/items";
import { Transcript } from "../../src/chat/transcript";
import { DONE, real, type Real } from "../acp/realagent";

/** What a reader that follows the changes has: as the panel does it. */
function reader(transcript: Transcript): Item[] {
  const items: Item[] = [];
  transcript.ops.on((op: Op) => {
    if (op.op === "add") items.push(structuredClone(op.item));
    const id = op.op === "add" || op.op === "set" ? op.item.id : op.id;
    const at = items.findIndex((item) => item.id === id);
    const item = items[at];
    if (op.op === "set") items[at] = structuredClone(op.item);
    else if (op.op === "text" && item && "text" in item) (item as { text: string }).text += op.text;
    else if (op.op === "output" && item?.type === "tool") item.output = (item.output ?? "") + op.text;
  });
  return items;
}

const chunk = (kind: "agent_message_chunk" | "agent_thought_chunk" | "user_message_chunk", text: string, messageId?: string): acp.SessionUpdate => ({
  sessionUpdate: kind,
  content: { type: "text", text },
  messageId,
});

describe("a transcript", () => {
  it("joins what belongs to one message, also around something else, and nothing else", () => {
    const transcript = new Transcript("/p");
    const seen = reader(transcript);
    for (const [text, id] of [["a", "m1"], ["b", "m1"], ["c", "m2"]] as const) transcript.applyUpdate(chunk("agent_message_chunk", text, id));
    transcript.applyUpdate(chunk("agent_thought_chunk", "d", "m2"));
    transcript.applyUpdate(chunk("agent_message_chunk", "e", "m2"));
    assert.deepEqual(transcript.items.map((item) => "text" in item && item.text), ["ab", "ce", "d"]);
    assert.deepEqual(seen, transcript.items);
  });

  it("takes away what an attempt said that broke off, and says why", () => {
    const transcript = new Transcript("/p");
    const seen = reader(transcript);
    transcript.applyUpdate(chunk("agent_thought_chunk", "Let me", "m1:thought"));
    transcript.applyUpdate(chunk("agent_message_chunk", "Half", "m1"));
    const notice = { sessionUpdate: "notice", severity: "warning", title: "This answer broke off", _meta: { cantrip: { void: "m1" } } };
    transcript.applyUpdate(notice as unknown as acp.SessionUpdate);
    transcript.applyUpdate(chunk("agent_message_chunk", "Fine.", "m2"));
    assert.deepEqual(transcript.items.map((item) => [item.type, "text" in item && item.text]), [["thought", ""], ["agent", ""], ["notice", ""], ["agent", "Fine."]]);
    assert.deepEqual(seen, transcript.items);
  });

  it("knows the turn before each message, also after an answer that failed, and in a replay", () => {
    const transcript = new Transcript("/p");
    const after = (): unknown[] => transcript.items.flatMap((item) => (item.type === "user" ? [item.after] : []));
    transcript.addUserMessage("one", []);
    transcript.ended({ stopReason: "end_turn", _meta: { cantrip: { turn: "t1" } } });
    transcript.addUserMessage("two", []);
    transcript.addError({ title: "No", detail: "", action: "none" }, "t2");
    transcript.addUserMessage("/cost", []);
    transcript.ended({ stopReason: "end_turn", _meta: { cantrip: { command: "cost" } } });
    transcript.addUserMessage("three", []);
    assert.deepEqual(after(), [0, "t1", "t2", "t2"]);
    transcript.clear();
    transcript.replaying = true;
    for (const [id, turn] of [["c1", 0], ["c2", "t1"]] as const) {
      transcript.applyUpdate({ ...chunk("user_message_chunk", id, `${id}:intent`), _meta: { cantrip: { after: turn } } });
      transcript.applyUpdate(chunk("agent_message_chunk", "Fine.", `${id}-t:0`));
    }
    transcript.endReplay();
    transcript.addUserMessage("three", []);
    assert.deepEqual(after(), [0, "t1", "c2-t"]);
  });

  it("copies what was said after the last call, and finds the message of an answer", () => {
    const transcript = new Transcript("/p");
    transcript.addUserMessage("one", []);
    transcript.applyUpdate(chunk("agent_message_chunk", "I look.", "m1"));
    transcript.applyUpdate({ sessionUpdate: "tool_call", toolCallId: "t", title: "x", status: "completed" });
    transcript.applyUpdate(chunk("agent_message_chunk", "## It is *so*", "m2"));
    transcript.applyUpdate(chunk("agent_message_chunk", "\n\nAnd so.", "m3"));
    transcript.ended({ stopReason: "end_turn" });
    transcript.addUserMessage("two", []);
    transcript.applyUpdate(chunk("agent_message_chunk", "Only this.", "m4"));
    transcript.applyUpdate({ sessionUpdate: "tool_call", toolCallId: "u", title: "x", status: "completed" });
    transcript.ended({ stopReason: "cancelled" });
    transcript.addUserMessage("three", []);
    transcript.ended({ stopReason: "cancelled" });
    const ends = transcript.items.filter((item) => item.type === "end");
    assert.deepEqual(ends.map((end) => [transcript.message(end.id)?.text, transcript.answer(end.id), end.said]), [
      ["one", "## It is *so*\n\nAnd so.", true],
      ["two", "Only this.", true],
      ["three", "", false],
    ]);
    const [first] = transcript.items;
    assert.equal(first && transcript.message(first.id)?.text, "one");
    assert.equal(transcript.message("none"), undefined);
  });

  it("shows what was attached to a message of a loaded session as attachments", () => {
    const transcript = new Transcript("/p");
    const text = "What of [@this] and x[1](y)?\nIn two lines.[@[id].ts](file:///p/%5Bid%5D.ts)[@a.ts:1-2](file:///p/a.ts#L1-2)[@run](file:///p/a.ts?symbol=run#L3)[@problems](cantrip-editor:/problems?file=a.ts)[@web](https://x.y/z)";
    transcript.applyUpdate(chunk("user_message_chunk", text, "c1:intent"));
    const [item] = transcript.items;
    assert.ok(item?.type === "user");
    assert.equal(item.text, "What of [@this] and x[1](y)?\nIn two lines.");
    assert.deepEqual(item.attachments.map((each) => [each.kind, each.name]), [["file", "[id].ts"], ["selection", "a.ts:1-2"], ["symbol", "run"], ["problems", "problems in a.ts"], ["link", "web"]]);
  });

  it("keeps a call's output, its end and its changes", () => {
    const transcript = new Transcript("/p");
    const seen = reader(transcript);
    transcript.applyUpdate({ sessionUpdate: "tool_call", toolCallId: "t", title: "ls", kind: "execute", status: "pending", rawInput: { command: "ls" }, content: [{ type: "terminal", terminalId: "t" }], _meta: { terminal_info: { terminal_id: "t" } } });
    for (const data of ["one\n", "two\n"]) transcript.applyUpdate({ sessionUpdate: "tool_call_update", toolCallId: "t", _meta: { terminal_output: { terminal_id: "t", data } } });
    transcript.applyUpdate({ sessionUpdate: "tool_call_update", toolCallId: "t", status: "failed", _meta: { terminal_exit: { exit_code: 2, signal: null } }, content: [{ type: "diff", path: "/p/x/a.py", oldText: "a\nb\n", newText: "a\nc\n" }] });
    const [item] = transcript.items as [ToolItem];
    assert.equal(item.output, "one\ntwo\n");
    assert.deepEqual(item.exit, { code: 2, signal: null });
    const [part] = item.parts;
    assert.deepEqual(part?.type === "diff" && [part.shown, part.added, part.removed, part.hunks[0]?.lines], ["x/a.py", 1, 1, [" a", "-b", "+c"]]);
    assert.equal(transcript.diff(item.id, "/p/x/a.py")?.newText, "a\nc\n");
    assert.deepEqual(seen, transcript.items);
  });

  it("settles what was open when the answer ends", () => {
    const transcript = new Transcript("/p");
    transcript.applyUpdate({ sessionUpdate: "tool_call", toolCallId: "t", title: "x", status: "in_progress" });
    transcript.question({ id: "q", options: [] }, { toolCallId: "t" });
    transcript.ended({ stopReason: "cancelled" });
    const [call, end] = transcript.items;
    assert.deepEqual(call?.type === "tool" && [call.status, call.question], ["failed", undefined]);
    assert.deepEqual(end?.type === "end" && [end.reason, end.words], ["cancelled", "Stopped by you."]);
  });

  it("shows a command whole, whatever its title says", () => {
    const transcript = new Transcript("/p");
    const text = `ls -la${" ".repeat(60)}; rm -rf ${"x".repeat(50_000)}END`;
    transcript.question({ id: "q", options: [] }, { toolCallId: "t", title: "ls -la …", kind: "execute", status: "pending", rawInput: { command: text } });
    assert.deepEqual((transcript.items[0] as ToolItem).program, { text, language: "bash", left: 0 });
    // A gate that runs one shows it with its question.
    transcript.question({ id: "q", options: [] }, { toolCallId: "u", title: "Run the tests", name: "run_tests", kind: "execute", rawInput: { targets: ["a"] }, content: [{ type: "content", content: { type: "text", text: "```sh\npytest -q a\n```" } }] });
    assert.equal((transcript.items[1] as ToolItem).program?.text, "pytest -q a");
    assert.deepEqual((transcript.items[1] as ToolItem).parts, []);
  });

  it("knows tests that failed, however their result is wrapped", () => {
    const result = { ok: false, passed: 3, failed: 1, errors: 0, skipped: 0, failures: [{ name: "test_a.py::test_b", text: "    def test_b():\n>       assert f() == 4\nE       assert 3 == 4\n\ntest_a.py:7: AssertionError" }], exit_code: 1, command: "pytest -q", output: "1 failed" };
    for (const rawOutput of [result, { output: result }]) {
      const transcript = new Transcript("/p");
      transcript.applyUpdate({ sessionUpdate: "tool_call", toolCallId: "t", title: "Run the tests", name: "run_tests", kind: "execute", status: "pending", rawInput: {} });
      transcript.applyUpdate({ sessionUpdate: "tool_call_update", toolCallId: "t", status: "completed", rawOutput });
      const item = transcript.items[0] as ToolItem;
      assert.equal(item.title, "Tests: 3 passed, 1 failed");
      assert.equal(item.tests?.ok, false);
      assert.deepEqual(item.tests.failures.map((each) => [each.name, each.cause]), [["test_a.py::test_b", "assert 3 == 4\ntest_a.py:7"]]);
      assert.equal(item.program?.text, "pytest -q");
    }
  });

  it("says how a call that was not allowed, or stopped, came to its end", () => {
    const ended = (cantrip: Record<string, unknown>, text: string): ToolItem => {
      const transcript = new Transcript("/p");
      transcript.applyUpdate({ sessionUpdate: "tool_call", toolCallId: "t", title: "x", kind: "edit", status: "failed", content: [{ type: "content", content: { type: "text", text } }], _meta: { cantrip } });
      return transcript.items[0] as ToolItem;
    };
    for (const [permission, answer] of [["rejected", "reject_once"], ["rejected_always", "reject_always"], ["unasked", "unanswered"]]) {
      const item = ended({ permission }, "some words");
      assert.deepEqual([item.answer, item.parts], [answer, []]);
    }
    const refused = ended({ permission: "refused" }, "the session is in read-only mode");
    assert.deepEqual([refused.answer, refused.parts], [undefined, [{ type: "text", text: "The session is in read-only mode." }]]);
    assert.equal(ended({ stopped: true }, "").stopped, true);
    // Words alone say nothing of it.
    assert.equal(ended({}, "the user refused this: Edit a.py").answer, undefined);
  });

  it("keeps the outcome of what ran, whatever a window remembered of its question", () => {
    const transcript = new Transcript("/p");
    transcript.applyUpdate({ sessionUpdate: "tool_call", toolCallId: "t", title: "x", name: "bash", kind: "execute", status: "failed", rawInput: { command: "x" }, rawOutput: { output: "", exit_code: 4 } });
    transcript.addUnanswered({ ...(transcript.items[0] as ToolItem), parts: [] });
    assert.equal((transcript.items[0] as ToolItem).answer, undefined);
  });

  it("brings back a question that nobody answered", () => {
    const before = new Transcript("/p");
    before.question({ id: "q", options: [] }, { toolCallId: "t.g0", title: "Edit a.py", kind: "edit", status: "pending", content: [{ type: "diff", path: "/p/a.py", oldText: "a\nb\n", newText: "a\nc\n" }] });
    const asked = structuredClone(before.items[0] as ToolItem);
    for (const known of [true, false]) {
      const after = new Transcript("/p");
      if (known) after.applyUpdate({ sessionUpdate: "tool_call", toolCallId: "t.g0", title: "Edit a.py", kind: "edit", status: "failed" });
      after.addUnanswered(asked);
      const [item] = after.items as [ToolItem];
      assert.deepEqual([item.answer, item.question, item.parts.length, after.unansweredTitle(item.id)], ["unanswered", undefined, 1, "Edit a.py"]);
      after.addUserMessage("Something else.", []);
      assert.equal((after.items[0] as ToolItem).answer, "passed");
    }
  });

  it("passes every unanswered question when a message follows, also in a replay", () => {
    const transcript = new Transcript("/p");
    const say = (n: number): void => { transcript.applyUpdate({ ...chunk("user_message_chunk", "Go on.", `m${n}`) }); };
    const unasked = (id: string): void => { transcript.applyUpdate({ sessionUpdate: "tool_call", toolCallId: id, title: "x", status: "failed", _meta: { cantrip: { permission: "unasked" } } }); };
    const answers = (): unknown[] => transcript.items.flatMap((item) => (item.type === "tool" ? [item.answer] : []));
    transcript.replaying = true;
    unasked("a");
    unasked("b");
    transcript.setAnswer("b", "allow_once");
    assert.deepEqual(answers(), ["unanswered", "allow_once"]);
    say(1);
    assert.deepEqual(answers(), ["passed", "allow_once"]);
    unasked("c");
    transcript.question({ id: "q", options: [] }, { toolCallId: "d", title: "x", status: "pending" });
    transcript.endReplay();
    assert.deepEqual(answers(), ["passed", "allow_once", "unanswered", "unanswered"]);
    transcript.addUserMessage("More.", []);
    assert.deepEqual(answers(), ["passed", "allow_once", "passed", "passed"]);
    unasked("e");
    transcript.clear();
    transcript.addUserMessage("Anew.", []);
    assert.equal(transcript.items.length, 1);
  });

  it("replays many messages without looking at the earlier items for each", () => {
    const transcript = new Transcript("/p");
    transcript.replaying = true;
    transcript.applyUpdate({ sessionUpdate: "tool_call", toolCallId: "t.g0", title: "x", status: "completed" });
    let looks = 0;
    Object.defineProperty(transcript.items[0], "type", { get: () => { looks += 1; return "tool"; } });
    for (let n = 0; n < 1000; n += 1) {
      transcript.applyUpdate(chunk("user_message_chunk", "Go on.", `u${n}`));
      transcript.applyUpdate(chunk("agent_message_chunk", "Fine.", `t${n}:0`));
    }
    transcript.endReplay();
    assert.equal(transcript.items.length, 1 + 3 * 1000 + 1);
    assert.ok(looks < 10, `${looks} looks at the first item`);
  });

  it("takes ten thousand messages without looking back", () => {
    const transcript = new Transcript("/p");
    let ops = 0;
    transcript.ops.on(() => { ops += 1; });
    const begun = performance.now();
    for (let n = 0; n < 10_000; n += 1) {
      transcript.applyUpdate(chunk("agent_message_chunk", "words ", `m${n}`));
      transcript.applyUpdate({ sessionUpdate: "tool_call", toolCallId: `t${n}`, title: "x", status: "completed" });
      transcript.applyUpdate(chunk("agent_message_chunk", "more", `n${n}`));
      transcript.ended({ stopReason: "end_turn" });
    }
    assert.equal(transcript.items.length, 40_000);
    assert.ok(ops < 60_000);
    assert.ok(performance.now() - begun < 30_000);
  });
});

describe("a real session's past", () => {
  let open: Real | undefined;
  afterEach(async () => {
    await open?.close();
    open = undefined;
  });

  it("reads as it was lived, with the turns to fork from", async () => {
    open = real([
      { thinking: "Hm.", content: "I write.", tool_calls: [{ gate: "write_file", args: { path: "a.txt", content: "x\n" } }] },
      DONE,
      { tool_calls: [{ gate: "done", args: { answer: "Twice." } }] },
    ]);
    const { agent, place, folder } = open;
    const live = new Transcript(folder);
    const session = await agent.newSession(place);
    await session.setMode("ask");
    session.updates.on((update) => { live.applyUpdate(update); });
    for (const text of ["First.", "Second."]) {
      live.addUserMessage(text, []);
      live.ended(await session.prompt([{ type: "text", text }]));
    }
    await agent.stop();
    const past = new Transcript(folder);
    past.replaying = true;
    await open.again().loadSession(session.id, place, (loaded) => { loaded.updates.on((update) => { past.applyUpdate(update); }); });
    past.endReplay();
    const told = (transcript: Transcript): unknown[] =>
      transcript.items.map((item) => {
        if (item.type === "tool") return [item.type, item.name, item.status];
        if (item.type === "end") return [item.type, item.turn];
        return [item.type, "text" in item ? item.text : ""];
      });
    assert.deepEqual(told(past), told(live));
    assert.deepEqual(past.items.filter((item) => item.type === "end").map((item) => typeof item.turn), ["string", "string"]);
  });

  it("shows what was rejected, failed and was stopped as it was lived", async () => {
    const bash = (command: string): unknown => ({ tool_calls: [{ gate: "bash", args: { command } }] });
    const gate = (name: string, args: unknown): unknown => ({ tool_calls: [{ gate: name, args }] });
    open = real(
      [gate("write_file", { path: "a.txt", content: "x\n" }), bash("echo no"), gate("edit_file", { path: "b.txt", old_text: "a\nb", new_text: "c" }), bash("echo begun; sleep 60"), DONE],
      { medium: "bash", gates: ["done", "write_file", "edit_file"], wards: [{ max_turns: 20 }, { bash_writable_paths: ["."] }] },
    );
    const { agent, place, folder, services } = open;
    writeFileSync(join(folder, "b.txt"), "");
    services.written.set(join(folder, "b.txt"), "a\n b\n");
    const live = new Transcript(folder);
    const session = await agent.newSession(place);
    await session.setMode("ask");
    session.updates.on((update) => {
      live.applyUpdate(update);
      if (update.sessionUpdate === "tool_call" && update.name === "edit_file") services.answer = "allow_once";
      if (live.items.some((item) => item.type === "tool" && item.output?.includes("begun"))) void session.cancel();
    });
    services.answer = "reject_once";
    live.addUserMessage("Go.", []);
    live.ended(await session.prompt([{ type: "text", text: "Go." }]));
    await agent.stop();
    const past = new Transcript(folder);
    past.replaying = true;
    await open.again().loadSession(session.id, place, (loaded) => { loaded.updates.on((update) => { past.applyUpdate(update); }); });
    past.endReplay();
    const told = (transcript: Transcript): unknown[] =>
      transcript.items.flatMap((item) => (item.type === "tool" ? [[item.name, item.status, item.answer, item.stopped, item.parts.filter((part) => part.type === "text").map((part) => part.text)]] : []));
    const words = ["old_text is not found in 'b.txt', but lines 1 to 2 differ from it only in white space."];
    const expected = [
      ["write_file", "failed", "reject_once", undefined, []],
      ["bash", "failed", "reject_once", undefined, []],
      ["edit_file", "failed", undefined, undefined, words],
      ["bash", "failed", undefined, true, []],
    ];
    assert.deepEqual(told(live), expected);
    assert.deepEqual(told(past), expected);
    // Nothing that was written for the model stands in an output either.
    assert.deepEqual(live.items.flatMap((item) => (item.type === "tool" && item.output !== undefined ? [item.output] : [])), ["begun\n"]);
  });

  it("has the colours of a command's output, live and after a reload", () => {
    const ended = { exit_code: 0, signal: null, timed_out: false, truncated: false, output: "a \u{1f600} red word\nplain\n" };
    const _meta = { cantrip: { styles: [[4, "31"], [7, "1;38;5;200"], [9, ""], [3, "7"], [10, "31m\u001b]0;t\u0007"], ["x", 1], null, [999, "1"]] } };
    const colours = "a \u{1f600} \u001b[31mred\u001b[0;1;38;5;200m w\u001b[0mord\nplain\n";
    const loaded = new Transcript("/p");
    loaded.applyUpdate({ sessionUpdate: "tool_call", toolCallId: "t1.0", title: "x", name: "bash", kind: "execute", status: "completed", rawInput: { command: "x" }, rawOutput: ended, _meta });
    assert.equal(loaded.call("t1.0")?.output, colours);
    // What came in pieces stays: the pieces have more codes.
    const pieces = ["a \u{1f600} \u001b[31mre\u001b[0m", "\u001b[31md\u001b[0;1;38;5;200m w\u001b[0mord\nplain\n"];
    const live = new Transcript("/p");
    live.applyUpdate({ sessionUpdate: "tool_call", toolCallId: "t1.0", title: "x", name: "bash", kind: "execute", status: "in_progress", rawInput: { command: "x" } });
    for (const data of pieces) live.applyUpdate({ sessionUpdate: "tool_call_update", toolCallId: "t1.0", _meta: { terminal_output: { data } } });
    live.applyUpdate({ sessionUpdate: "tool_call_update", toolCallId: "t1.0", status: "completed", rawOutput: ended, _meta });
    assert.equal(live.call("t1.0")?.output, pieces.join(""));
    assert.equal(live.call("t1.0")?.recorded, undefined);
    // Its middle was left out, so the record counts.
    const short = { ...ended, truncated: true, output: "a\n[… 3 lines (9 bytes) not shown …]\nred\n" };
    live.applyUpdate({ sessionUpdate: "tool_call_update", toolCallId: "t1.0", status: "completed", rawOutput: short, _meta: { cantrip: { styles: [[38, "31"]] } } });
    assert.equal(live.call("t1.0")?.output, `${short.output.slice(0, 38)}\u001b[31m${short.output.slice(38)}\u001b[0m`);
    assert.equal(live.call("t1.0")?.recorded, true);
  });

  it("has the recorded output of a command when it ends, live and after a reload", () => {
    const whole = "line 1\n[… 48,700 lines (9,999 bytes) not shown …]\nBUILD OK\n";
    const ended = { exit_code: 0, signal: null, timed_out: false, truncated: true, output: whole };
    const live = new Transcript("/p");
    const seen = reader(live);
    live.applyUpdate({ sessionUpdate: "tool_call", toolCallId: "t1.0", title: "make", name: "bash", kind: "execute", status: "in_progress", rawInput: { command: "make" } });
    live.applyUpdate({ sessionUpdate: "tool_call_update", toolCallId: "t1.0", _meta: { terminal_output: { data: "line 1\nline 2\n" } } });
    live.applyUpdate({ sessionUpdate: "tool_call_update", toolCallId: "t1.0", status: "completed", rawOutput: ended });
    const loaded = new Transcript("/p");
    const content = [{ type: "content" as const, content: { type: "text" as const, text: `\`\`\`\n${whole.trimEnd()}\n\`\`\`` } }];
    loaded.applyUpdate({ sessionUpdate: "tool_call", toolCallId: "t1.0", title: "make", name: "bash", kind: "execute", status: "completed", rawInput: { command: "make" }, rawOutput: ended, content });
    for (const transcript of [live, loaded]) {
      const item = transcript.call("t1.0");
      assert.equal(item?.output, whole);
      assert.deepEqual(item.parts, []);
      assert.deepEqual(transcript.outputOf(item.id), { title: "make", text: whole });
    }
    assert.deepEqual(seen, live.items);
  });
});
