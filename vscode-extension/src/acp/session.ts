import { methods } from "@agentclientprotocol/sdk/unstable";
import type * as acp from "@agentclientprotocol/sdk/unstable";
import type { QueryData } from "../knowledge/data";
import type { Connection } from "./connection";
import { Signal } from "./signal";

/** The state of a session from replies and updates, without its messages. */
export interface Settings {
  readonly title?: string;
  readonly modes?: acp.SessionModeState;
  readonly options: readonly acp.SessionConfigOption[];
  readonly commands: readonly acp.AvailableCommand[];
  readonly usage?: { readonly used: number; readonly size: number; readonly cost?: acp.Cost };
  /** Why the first prompt will ask for trust: the recipe of the workspace is not trusted. */
  readonly untrusted?: string;
}

export interface Place {
  readonly cwd: string;
  readonly directories: readonly string[];
  /** MCP servers of the editor's settings. */
  readonly servers?: readonly acp.McpServer[];
}

/**
 * One session of the agent. It outlives the agent process: `connect` returns the current connection, and a session of an
 * earlier connection is resumed before it is used.
 */
export class Session {
  readonly updates = new Signal<acp.SessionUpdate>();
  readonly changed = new Signal<Settings>();
  settings: Settings = { options: [], commands: [] };
  private muted = false;
  private prompting = false;

  constructor(
    readonly id: string,
    readonly workspaceLocation: Place,
    private connection: Connection,
    private readonly connect: () => Promise<Connection>,
  ) {}

  get running(): boolean {
    return this.prompting;
  }

  /** Set the state from a reply. */
  initialized(reply: {
    modes?: acp.SessionModeState | null;
    configOptions?: readonly acp.SessionConfigOption[] | null;
    _meta?: Record<string, unknown> | null;
  }): void {
    const about = reply._meta?.cantrip as { untrusted?: unknown } | undefined;
    this.set({
      modes: reply.modes ?? this.settings.modes,
      options: reply.configOptions ?? this.settings.options,
      untrusted: typeof about?.untrusted === "string" ? about.untrusted : undefined,
    });
  }

  onUpdate(update: acp.SessionUpdate): void {
    switch (update.sessionUpdate) {
      case "available_commands_update":
        return this.set({ commands: update.availableCommands });
      case "current_mode_update":
        return this.setCurrentMode(update.currentModeId);
      case "config_option_update":
        return this.set({ options: update.configOptions, untrusted: undefined });
      case "session_info_update":
        return update.title === undefined ? undefined : this.set({ title: update.title ?? undefined });
      case "usage_update":
        return this.set({ usage: { used: update.used, size: update.size, cost: update.cost ?? undefined } });
      default:
        if (!this.muted) this.updates.fire(update);
    }
  }

  async prompt(content: readonly acp.ContentBlock[]): Promise<acp.PromptResponse> {
    this.prompting = true;
    try {
      const connection = await this.ensureConnected();
      return await connection.request(methods.agent.session.prompt, { sessionId: this.id, prompt: [...content] });
    } finally {
      this.prompting = false;
    }
  }

  /** What its next query will contain (`_cantrip/context`). Does not open the session again if the agent has ended. */
  async nextQuery(): Promise<QueryData> {
    return this.connection.requestExtension<QueryData>("_cantrip/context", { sessionId: this.id });
  }

  async cancel(): Promise<void> {
    await this.connection.cancel(this.id);
  }

  async setMode(modeId: string): Promise<void> {
    const connection = await this.ensureConnected();
    await connection.request(methods.agent.session.setMode, { sessionId: this.id, modeId });
    this.setCurrentMode(modeId);
  }

  async setOption(configId: string, value: string | boolean): Promise<void> {
    const connection = await this.ensureConnected();
    const chosen = typeof value === "boolean" ? ({ type: "boolean", value } as const) : { value };
    const reply = await connection.request(methods.agent.session.setConfigOption, { sessionId: this.id, configId, ...chosen });
    this.set({ options: reply.configOptions });
  }

  /** The connection in which this session is open. */
  async ensureConnected(): Promise<Connection> {
    const connection = await this.connect();
    if (connection === this.connection) return connection;
    const params = { sessionId: this.id, cwd: this.workspaceLocation.cwd, additionalDirectories: [...this.workspaceLocation.directories], mcpServers: [...(this.workspaceLocation.servers ?? [])] };
    if (connection.hasCapability("resume")) {
      this.initialized(await connection.request(methods.agent.session.resume, params));
    } else {
      // The transcript already contains the replayed updates.
      this.muted = true;
      try {
        this.initialized(await connection.request(methods.agent.session.load, params));
      } finally {
        this.muted = false;
      }
    }
    this.connection = connection;
    return connection;
  }

  private setCurrentMode(currentModeId: string): void {
    const modes = this.settings.modes;
    const options = this.settings.options.map((option) =>
      option.category === "mode" && option.type === "select" ? { ...option, currentValue: currentModeId } : option,
    );
    this.set({ modes: modes && { ...modes, currentModeId }, options });
  }

  private set(change: Partial<Settings>): void {
    this.settings = { ...this.settings, ...change };
    this.changed.fire(this.settings);
  }
}
