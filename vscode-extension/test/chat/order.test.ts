/** What the page of the chat has read when an answer ends, for pieces of an answer that come at any distance from each other. */
import type * as acp from "@agentclientprotocol/sdk/unstable";
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { Connection } from "../../src/acp/connection";
import type { AgentProcess } from "../../src/acp/process";
import { Session } from "../../src/acp/session";
import { PageChannel } from "../../src/chat/channel";
import { Conversation } from "../../src/chat/conversation";
import type { HostMessage, State } from "../../src/chat/messages";
import { services } from "../acp/realagent";

const SESSION = "s1";
const DELAYS = [0, 1, 10, 24, 25, 26, 50, 100];

type Said = { readonly update: acp.SessionUpdate } | "reply";

const text = (words: string, messageId = "t1:0"): Said => ({ update: { sessionUpdate: "agent_message_chunk", content: { type: "text", text: words }, messageId } });
const thought = (words: string): Said => ({ update: { sessionUpdate: "agent_thought_chunk", content: { type: "text", text: words }, messageId: "t1:0:thought" } });
const steered = (words: string): Said => ({ update: { sessionUpdate: "user_message_chunk", content: { type: "text", text: words }, messageId: "u1", _meta: { cantrip: { steering: true } } } });
const notice: Said = { update: { sessionUpdate: "notice", severity: "info", title: "Asking again" } as unknown as acp.SessionUpdate };
const plan: Said = { update: { sessionUpdate: "plan", entries: [{ content: "x", status: "pending", priority: "low" }] } };
const title: Said = { update: { sessionUpdate: "session_info_update", title: "A title" } as unknown as acp.SessionUpdate };
const call: Said = { update: { sessionUpdate: "tool_call", toolCallId: "t1.c1", title: "ls", kind: "execute", status: "in_progress" } };
const output: Said = { update: { sessionUpdate: "tool_call_update", toolCallId: "t1.c1", _meta: { terminal_output: { data: "a.py\n" } } } };
const called: Said = { update: { sessionUpdate: "tool_call_update", toolCallId: "t1.c1", status: "completed" } };

/** What an agent says to one prompt. The pieces of a message fit together only if nothing is lost, moved or torn. */
const ANSWERS: Readonly<Record<string, readonly Said[]>> = {
  "text, reply": [text("uses `le"), text("n`."), "reply"],
  "code, reply": [text("```bash\nl"), text("s -la"), text(" && echo hi\n"), text("```"), "reply"],
  "thought, text, reply": [thought("Let me "), thought("see."), text("Fi"), text("ne."), "reply"],
  "text, call, text, reply": [text("I lo"), text("ok.", "t1:0"), call, output, called, text("The e", "t2:0"), text("nd.", "t2:0"), "reply"],
  "text around a notice": [text("ba"), notice, text("sh"), "reply"],
  "text around a plan and a title": [text("ba"), plan, text("sh"), title, text("!"), "reply"],
  "text around a message of the user": [text("ba"), steered("Use tabs."), text("sh"), "reply"],
  "reply, late text": [text("END"), "reply", text("7.")],
};

