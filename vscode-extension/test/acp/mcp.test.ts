import assert from "node:assert/strict";
import { it } from "node:test";
import { mcpStatus, serversOf } from "../../src/acp/mcp";

it("reads the servers of the settings, and leaves out what is none", () => {
  const resolve = (text: string): string => text.replace("${workspaceFolder}", "/w");
  const setting = {
    notes: { command: "npx", args: ["-y", "${workspaceFolder}/n", 5], env: { TOKEN: "a", WRONG: 1 } },
    issues: { url: "https://x/mcp", headers: { Authorization: "Bearer b" } },
    old: { type: "sse", url: "https://x/sse" },
    empty: {},
    none: null,
    wrong: { command: 5 },
  };
  assert.deepEqual(serversOf(setting, resolve), [
    { name: "notes", command: "npx", args: ["-y", "/w/n"], env: [{ name: "TOKEN", value: "a" }] },
    { type: "http", name: "issues", url: "https://x/mcp", headers: [{ name: "Authorization", value: "Bearer b" }] },
    { type: "sse", name: "old", url: "https://x/sse", headers: [] },
  ]);
  for (const nothing of [undefined, null, "x", 5, []]) assert.deepEqual(serversOf(nothing, resolve), []);
});

it("reads what the agent tells of a server, whatever is missing", () => {
  const tools = [{ gate: "notes.add", description: "Adds.", usable: true }];
  const given = { name: "notes", origin: "recipe", state: "running", command: "npx", args: ["-y", "n"], sandboxed: true, error: "", output: "ready", tools };
  assert.deepEqual(mcpStatus(given), { name: "notes", origin: "recipe", state: "running", what: "npx -y n", sandboxed: true, error: "", output: "ready", tools });
  const little = { name: "", origin: "client", state: "not_started", what: "https://x/", sandboxed: false, error: "", output: "", tools: [] };
  assert.deepEqual(mcpStatus({ state: "asleep", url: "https://x/" }), little);
  assert.equal(mcpStatus(null).state, "not_started");
});
