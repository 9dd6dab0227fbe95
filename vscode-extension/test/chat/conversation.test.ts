import type * as acp from "@agentclientprotocol/sdk/unstable";
import assert from "node:assert/strict";
import { writeFileSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, describe, it } from "node:test";
import type { Session } from "../../src/acp/session";
import { Conversation } from "../../src/chat/conversation";
import { Transcript } from "../../src/chat/transcript";
import { DONE, real, type Real } from "../acp/realagent";

let open: Real[] = [];
afterEach(async () => {
  for (const each of open) await each.close();
  open = [];
});

const blocks = (text: string) => (): Promise<acp.ContentBlock[]> => Promise.resolve([{ type: "text", text }]);
const answer = (text: string, when: string): object => ({ when, tool_calls: [{ gate: "done", args: { answer: text } }] });

/** How the user answers questions; a test changes it. */
let answers: (request: acp.RequestPermissionRequest) => Promise<acp.RequestPermissionResponse> = () => Promise.resolve({ outcome: { outcome: "selected", optionId: "allow_once" } });

const echo = { when: "First", tool_calls: [{ gate: "echo", args: { text: "x" } }] };

/** A conversation with a real agent; `say` sends a message. */
async function begin(...how: Parameters<typeof real>): Promise<{ made: Real; session: Session; conversation: Conversation; say: (text: string, now?: boolean) => Promise<void> }> {
  const made = real(...how);
  open.push(made);
  // An editor without open files.
  made.services.writeFile = ({ path, content }) => {
    writeFileSync(path, content);
    return Promise.resolve({});
  };
  made.services.readFile = ({ path }) => Promise.resolve({ content: readFileSync(path, "utf8") });
  made.services.permission = (request) => answers(request);
  const session = await made.agent.newSession(made.place);
  await session.setMode("sandboxed");
  const conversation = new Conversation(made.folder);
  conversation.attach(session);
  const no = (): Promise<boolean> => Promise.resolve(false);
  return { made, session, conversation, say: (text, now) => conversation.prompt(text, [], blocks(text), () => Promise.resolve(session), no, now) };
}

/** Wait until a condition holds, looked at after each change. */
function until(conversation: Conversation, holds: () => boolean): Promise<void> {
  return new Promise((resolve) => {
    const look = (): void => { if (holds()) resolve(); };
    conversation.queueChanged.on(look);
    conversation.transcript.ops.on(look);
    conversation.review.changed.on(look);
    look();
  });
}

const shown = ({ transcript }: Conversation): string[] => transcript.items.flatMap((item) => (item.type === "user" || item.type === "agent" ? [item.text] : item.type === "end" ? ["."] : []));
const waiting = (conversation: Conversation): string[] => conversation.queue.map((each) => each.text);

describe("messages that are sent while another one runs", () => {
  it("wait, can be edited and removed, and run one after the other", async () => {
    const { conversation, say } = await begin([{ when: "First", delay_ms: 1500, content: "Working.", tool_calls: [{ gate: "echo", args: { text: "x" } }] }, answer("One.", "First"), answer("Two.", "Changed"), answer("Three.", "Third")]);
    let ends = 0;
    conversation.onPromptEnd.on(() => { ends += 1; });
    const all = [say("First"), say("Second"), say("Removed"), say("Third")];
    await until(conversation, () => (conversation.session?.queue.length ?? 0) === 3);
    assert.deepEqual(waiting(conversation), ["Second", "Removed", "Third"]);
    const [second, removed] = conversation.queue;
    await conversation.editQueued(second?.id ?? "", "Changed", [], blocks("Changed"));
    await conversation.removeQueued(removed?.id ?? "");
    assert.deepEqual(waiting(conversation), ["Changed", "Third"]);
    let returned = 0;
    conversation.returned.on(() => { returned += 1; });
    await Promise.all(all);
    assert.deepEqual(shown(conversation), ["First", "Working.", "One.", ".", "Changed", "Two.", ".", "Third", "Three.", "."]);
    assert.deepEqual([ends, returned, conversation.busy, conversation.queue], [1, 0, false, []]);
  });

  it("are read by the running answer if they are sent now", async () => {
    const { conversation, say } = await begin([echo, { ...echo, delay_ms: 1500 }, answer("With tabs.", "First")]);
    const all = [say("First")];
    await until(conversation, () => conversation.transcript.items.some((item) => item.type === "tool" && item.status === "completed"));
    all.push(say("Use tabs.", true));
    await Promise.all(all);
    assert.deepEqual(shown(conversation), ["First", "Use tabs.", "With tabs.", "."]);
    const items = conversation.transcript.items.filter((item) => item.type === "user");
    assert.deepEqual(items.map((item) => item.steered), [undefined, true]);
    // Trying again sends the message that the answer belongs to.
    const end = conversation.transcript.items.at(-1)?.id ?? "";
    assert.equal(conversation.transcript.message(end)?.text, "First");
    assert.equal(conversation.busy, false);
  });

  it("come back if the user stops the agent", async () => {
    const { conversation, say } = await begin([{ when: "First", delay_ms: 60_000, content: "late" }, { ...DONE, when: "Again" }]);
    const back: string[] = [];
    conversation.returned.on(({ text }) => back.push(text));
    const all = [say("First"), say("Second")];
    await until(conversation, () => conversation.session?.queue.length === 1);
    await conversation.stop();
    await Promise.all(all);
    assert.deepEqual([back, shown(conversation), conversation.busy], [["Second"], ["First", "."], false]);
    await say("Again");
    assert.deepEqual(shown(conversation).slice(-2), ["All done.", "."]);
  });

  it("come back if the agent dies", async () => {
    const { conversation, say, made } = await begin([{ when: "First", delay_ms: 60_000, content: "late" }, { ...DONE, when: "Again" }]);
    const back: string[] = [];
    conversation.returned.on(({ text }) => back.push(text));
    const all = [say("First"), say("Second")];
    await until(conversation, () => conversation.session?.queue.length === 1);
    process.kill((await made.agent.connection()).process.pid ?? 0, "SIGKILL");
    await Promise.all(all);
    assert.deepEqual([back, conversation.queue, conversation.busy], [["Second"], [], false]);
    assert.equal(conversation.transcript.items.at(-1)?.type, "error");
  });
});

