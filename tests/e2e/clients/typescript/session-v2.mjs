// The official TypeScript SDK in its build of the draft of version 2: two prompts, a permission, steering, a cancel, options, a resume.
// Prints what it saw as JSON.
//
//   node session-v2.mjs FOLDER COMMAND [ARGUMENT...]
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk/experimental/v2";

const [folder, command, ...argv] = process.argv.slice(2);
const agent = spawn(command, argv, { stdio: ["pipe", "pipe", "inherit"] });
const ended = new Promise((resolve) => agent.on("exit", (code, signal) => resolve({ code, signal })));
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));

const asked = [];
const updates = [];
let waiting = [];
const app = acp
  .client({ name: "tests" })
  .onRequest(acp.methods.client.session.requestPermission, async ({ params }) => {
    asked.push(params);
    const chosen = params.options.find((option) => option.kind === "allow_once");
    return { outcome: { outcome: "selected", optionId: chosen.optionId } };
  })
  .onNotification(acp.methods.client.session.update, async ({ params }) => {
    updates.push(params);
    waiting = waiting.filter((wanted) => !wanted(params));
  });
const until = (test) => new Promise((resolve) => waiting.push((params) => test(params.update) && (resolve(params.update), true)));

const seen = await app.connectWith(stream, async (ctx) => {
  const hello = await ctx.request(acp.methods.agent.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    info: { name: "tests", version: "1" },
    capabilities: {},
  });
  const refused = await ctx
    .request(acp.methods.agent.session.new, { cwd: "/no/such/folder" })
    .then(() => null, (error) => ({ code: error.code, message: error.message }));
  const opened = await ctx.request(acp.methods.agent.session.new, { cwd: folder });
  const { sessionId } = opened;
  await ctx.request(acp.methods.agent.session.setConfigOption, { sessionId, configId: "mode", type: "id", value: "ask" });
  const turn = async (text, during = async () => {}) => {
    const from = updates.length;
    const idle = until((update) => update.sessionUpdate === "state_update" && update.state === "idle");
    const other = during();
    const reply = await ctx.request(acp.methods.agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
    const state = await idle;
    await other;
    return { reply, state, updates: updates.slice(from).map((each) => each.update) };
  };
  const first = await turn("Say hello and make a file.");
  const meanwhile = {};
  const second = await turn("Run for a long time.", async () => {
    await until((update) => update.sessionUpdate === "terminal_output_chunk");
    const prompt = (text) => ({ sessionId, prompt: [{ type: "text", text }] });
    meanwhile.steered = await ctx.request("_session/steering", prompt("hurry"));
    const waiting = ctx
      .request(acp.methods.agent.session.prompt, { ...prompt("later"), _meta: { cantrip: { promptId: "later" } } })
      .then(() => null, (error) => ({ code: error.code }));
    meanwhile.queue = await ctx.request("_cantrip/queue/send_now", { sessionId, id: "later" });
    await ctx.request("_cantrip/queue/remove", { sessionId, id: "later" });
    meanwhile.removed = await waiting;
    await ctx.notify(acp.methods.agent.session.cancel, { sessionId });
  });
  const option = await ctx.request(acp.methods.agent.session.setConfigOption, { sessionId, configId: "mode", type: "id", value: "read-only" });
  await ctx.request(acp.methods.agent.session.close, { sessionId });
  const list = await ctx.request(acp.methods.agent.session.list, { cwd: folder });
  const before = updates.length;
  const stateOfResumed = until((update) => update.sessionUpdate === "state_update");
  const resumed = await ctx.request(acp.methods.agent.session.resume, { sessionId, cwd: folder, replayFrom: { type: "start" } });
  await stateOfResumed;
  const history = updates.slice(before).map((each) => each.update);
  const third = await turn("And now?");
  const changes = await ctx.request("_cantrip/changes", { sessionId, since: "all" });
  return { hello, refused, opened, first, second, meanwhile, changes, option, list, resumed, history, third };
});

agent.stdin.end();
console.log(JSON.stringify({ ...seen, asked, ended: await ended }));