/** An agent in this process, which says `said` to each prompt, `delay` ms before each piece or only before the one at `at`. */
function agent(said: readonly Said[], delay: number, at?: number): AgentProcess {
  const toAgent = new TransformStream<Uint8Array, Uint8Array>();
  const fromAgent = new TransformStream<Uint8Array, Uint8Array>();
  const writer = fromAgent.writable.getWriter();
  const write = (message: object): Promise<void> => writer.write(new TextEncoder().encode(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`));
  const serve = async (): Promise<void> => {
    let rest = "";
    for await (const bytes of toAgent.readable as unknown as AsyncIterable<Uint8Array>) {
      rest += new TextDecoder().decode(bytes);
      const lines = rest.split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        const { id, method } = JSON.parse(line) as { id: number; method: string };
        if (method === "initialize") await write({ id, result: { protocolVersion: 1, agentCapabilities: {} } });
        if (method !== "session/prompt") continue;
        for (const [number, each] of said.entries()) {
          if (at === undefined || at === number) await pause(delay);
          if (each === "reply") await write({ id, result: { stopReason: "end_turn" } });
          else await write({ method: "session/update", params: { sessionId: SESSION, update: each.update } });
        }
      }
    }
  };
  void serve();
  return { input: toAgent.writable, output: fromAgent.readable, ended: new Promise(() => undefined), stderrTail: [], stop: () => Promise.resolve() } as unknown as AgentProcess;
}

/** The page, as far as order matters: what it shows after each message of the host. */
class Page {
  readonly shown: { id: string; type: string; text: string }[] = [];
  /** What it showed when it heard that the answer had ended. */
  atEnd: string[] | undefined;

  get texts(): string[] {
    return this.shown.filter((each) => each.type === "agent" || each.type === "thought").map((each) => each.text);
  }

  hear(message: HostMessage): void {
    if (message.type === "state" && !message.state.running) this.atEnd ??= this.texts;
    if (message.type !== "ops") return;
    for (const op of message.ops) {
      if (op.op === "add") this.shown.push({ id: op.item.id, type: op.item.type, text: "text" in op.item ? op.item.text : "" });
      const item = this.shown.find((each) => op.op === "text" && each.id === op.id);
      if (item !== undefined && op.op === "text") item.text += op.text;
    }
  }
}

/** The messages as the wire has them: the pieces of one id are one text. */
function wire(said: readonly Said[]): string[] {
  const messages = new Map<string, string>();
  for (const each of said) {
    if (each === "reply" || (each.update.sessionUpdate !== "agent_message_chunk" && each.update.sessionUpdate !== "agent_thought_chunk")) continue;
    const { messageId, content } = each.update;
    messages.set(messageId ?? "", (messages.get(messageId ?? "") ?? "") + (content.type === "text" ? content.text : ""));
  }
  return [...messages.values()];
}

async function read(said: readonly Said[], delay: number, at?: number): Promise<Page> {
  const made = services();
  const connection = await Connection.open(agent(said, delay, at), { ...made, updated: (_, update) => { session.onUpdate(update); }, queueChanged: () => undefined }, { version: "0", level: () => "off", trace: () => undefined });
  const session = new Session(SESSION, { cwd: "/p", directories: [] }, connection, () => Promise.resolve(connection));
  const conversation = new Conversation("/p");
  conversation.attach(session);
  const page = new Page();
  const channel = new PageChannel((message) => { page.hear(structuredClone(message)); });
  const state = (): void => { channel.send({ type: "state", state: { running: conversation.busy } as State }); };
  conversation.transcript.ops.on((op) => { channel.queue(op); });
  conversation.transcript.planned.on(state);
  conversation.changed.on(state);
  conversation.queueChanged.on(state);
  await conversation.prompt("Go", [], () => Promise.resolve([{ type: "text", text: "Go" }]), () => Promise.resolve(session), () => Promise.resolve(false));
  // What comes after the reply has nothing to wait for but itself; on a busy machine that takes longer than its delay.
  const length = wire(said).join("").length;
  for (const end = Date.now() + 20_000; page.texts.join("").length < length && Date.now() < end;) {
    await pause(5);
    channel.flush();
  }
  channel.flush();
  conversation.dispose();
  return page;
}

describe("the answer on the page", () => {
  for (const [what, said] of Object.entries(ANSWERS)) {
    it(`is that on the wire, whatever the distance between its pieces: ${what}`, async () => {
      const late = said.at(-1) !== "reply";
      await Promise.all(
        DELAYS.flatMap((delay) => [undefined, ...said.keys()].map(async (at) => {
          const page = await read(said, delay, at);
          assert.deepEqual(page.texts, wire(said), `${delay} ms before ${at === undefined ? "each piece" : `piece ${at}`}`);
          if (!late) assert.deepEqual(page.atEnd, wire(said), `at the end: ${delay} ms before ${at === undefined ? "each piece" : `piece ${at}`}`);
        })),
      );
    });
  }
});

describe("a channel to a page", () => {
  it("tells what came before a message before it, and nothing twice after everything was sent again", async () => {
    const heard: HostMessage[] = [];
    const channel = new PageChannel((message) => { heard.push(message); });
    const item = { type: "agent", id: "i1", text: "a" } as const;
    channel.queue({ op: "add", item });
    channel.queue({ op: "text", id: "i1", text: "b" });
    channel.queue({ op: "text", id: "i1", text: "c" });
    channel.send({ type: "focus" });
    assert.deepEqual(heard, [{ type: "ops", ops: [{ op: "add", item }, { op: "text", id: "i1", text: "bc" }] }, { type: "focus" }]);
    channel.queue({ op: "text", id: "i1", text: "d" });
    channel.clear();
    await pause(60);
    assert.equal(heard.length, 2);
  });
});
