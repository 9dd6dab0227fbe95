import assert from "node:assert/strict";
import { afterEach, describe, it } from "node:test";
import type { Agent } from "../../src/acp/agent";
import { Transcript } from "../../src/chat/transcript";
import { listed, type Listed, type Versions, versionsOf } from "../../src/chat/versions";
import { DONE, real, type Real } from "../acp/realagent";

let open: Real[] = [];
afterEach(async () => {
  for (const each of open) await each.close();
  open = [];
});

const fork = (id: string, session: string, turn: string | 0, at: string): Listed => ({ id, from: { session, turn, at } });
const none: ReadonlySet<string | 0> = new Set();

/** The ids of the versions with the shown one in brackets. */
const words = (versions: Versions | undefined): string => versions?.sessions.map((id, at) => (at === versions.at ? `[${id}]` : id)).join(" ") ?? "";

describe("the versions of a message", () => {
  // b and c have another message after t2, c's being one in place of b's; d has b's message and another one after t4.
  const all: Listed[] = [fork("d", "b", "t4", "3"), fork("c", "b", "t2", "2"), fork("b", "a", "t2", "1"), { id: "a" }, { id: "other" }];

  it("are the session that was forked there and its forks, in the order of their beginning", () => {
    const earlier = new Set([0, "t1"] as const);
    assert.deepEqual(["a", "b", "c", "d"].map((id) => words(versionsOf(all, id, "t2", earlier))), ["[a] b c", "a [b] c", "a b [c]", "a [d] c"]);
    assert.deepEqual(["b", "d"].map((id) => words(versionsOf(all, id, "t4", new Set([0, "t1", "t2"] as const)))), ["[b] d", "b [d]"]);
    assert.equal(versionsOf(all, "a", "t1", new Set([0] as const)), undefined);
  });

  it("of a first message are those of one family of sessions", () => {
    const more = [...all, fork("e", "d", 0, "4"), fork("x", "other", 0, "5")];
    assert.deepEqual(["a", "c", "e", "x"].map((id) => words(versionsOf(more, id, 0, none))), ["[a] e", "[c] e", "d [e]", "other [x]"]);
  });

  it("are without sessions that were deleted, and with what was forked from these", () => {
    const left = (...gone: string[]): Listed[] => all.filter(({ id }) => !gone.includes(id));
    const earlier = new Set([0, "t1"] as const);
    assert.equal(words(versionsOf(left("c"), "a", "t2", earlier)), "[a] b");
    assert.equal(words(versionsOf(left("b", "c", "d"), "a", "t2", earlier)), "");
    assert.equal(words(versionsOf(left("a"), "c", "t2", earlier)), "b [c]");
    // The message that b began is still there, in d.
    assert.equal(words(versionsOf(left("a", "b"), "c", "t2", earlier)), "d [c]");
  });

  it("do not lead into a session that was forked before the message", () => {
    const more = [{ id: "a" }, fork("b", "a", "t2", "1"), fork("c", "b", "t1", "2")];
    // b was deleted, and c never had the message after t2.
    assert.equal(words(versionsOf(more.filter(({ id }) => id !== "b"), "a", "t2", new Set([0, "t1"] as const))), "");
  });

  it("of an agent that does not say where a session comes from are none", () => {
    const odd = [{ sessionId: "a", cwd: "/" }, { sessionId: "b", cwd: "/", _meta: { cantrip: { forkedFrom: { sessionId: 1, turn: "t" } } } }, { sessionId: "c", cwd: "/", _meta: null }];
    assert.deepEqual(listed(odd), [{ id: "a" }, { id: "b" }, { id: "c" }]);
  });

  it("are those that a real agent lists, also for another agent later", async () => {
    const made = real([{ ...DONE, repeat: true }]);
    open.push(made);
    const { agent, place } = made;
    const turnOf = (reply: object): string => (reply as { _meta: { cantrip: { turn: string } } })._meta.cantrip.turn;
    const say = (text: string): [{ type: "text"; text: string }] => [{ type: "text", text }];
    const first = await agent.newSession(place);
    const turn = turnOf(await first.prompt(say("One.")));
    await first.prompt(say("Two."));
    const branch = async (from: string, at: string | 0, text: string): Promise<string> => {
      const id = await agent.forkSession(from, place, at);
      await (await agent.loadSession(id, place, () => undefined)).prompt(say(text));
      return id;
    };
    const second = await branch(first.id, turn, "Two, otherwise.");
    const third = await branch(second, turn, "Two, once more.");
    const start = await branch(third, 0, "One, otherwise.");
    const names = new Map([[first.id, "a"], [second, "b"], [third, "c"], [start, "e"]]);
    const shown = async (by: Agent, id: string): Promise<string[]> => {
      const all = listed(await by.listSessions(place.cwd));
      const transcript = new Transcript(place.cwd);
      transcript.replaying = true;
      transcript.versionsAt = (after, earlier) => versionsOf(all, id, after, earlier);
      await by.loadSession(id, place, (session) => session.updates.on((update) => { transcript.applyUpdate(update); }));
      transcript.endReplay();
      return transcript.items.flatMap((item) => (item.type === "user" ? [`${item.text} ${words(item.versions && { ...item.versions, sessions: item.versions.sessions.map((each) => names.get(each) ?? each) })}`] : []));
    };
    const expected = [["One. [a] e", "Two. [a] b c"], ["One. [b] e", "Two, otherwise. a [b] c"], ["One. [c] e", "Two, once more. a b [c]"], ["One, otherwise. c [e]"]];
    await agent.stop();
    const later = made.again();
    assert.deepEqual(await Promise.all([first.id, second, third, start].map((id) => shown(later, id))), expected);
    await later.deleteSession(second);
    assert.deepEqual(await shown(later, first.id), ["One. ", "Two. [a] c"]);
  });

  it("are known for a message at once, and change with the list", () => {
    const transcript = new Transcript("/p");
    let all: Listed[] = [fork("b", "a", 0, "1"), { id: "a" }];
    transcript.versionsAt = (turn, earlier) => versionsOf(all, "b", turn, earlier);
    const ops: string[] = [];
    transcript.addUserMessage("One, otherwise.", []);
    transcript.addError({ title: "No", detail: "", action: "none" });
    transcript.addUserMessage("Again.", []);
    transcript.ops.on((op) => ops.push(op.op));
    assert.deepEqual(transcript.items.flatMap((item) => (item.type === "user" ? [words(item.versions)] : [])), ["a [b]", ""]);
    transcript.refreshVersions();
    assert.deepEqual(ops, []);
    all = [fork("b", "a", 0, "1")];
    transcript.refreshVersions();
    assert.deepEqual(ops, ["set"]);
    assert.deepEqual(transcript.messageAfter(0), { index: 0, id: transcript.items[0]?.id });
    assert.equal(transcript.messageAfter("t1"), undefined);
  });
});