describe("files that the agent changed", () => {
  it("are listed, kept, undone by hunk, file or all at once, and restored to a message", async () => {
    const text = Array.from({ length: 40 }, (_, at) => `${at}\n`).join("");
    const after = text.replace("3\n", "three\n").replace("35\n", "last\n");
    const write = (path: string, content: string, when: string): object => ({ when, tool_calls: [{ gate: "write_file", args: { path, content } }] });
    const { conversation, say, made } = await begin([write("a.txt", after, "First"), { ...DONE, when: "First" }, write("b.txt", "new\n", "Second"), { ...DONE, when: "Second" }]);
    const a = join(made.folder, "a.txt");
    const { review, transcript } = conversation;
    writeFileSync(a, text);
    await say("First");
    await say("Second");
    await review.refresh();
    assert.deepEqual(review.files.map((each) => [each.path, each.status, each.added, each.removed, each.hunks.length]), [["a.txt", "modified", 2, 2, 2], ["b.txt", "added", 1, 0, 1]]);
    const [first] = review.files;
    const version = first?.version ?? "";
    await review.undo({ path: "a.txt", version, hunk: 2 });
    assert.equal(readFileSync(a, "utf8"), text.replace("3\n", "three\n"));
    // A choice about a content that is not the present one is refused.
    await assert.rejects(review.keep({ path: "a.txt", version }), /changed since it was shown/);
    assert.equal(review.canRedo, true);
    await review.redo();
    assert.deepEqual([readFileSync(a, "utf8"), review.canRedo], [after, false]);
    await review.keep({ path: "b.txt" });
    assert.deepEqual(review.files.map((each) => each.path), ["a.txt"]);
    await review.undo({});
    assert.deepEqual([readFileSync(a, "utf8"), review.files], [text, []]);
    await review.redo();

    const [one, two] = transcript.items.filter((item) => item.type === "user").map((item) => transcript.point(item.id)?.turn);
    assert.equal(one, 0);
    const plan = await review.restore(two ?? 0, { dryRun: true });
    assert.deepEqual(plan.restored, [{ path: "b.txt", action: "deleted" }]);
    assert.equal(readFileSync(join(made.folder, "b.txt"), "utf8"), "new\n");
    writeFileSync(a, after.replace("three\n", "mine\n"));
    const result = await review.restore(0, {});
    assert.deepEqual(result.conflicts.map((each) => each.path), ["a.txt"]);
    await review.restore(0, { force: true });
    assert.equal(readFileSync(a, "utf8"), text);
  });
});

describe("a plan", () => {
  it("is returned with comments, approved as the user edited it, and carried out in the mode that was chosen", async () => {
    const plan = "# Plan\n\n1. Write `a.txt`.";
    const { made, conversation, say, session } = await begin([answer(`I looked.\n\n${plan}`, "Do it"), answer(`${plan}\n2. Check it.`, "and checks"), answer("Carried out.", "edited step")]);
    await session.setMode("plan");
    const given: acp.RequestPermissionResponse[] = [
      { outcome: { outcome: "selected", optionId: "plan", _meta: { cantrip: { reason: "and checks" } } } },
      { outcome: { outcome: "selected", optionId: "ask", _meta: { cantrip: { plan: "# Plan\n\nedited step" } } } },
    ];
    const plans: unknown[] = [];
    answers = (request) => {
      const { transcript } = conversation;
      transcript.question({ id: "q", options: [] }, request.toolCall);
      plans.push(transcript.call(request.toolCall.toolCallId)?.planText);
      return Promise.resolve(given.shift() ?? { outcome: { outcome: "cancelled" } });
    };
    await say("Do it");
    assert.deepEqual(plans, [plan, `${plan}\n2. Check it.`]);
    assert.equal(session.settings.modes?.currentModeId, "ask");
    // The questions show the plans, and the answers do not repeat them.
    assert.deepEqual(shown(conversation), ["Do it", "I looked.", "", "Carried out.", "."]);
    // After a reload, the answers show them, and the messages that return or approve them do not.
    await made.agent.stop();
    const past = new Conversation(made.folder);
    past.transcript.replaying = true;
    await made.again().loadSession(session.id, made.place, (each) => { past.attach(each); });
    past.transcript.endReplay();
    const words = shown(past).join("\n");
    assert.equal(words.split("1. Write `a.txt`.").length - 1, 2);
    assert.equal(words.split("edited step").length - 1, 1);
  });
});

