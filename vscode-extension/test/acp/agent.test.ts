import type * as acp from "@agentclientprotocol/sdk/unstable";
import assert from "node:assert/strict";
import { join } from "node:path";
import { afterEach, describe, it } from "node:test";
import { Agent } from "../../src/acp/agent";
import { AgentExitedError } from "../../src/acp/connection";
import { describeError } from "../../src/acp/errors";
import type { Session } from "../../src/acp/session";
import { DONE, real, type Real, services } from "./realagent";

let open: Real[] = [];

function begin(...how: Parameters<typeof real>): Real {
  const made = real(...how);
  open.push(made);
  return made;
}

function updatesOf(session: Session): acp.SessionUpdate[] {
  const heard: acp.SessionUpdate[] = [];
  session.updates.on((update) => heard.push(update));
  return heard;
}

const say = (text: string): acp.ContentBlock[] => [{ type: "text", text }];
const words = (updates: acp.SessionUpdate[], kind: string): string =>
  updates.map((update) => (update.sessionUpdate === kind && "content" in update && update.content && "text" in update.content ? update.content.text : "")).join("");

afterEach(async () => {
  for (const each of open) await each.close();
  open = [];
});

describe("a real agent", () => {
  it("writes through the editor after a permission that shows the change", async () => {
    const path = (folder: string): string => join(folder, "a.txt");
    const { agent, place, services: editor, folder } = begin([{ tool_calls: [{ gate: "write_file", args: { path: "a.txt", content: "new\n" } }] }, DONE]);
    const session = await agent.newSession(place);
    const heard = updatesOf(session);
    assert.equal(session.settings.options.find((option) => option.id === "mode")?.currentValue, "sandboxed");
    await session.setMode("ask");
    const reply = await session.prompt(say("Write."));
    assert.equal(reply.stopReason, "end_turn");
    assert.deepEqual([...editor.written], [[path(folder), "new\n"]]);
    const content = editor.asked[0]?.toolCall.content?.[0];
    assert.equal(content?.type === "diff" && content.newText, "new\n");
    assert.equal(words(heard, "agent_message_chunk"), "All done.");
    assert.ok(session.settings.commands.some((command) => command.name === "wards"));
    assert.equal(session.settings.title, "Write");
  });

  it("changes the mode, and tells it", async () => {
    const { agent, place, services: editor } = begin([{ tool_calls: [{ gate: "write_file", args: { path: "a.txt", content: "" } }] }, DONE]);
    const session = await agent.newSession(place);
    await session.setOption("mode", "read-only");
    assert.equal(session.settings.modes?.currentModeId, "read-only");
    await session.prompt(say("Write."));
    assert.deepEqual([editor.asked.length, editor.written.size], [0, 0]);
    await session.setMode("ask");
    assert.equal(session.settings.options.find((option) => option.id === "mode")?.currentValue, "ask");
  });

  it("cancels a prompt at once", async () => {
    const { agent, place } = begin([{ delay_ms: 60_000, content: "late" }, DONE]);
    const session = await agent.newSession(place);
    const reply = session.prompt(say("Wait."));
    setTimeout(() => void session.cancel(), 200);
    assert.equal((await reply).stopReason, "cancelled");
    assert.equal((await session.prompt(say("And now?"))).stopReason, "end_turn");
  });

  it("lists, loads, forks and deletes sessions in another process", async () => {
    const first = begin([{ tool_calls: [{ gate: "done", args: { answer: "One." } }] }, { tool_calls: [{ gate: "done", args: { answer: "Two." } }] }]);
    const session = await first.agent.newSession(first.place);
    const turn = ((await session.prompt(say("First."))) as { _meta?: { cantrip?: { turn?: string } } })._meta?.cantrip?.turn;
    await session.prompt(say("Second."));
    await first.agent.stop();

    const agent = first.again();
    assert.deepEqual((await agent.listSessions(first.folder)).map((each) => [each.sessionId, each.title]), [[session.id, "First"]]);
    let past: acp.SessionUpdate[] = [];
    await agent.loadSession(session.id, first.place, (loaded) => { past = updatesOf(loaded); });
    assert.equal(words(past, "user_message_chunk"), "First.Second.");
    const fork = await agent.forkSession(session.id, first.place, turn);
    assert.notEqual(fork, session.id);
    await agent.loadSession(fork, first.place, (loaded) => { past = updatesOf(loaded); });
    assert.equal(words(past, "user_message_chunk"), "First.");
    await agent.deleteSession(fork);
    assert.deepEqual((await agent.listSessions(first.folder)).map((each) => each.sessionId), [session.id]);
  });

  it("goes on in a new process after it died, with the session as it was", async () => {
    const { agent, place } = begin([{ when: "Wait", delay_ms: 60_000, content: "late" }, { ...DONE, repeat: true }]);
    const session = await agent.newSession(place);
    const heard = updatesOf(session);
    await session.prompt(say("First."));
    const ended = new Promise<AgentExitedError>((resolve) => agent.ended.on(resolve));
    const reply = session.prompt(say("Wait."));
    const connection = await agent.connection();
    setTimeout(() => process.kill(connection.process.pid ?? 0, "SIGKILL"), 300);
    await assert.rejects(reply, (problem) => problem instanceof AgentExitedError && describeError(problem).action === "restart");
    assert.match((await ended).message, /ended by SIGKILL/);
    heard.length = 0;
    assert.equal((await session.prompt(say("Again."))).stopReason, "end_turn");
    // Resumed: nothing of the past is told twice.
    assert.equal(words(heard, "user_message_chunk"), "");
    assert.notEqual((await agent.connection()).process.pid, connection.process.pid);
  });

  it("leaves no process behind", async () => {
    const { agent, place } = begin([DONE]);
    await agent.newSession(place);
    const { process: child } = await agent.connection();
    await agent.stop();
    assert.equal(child.running, false);
    assert.match(await child.ended, /exit code 0/);
  });

  it("takes what was under way when it is stopped to its next process", async () => {
    const { agent, place } = begin([DONE]);
    const ended: unknown[] = [];
    agent.ended.on((problem) => ended.push(problem));
    // Stopped before its process starts, while it starts, and while requests run; from two sides at once.
    const early = agent.newSession(place);
    await agent.stop();
    const { process: first } = await agent.connection();
    const late = [agent.newSession(place), agent.listSessions(place.cwd)] as const;
    await Promise.all([agent.restart(), agent.restart(), agent.stop()]);
    assert.equal(first.running, false);
    const session = await early;
    const [other] = await Promise.all(late);
    assert.notEqual(session.id, other.id);
    assert.equal((await session.prompt(say("Go."))).stopReason, "end_turn");
    assert.deepEqual(ended, []);
  });

  it("starts a process only when the one before has ended", async () => {
    const { agent, place } = begin([DONE]);
    const lives: boolean[] = [];
    let before = (await agent.connection()).process;
    agent.onConnect.on((connection) => {
      lives.push(before.running);
      before = connection.process;
    });
    for (let time = 0; time < 3; time += 1) {
      void agent.stop();
      await agent.newSession(place);
    }
    assert.deepEqual(lives, [false, false, false]);
  });

  it("does not start any more when its window closes", async () => {
    const { agent, place } = begin([DONE]);
    const { process: child } = await agent.connection();
    // It may still be answered.
    const asked = agent.newSession(place).then(() => "answered", String);
    await agent.dispose();
    assert.match(await asked, /answered|closed/);
    await assert.rejects(agent.connection(), /closed/);
    assert.equal(child.running, false);
  });

  it("says what is wrong with a recipe, in the agent's words", async () => {
    const { agent, place } = begin([], { wards: [{ max_turnz: 1 }] });
    await assert.rejects(agent.newSession(place), (problem) => /max_turnz/.test(describeError(problem).detail));
  });

  it("masks secrets in its trace", async () => {
    const { agent, place, trace } = begin([DONE]);
    const session = await agent.newSession(place);
    await session.prompt(say("The key is sk-abcdefghijklmnop1234, and Bearer abcdefghijklmnop too."));
    const told_ = trace.join("\n");
    assert.match(told_, /→ session\/prompt \(request/);
    assert.match(told_, /← answer to session\/prompt \(request .*ms\)/);
    assert.doesNotMatch(told_, /abcdefghijklmnop/);
  });
});

describe("an agent that cannot be started", () => {
  const options = { version: "0", level: () => "off" as const, trace: () => undefined, log: () => undefined };
  const named = (command: string, ...args: string[]): Agent => new Agent(() => Promise.resolve({ command, args }), services(), { ...options, handshakeMs: 1500 });

  it("is named, with what to do", async () => {
    await assert.rejects(named("/nowhere/cantrip", "acp").connection(), (problem) => {
      const { title, detail, action } = describeError(problem);
      return title.includes("Cantrip") && detail.includes("/nowhere/cantrip acp") && action === "setUp";
    });
  });

  it("tells its last words", async () => {
    const script = "process.stderr.write('No module named cantrip_acp\\n'); process.exit(1)";
    await assert.rejects(named(process.execPath, "-e", script).connection(), (problem) => /exit code 1/.test(describeError(problem).detail) && describeError(problem).detail.includes("No module named"));
  });

  it("is ended where it never answers", async () => {
    await assert.rejects(named(process.execPath, "-e", "setInterval(() => {}, 1000)").connection(), /did not answer within 1.5 s/);
  });
});
