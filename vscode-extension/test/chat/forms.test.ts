import assert from "node:assert/strict";
import { describe, it, afterEach } from "node:test";
import type * as acp from "@agentclientprotocol/sdk/unstable";
import { answerLine, checked, type FormField, fieldsOf, problemOf, typed } from "../../src/chat/formfields";
import type { FormItem } from "../../src/chat/items";
import { Transcript } from "../../src/chat/transcript";
import { real, type Real } from "../acp/realagent";

const SCHEMA = {
  type: "object",
  required: ["name", "size", "token"],
  properties: {
    name: { type: "string", title: "Name", description: "As you sign.", minLength: 2, maxLength: 5, pattern: "^[A-Z]" },
    mail: { type: "string", format: "email", default: "a@b.org" },
    size: { type: "string", oneOf: [{ const: "s", title: "**Small**" }, { const: "l", title: "Large", description: "as a house" }] },
    age: { type: "integer", minimum: 1, maximum: 120 },
    ratio: { type: "number" },
    sure: { type: "boolean", default: true },
    colours: { type: "array", minItems: 1, maxItems: 2, items: { anyOf: [{ const: "r", title: "Red" }, { const: "g", title: "Green" }, { const: "b", title: "Blue" }] } },
    token: { type: "string", format: "password" },
    odd: { type: "_later" },
  },
};

describe("the fields of a form", () => {
  const fields = fieldsOf(SCHEMA) ?? [];
  const field = (name: string): FormField => fields.find((each) => each.name === name) ?? assert.fail(name);

  it("come from its schema; a kind that is not known is left out, or makes the form impossible", () => {
    assert.deepEqual(fields.map((each) => [each.name, each.kind, each.required]), [
      ["name", "text", true], ["mail", "text", false], ["size", "choice", true], ["age", "integer", false],
      ["ratio", "number", false], ["sure", "boolean", false], ["colours", "choices", false], ["token", "secret", true],
    ]);
    assert.equal(fieldsOf({ ...SCHEMA, required: ["odd"] }), undefined);
    assert.deepEqual(fieldsOf(undefined), []);
    // A server that asks for a secret as if it were none.
    assert.equal(fieldsOf({ properties: { api_key: { type: "string" } } })?.[0]?.kind, "secret");
  });

  it("say what is wrong with a value", () => {
    const cases: [string, string | number | boolean | string[] | undefined, string][] = [
      ["name", "", "Enter an answer."],
      ["name", "A", "Enter at least 2 characters; these are 1."],
      ["name", "Ada 🎩", ""],
      ["name", "Ada Lovelace", "Enter at most 5 characters; these are 12."],
      ["name", "ada", "Enter a text that fits the pattern ^[A-Z]"],
      ["mail", "", ""],
      ["mail", "a", "Enter an address such as name@example.org."],
      ["size", undefined, "Choose one."],
      ["size", "m", "Choose from the list."],
      ["age", 0, "Enter 1 or more."],
      ["age", 1.5, "Enter a whole number."],
      ["age", NaN, "Enter a whole number."],
      ["age", undefined, ""],
      ["colours", [], ""],
      ["colours", ["r", "g", "b"], "Choose at most 2."],
      ["colours", ["x"], "Choose from the list."],
      ["sure", "yes", "Choose one."],
      ["token", undefined, "Enter an answer."],
    ];
    for (const [name, value, said] of cases) assert.equal(problemOf(field(name), value), said, `${name} ${String(value)}`);
    assert.equal(typed(field("ratio"), " 1,5 "), 1.5);
    assert.equal(typed(field("ratio"), " "), undefined);
  });

  it("a pattern that takes forever does not stop the extension host", () => {
    const [slow] = fieldsOf({ properties: { a: { type: "string", pattern: "^(a+)+$" } } }) ?? [];
    assert.ok(slow);
    const value = `${"a".repeat(40)}!`;
    assert.deepEqual(checked([slow], { a: value }), { a: value });
  });

  it("make an answer in one line without what is secret", () => {
    const given = { name: "Ada", mail: "", size: "s", age: 36, sure: false, colours: ["r", "b"], token: "hunter2", __proto__: { ratio: 1 }, more: 1 };
    const content = checked(fields, given);
    assert.deepEqual(content, { name: "Ada", size: "s", age: 36, sure: false, colours: ["r", "b"], token: "hunter2" });
    assert.equal(answerLine(fields, content), "Name: Ada · size: Small · age: 36 · sure: No · colours: Red, Blue · token: (hidden)");
    assert.equal(checked(fields, { ...given, size: "m" }), undefined);
    const [only] = fieldsOf({ properties: { answer: { type: "string" } } }) ?? [];
    assert.ok(only);
    assert.equal(answerLine([only], { answer: "one\n  two" }), "one two");
    assert.equal(answerLine([only], {}), "nothing");
  });
});