describe("a list of steps", () => {
  it("belongs to the message that it was made for, also in a replay", async () => {
    const step = { when: "First", tool_calls: [{ gate: "plan", args: { entries: [{ content: "Look" }] } }] };
    const { made, conversation, session, say } = await begin([step, answer("One.", "First"), answer("Two.", "Second")], { gates: ["done", "plan"] });
    /** What a replay shows, and what it showed on the way. */
    const replayed = async (): Promise<unknown> => {
      await made.agent.stop();
      const past = new Transcript(made.folder);
      past.replaying = true;
      const seen: number[] = [];
      past.planned.on((entries) => { seen.push(entries.length); });
      await made.again().loadSession(session.id, made.place, (each) => { each.updates.on((update) => { past.applyUpdate(update); }); });
      past.endReplay();
      return [seen, past.plan.map((each) => each.content)];
    };
    await say("First");
    assert.deepEqual(conversation.transcript.plan.map((each) => each.content), ["Look"]);
    await say("Second");
    assert.deepEqual(conversation.transcript.plan, []);
    assert.deepEqual(await replayed(), [[1, 0], []]);
  });
});

describe("an answer that was cut", () => {
  const ends = (transcript: Transcript): unknown[] => transcript.items.flatMap((item) => (item.type === "end" ? [[item.words, item.incomplete]] : []));

  it("says why, and goes on without a new message: after a stop, and in another process", async () => {
    const { made, conversation, session, say } = await begin([echo, { content: "Late.", delay_ms: 60_000 }, answer("Whole.", "First")]);
    const said = say("First");
    await until(conversation, () => conversation.transcript.items.some((item) => item.type === "tool" && item.status === "completed"));
    await conversation.stop();
    await said;
    assert.deepEqual(ends(conversation.transcript), [["Incomplete: you stopped it.", true]]);
    // What another process reads of it.
    await made.agent.stop();
    const past = new Transcript(made.folder);
    past.replaying = true;
    const agent = made.again();
    const loaded = await agent.loadSession(session.id, made.place, (each) => { each.updates.on((update) => { past.applyUpdate(update); }); });
    past.endReplay(loaded.incomplete);
    assert.deepEqual(ends(past), [["Incomplete: it was stopped.", true]]);
    assert.equal(past.canContinue(past.items.at(-1)?.id ?? ""), true);
    const again = new Conversation(made.folder);
    again.attach(loaded);
    await again.prompt("", [], () => Promise.resolve([]), () => Promise.resolve(loaded), () => Promise.resolve(false), false, true);
    assert.deepEqual(shown(again), ["Whole.", "."]);
  });

  it("can go on only as long as nothing follows it, and not if nothing was begun", () => {
    const transcript = new Transcript("/p");
    transcript.ended({ stopReason: "max_turn_requests", _meta: { cantrip: { turn: "t1", reason: "max_turns" } } });
    const end = transcript.items.at(-1)?.id ?? "";
    assert.deepEqual(ends(transcript), [["Incomplete: the limit of turns is reached.", true]]);
    transcript.applyUpdate({ sessionUpdate: "plan", entries: [{ content: "Look", status: "pending", priority: "medium" }] });
    transcript.addUserMessage("Something else.", []);
    assert.deepEqual(transcript.plan, []);
    assert.equal(transcript.canContinue(end), false);
    const gone = { title: "Cantrip stopped unexpectedly", detail: "", action: "restart" } as const;
    transcript.addError(gone);
    assert.equal(transcript.canContinue(transcript.items.at(-1)?.id ?? ""), false);
    transcript.applyUpdate({ sessionUpdate: "agent_message_chunk", content: { type: "text", text: "Half" }, messageId: "m" });
    transcript.addError(gone);
    assert.equal(transcript.canContinue(transcript.items.at(-1)?.id ?? ""), true);
    transcript.ended({ stopReason: "cancelled" });
    assert.equal(transcript.canContinue(transcript.items.at(-1)?.id ?? ""), false);
  });
});
