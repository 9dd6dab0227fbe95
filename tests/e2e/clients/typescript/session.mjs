// The official TypeScript SDK as a client: one session, two prompts, a cancel. Prints what it saw as JSON.
//
//   node session.mjs FOLDER COMMAND [ARGUMENT...]
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const [folder, command, ...argv] = process.argv.slice(2);
const agent = spawn(command, argv, { stdio: ["pipe", "pipe", "inherit"] });
const ended = new Promise((resolve) => agent.on("exit", (code, signal) => resolve({ code, signal })));
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));

const app = acp.client({ name: "tests" }).onRequest(acp.methods.client.session.requestPermission, async ({ params }) => {
  const chosen = params.options.find((option) => option.kind === "allow_once");
  return { outcome: { outcome: "selected", optionId: chosen.optionId } };
});
const seen = await app.connectWith(stream, async (ctx) => {
  const hello = await ctx.request(acp.methods.agent.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: {},
    clientInfo: { name: "tests", version: "1" },
  });
  const refused = await ctx
    .request(acp.methods.agent.session.new, { cwd: "relative", mcpServers: [] })
    .then(() => null, (error) => ({ code: error.code, message: error.message }));
  return await ctx.buildSession(folder).withSession(async (session) => {
    const turn = async (prompt, onUpdate = () => {}) => {
      const updates = [];
      const reply = session.prompt(prompt);
      for (;;) {
        const message = await session.nextUpdate();
        if (message.kind === "stop") return { stopReason: (await reply).stopReason, updates };
        updates.push(message.update);
        await onUpdate(message.update);
      }
    };
    const first = await turn("Say hello and make a file.");
    let told = false;
    const seenWhileRunning = {};
    const second = await turn("Run for a long time.", async (update) => {
      if (!told && update.sessionUpdate === "tool_call_update" && update.status === "in_progress") {
        told = true;
        const { sessionId } = session;
        const prompt = (text) => ({ sessionId, prompt: [{ type: "text", text }] });
        seenWhileRunning.steered = await ctx.request("_session/steering", prompt("hurry"));
        const waiting = ctx.request(acp.methods.agent.session.prompt, {
          ...prompt("later"),
          _meta: { cantrip: { promptQueueing: true, promptId: "later" } },
        });
        seenWhileRunning.queue = await ctx.request("_cantrip/queue/list", { sessionId });
        await ctx.request("_cantrip/queue/remove", { sessionId, id: "later" });
        seenWhileRunning.removed = await waiting;
        await ctx.notify(acp.methods.agent.session.cancel, { sessionId: session.sessionId });
      }
    });
    const third = await turn([
      { type: "text", text: "And now? " },
      { type: "resource_link", name: "notes", uri: `file://${folder}/notes` },
    ]);
    return { hello, refused, first, second, third, seenWhileRunning };
  });
});

agent.stdin.end();
console.log(JSON.stringify({ ...seen, ended: await ended }));