describe("a question of the agent", () => {
  let made: Real | undefined;
  afterEach(async () => { await made?.close(); });

  const forms = (transcript: Transcript): unknown[] => transcript.items.flatMap((item) => (item.type === "form" ? [[item.message, item.question, item.answer, item.said]] : []));

  it("is an item with its answer, live and in a replay, and its call is not shown", async () => {
    const ask = (question: string, choices?: string[]): object => ({ when: "Ask", tool_calls: [{ gate: "ask_user", args: { question, ...(choices ? { choices } : {}) } }] });
    const bad = { when: "Ask", tool_calls: [{ gate: "ask_user", args: { question: "?", choices: ["only one"] } }] };
    made = real([ask("Which **way**?", ["`left`", "right"]), ask("Why?"), ask("When?"), bad, { when: "Ask", tool_calls: [{ gate: "done", args: { answer: "Thanks." } }] }], { gates: ["done", "ask_user"] });
    const live = new Transcript(made.folder);
    const given: acp.CreateElicitationResponse[] = [{ action: "accept", content: { answer: "`left`" } }, { action: "accept", content: { answer: "because\nof it" } }, { action: "decline" }];
    let opened: unknown;
    made.services.elicit = (request) => {
      const form = request as acp.CreateElicitationRequest & { sessionId: string; toolCallId: string; requestedSchema: unknown };
      const fields = fieldsOf(form.requestedSchema) ?? [];
      const reply = given.shift() ?? { action: "cancel" };
      live.addForm({ id: form.message, session: form.sessionId, call: form.toolCallId, message: form.message, fields });
      opened ??= forms(live);
      if (reply.action === "accept") live.closeForm(form.message, "answered", answerLine(fields, checked(fields, (reply as { content?: Record<string, unknown> }).content ?? {}) ?? {}));
      else live.closeForm(form.message, "skipped");
      return Promise.resolve(reply);
    };
    const session = await made.agent.newSession(made.place);
    session.updates.on((update) => { live.applyUpdate(update); });
    live.ended(await session.prompt([{ type: "text", text: "Ask" }]));
    assert.deepEqual(opened, [["Which **way**?", "Which **way**?", undefined, undefined]]);
    const wanted = [["Which **way**?", undefined, "answered", "left"], ["Why?", undefined, "answered", "because of it"], ["When?", undefined, "skipped", undefined]];
    assert.deepEqual(forms(live), wanted);
    // A call that could not ask is an ordinary failed one.
    const asked = (transcript: Transcript): unknown[] => transcript.items.flatMap((item) => (item.type === "tool" && item.name === "ask_user" ? [item.asked === true] : []));
    assert.deepEqual(asked(live), [true, true, true, false]);
    await made.agent.stop();
    const past = new Transcript(made.folder);
    past.replaying = true;
    await made.again().loadSession(session.id, made.place, (each) => { each.updates.on((update) => { past.applyUpdate(update); }); });
    past.endReplay();
    assert.deepEqual(forms(past), wanted);
    assert.deepEqual(asked(past), [true, true, true, false]);
  });

  it("without an answer says so, can be asked again once, and never stays open", () => {
    const transcript = new Transcript("/p");
    const open = (id: string, call?: string): FormItem => transcript.addForm({ id, session: "s", call, message: `${id}?`, fields: [] });
    open("a", "t.0");
    const second = open("b");
    transcript.ended({ stopReason: "cancelled" });
    assert.deepEqual(forms(transcript), [["a?", undefined, "unanswered", undefined], ["b?", undefined, "unanswered", undefined]]);
    assert.equal(transcript.unansweredTitle(second.id), "b?");
    // The answer of another client.
    transcript.applyUpdate({ sessionUpdate: "tool_call", toolCallId: "t.0", title: "Ask", name: "ask_user", status: "completed", rawOutput: { output: "yes" }, _meta: { cantrip: { question: "answered" } } });
    assert.deepEqual(forms(transcript)[0], ["a?", undefined, "answered", "yes"]);
    transcript.addUserMessage("On.", []);
    assert.deepEqual(forms(transcript)[1], ["b?", undefined, "passed", undefined]);
    assert.equal(transcript.unansweredTitle(second.id), undefined);
    // One of a window that closed, unless the agent knows how it ended.
    transcript.addUnanswered({ type: "form", id: "i9", callId: "t.0", message: "a?", fields: [] });
    transcript.addUnanswered({ type: "form", id: "i9", callId: "t.1", message: "c?", fields: [] });
    assert.deepEqual(forms(transcript).slice(2), [["c?", undefined, "unanswered", undefined]]);
  });
});

describe("what was typed into a form", () => {
  it("is not in the log of messages", async () => {
    const made = real([{ tool_calls: [{ gate: "ask_user", args: { question: "Which?" } }] }, { tool_calls: [{ gate: "done", args: { answer: "Done." } }] }], { gates: ["done", "ask_user"] });
    made.services.elicit = () => Promise.resolve({ action: "accept", content: { answer: "xyzzy" } });
    const session = await made.agent.newSession(made.place);
    await session.prompt([{ type: "text", text: "Go" }]);
    const answer = made.trace.find((line) => line.startsWith("→ answer to elicitation/create"));
    assert.ok(answer);
    assert.equal(answer.includes("xyzzy"), false);
    await made.close();
  });
});
