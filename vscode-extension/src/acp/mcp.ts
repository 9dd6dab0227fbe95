/** MCP servers: those that the editor's settings name, as the protocol wants them, and what the agent tells of a session's. */
import type * as acp from "@agentclientprotocol/sdk/unstable";

/** The state of a server (`_cantrip/mcp/list`). */
export interface McpStatus {
  readonly name: string;
  readonly origin: "recipe" | "client";
  readonly state: "running" | "failed" | "stopped" | "not_started";
  /** Its program with arguments, or its address. */
  readonly what: string;
  readonly sandboxed: boolean;
  readonly error: string;
  /** The end of its standard error. */
  readonly output: string;
  /** A tool is `usable` if the session has its gate. */
  readonly tools: readonly { readonly gate: string; readonly description: string; readonly usable: boolean }[];
}

const STATES = ["running", "failed", "stopped", "not_started"] as const;

/** Read the agent's data; what is missing is empty. */
export function mcpStatus(value: unknown): McpStatus {
  const given = (value ?? {}) as Record<string, unknown>;
  const text = (name: string): string => (typeof given[name] === "string" ? given[name] : "");
  const tools = (Array.isArray(given.tools) ? given.tools : []) as Record<string, unknown>[];
  const args = Array.isArray(given.args) ? given.args.map(String) : [];
  return {
    name: text("name"),
    origin: given.origin === "recipe" ? "recipe" : "client",
    state: STATES.find((each) => each === given.state) ?? "not_started",
    what: text("url") || [text("command"), ...args].join(" "),
    sandboxed: given.sandboxed === true,
    error: text("error"),
    output: text("output"),
    tools: tools.map((tool) => ({ gate: String(tool.gate), description: String(tool.description), usable: tool.usable === true })),
  };
}

/**
 * The servers of the setting `cantrip.chat.mcpServers`, which has the form of VS Code's `mcp.json`: by name, each with
 * `command`, `args` and `env`, or with `url`, `headers` and `type` (http or sse). `resolve` fills in variables such as
 * `${workspaceFolder}` and `${env:NAME}`. What is neither is left out.
 */
export function serversOf(setting: unknown, resolve: (text: string) => string): acp.McpServer[] {
  if (setting === null || typeof setting !== "object") return [];
  const pairs = (value: unknown): { name: string; value: string }[] =>
    value !== null && typeof value === "object" ? Object.entries(value).flatMap(([name, each]) => (typeof each === "string" ? [{ name, value: resolve(each) }] : [])) : [];
  return Object.entries(setting as Record<string, unknown>).flatMap(([name, value]): acp.McpServer[] => {
    const given = (value ?? {}) as Record<string, unknown>;
    if (typeof given.command === "string" && given.command !== "") {
      const args = (Array.isArray(given.args) ? given.args : []).filter((each): each is string => typeof each === "string").map(resolve);
      return [{ name, command: resolve(given.command), args, env: pairs(given.env) }];
    }
    if (typeof given.url === "string" && given.url !== "") return [{ type: given.type === "sse" ? "sse" : "http", name, url: resolve(given.url), headers: pairs(given.headers) }];
    return [];
  });
}
