/** A real `cantrip acp` on a scripted recipe, with hands that answer for the editor. */
import type * as acp from "@agentclientprotocol/sdk/unstable";
import { existsSync, mkdtempSync, writeFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { Agent, type EditorServices } from "../../src/acp/agent";
import type { AgentCommand } from "../../src/acp/command";

export interface Real {
  readonly agent: Agent;
  readonly folder: string;
  readonly place: { readonly cwd: string; readonly directories: readonly string[] };
  readonly services: Services;
  readonly trace: string[];
  readonly command: AgentCommand;
  /** Another agent on the same state, as after a restart of the editor. */
  again(): Agent;
  close(): Promise<void>;
}

/** What the editor answers; a test changes what it wants otherwise. */
export interface Services extends EditorServices {
  answer: string;
  readonly asked: acp.RequestPermissionRequest[];
  readonly written: Map<string, string>;
}

export const DONE = { tool_calls: [{ gate: "done", args: { answer: "All done." } }] };

export function program(): string {
  const named = process.env.CANTRIP;
  if (named !== undefined && named !== "") return named;
  const near = resolve("..", ".venv", "bin", "cantrip");
  return existsSync(near) ? near : "cantrip";
}

export function services(): Services {
  const asked: acp.RequestPermissionRequest[] = [];
  const written = new Map<string, string>();
  const made: Services = {
    answer: "allow_once",
    asked,
    written,
    permission: (request) => {
      asked.push(request);
      return Promise.resolve({ outcome: { outcome: "selected", optionId: made.answer } });
    },
    readFile: ({ path }) => Promise.resolve({ content: written.get(path) ?? "typed, and not saved\n" }),
    writeFile: ({ path, content }) => {
      written.set(path, content);
      return Promise.resolve({});
    },
    elicit: () => Promise.resolve({ action: "decline" }),
    elicited: () => undefined,
    terminals: {
      create: () => Promise.reject(new Error("no terminals here")),
      output: () => ({ output: "", truncated: false }),
      waitForExit: () => Promise.resolve({ exitCode: 0 }),
      kill: () => undefined,
      release: () => undefined,
    },
  };
  return made;
}

export function real(responses: readonly unknown[], circle: Record<string, unknown> = {}): Real {
  const home = mkdtempSync(join(tmpdir(), "cantrip-chat-"));
  const folder = mkdtempSync(join(tmpdir(), "cantrip-chat-folder-"));
  const recipe = join(home, "test.cantrip.yaml");
  // JSON is YAML.
  writeFileSync(
    recipe,
    JSON.stringify({
      name: "test",
      crystal: { provider: "scripted", responses },
      circle: { medium: "conversation", gates: ["done", "echo", "read_file", "write_file"], wards: [{ max_turns: 20 }], ...circle },
    }),
  );
  const command: AgentCommand = { command: program(), args: ["acp", "--recipe", recipe, "--state-dir", join(home, "state")] };
  const made = services();
  const trace: string[] = [];
  const agents: Agent[] = [];
  const start = (): Agent => {
    const agent = new Agent(() => Promise.resolve(command), made, {
      version: "0.0.0",
      level: () => "verbose",
      trace: (line) => trace.push(line),
      log: () => undefined,
    });
    agents.push(agent);
    return agent;
  };
  return {
    agent: start(),
    folder,
    place: { cwd: folder, directories: [] },
    services: made,
    trace,
    command,
    again: start,
    close: async () => {
      for (const agent of agents) await agent.stop();
      await rm(home, { recursive: true, force: true });
      await rm(folder, { recursive: true, force: true });
    },
  };
}
