// The official TypeScript SDK as a client that lends its files, one of them open and not saved, and its terminals.
//
//   node services.mjs FOLDER COMMAND [ARGUMENT...]
import { spawn, spawnSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const [folder, command, ...argv] = process.argv.slice(2);
const agent = spawn(command, argv, { stdio: ["pipe", "pipe", "inherit"] });
const ended = new Promise((resolve) => agent.on("exit", (code, signal) => resolve({ code, signal })));
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
const unsaved = new Map([[`${folder}/a.txt`, "# not saved\ntyped\n"]]);
const released = [];
let ran;

const { fs, terminal, session } = acp.methods.client;
const app = acp
  .client({ name: "tests" })
  .onRequest(session.requestPermission, async ({ params }) => {
    const chosen = params.options.find((option) => option.kind === "allow_once");
    return { outcome: { outcome: "selected", optionId: chosen.optionId } };
  })
  .onRequest(fs.readTextFile, async ({ params }) => {
    const lines = (unsaved.get(params.path) ?? readFileSync(params.path, "utf8")).split(/(?<=\n)/);
    const first = (params.line ?? 1) - 1;
    return { content: lines.slice(first, params.limit == null ? undefined : first + params.limit).join("") };
  })
  .onRequest(fs.writeTextFile, async ({ params }) => {
    unsaved.delete(params.path);
    writeFileSync(params.path, params.content);
    return {};
  })
  .onRequest(terminal.create, async ({ params }) => {
    ran = spawnSync(params.command, params.args, { cwd: params.cwd, encoding: "utf8" });
    return { terminalId: "t1" };
  })
  .onRequest(terminal.waitForExit, async () => ({ exitCode: ran.status, signal: null }))
  .onRequest(terminal.output, async () => ({ output: ran.stdout, truncated: false }))
  .onRequest(terminal.release, async ({ params }) => {
    released.push(params.terminalId);
    return {};
  });

const seen = await app.connectWith(stream, async (ctx) => {
  await ctx.request(acp.methods.agent.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: { fs: { readTextFile: true, writeTextFile: true }, terminal: true },
    clientInfo: { name: "tests", version: "1" },
  });
  return await ctx.buildSession(folder).withSession(async (opened) => {
    const updates = [];
    const reply = opened.prompt("Go.");
    for (;;) {
      const message = await opened.nextUpdate();
      if (message.kind === "stop") return { stopReason: (await reply).stopReason, updates };
      updates.push(message.update);
    }
  });
});

agent.stdin.end();
console.log(JSON.stringify({ ...seen, released, ended: await ended }));
