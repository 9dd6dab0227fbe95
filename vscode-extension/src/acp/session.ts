import { methods, RequestError } from "@agentclientprotocol/sdk/unstable";
import type * as acp from "@agentclientprotocol/sdk/unstable";
import type { QueryData } from "../knowledge/data";
import { type ChangedFile, changedFiles, type RestoreResult, restoreResult } from "./changes";
import { type Connection, type QueuedPrompt, readQueue } from "./connection";
import { Signal } from "./signal";

const INVALID_PARAMS = -32602;

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

/** Changes of a file: all of them, or one hunk. `version` is that of the content that was shown. */
export interface FileChoice {
  readonly path?: string;
  readonly hunk?: number;
  readonly version?: string;
}

/** A command that goes on in the background. `state` says in words whether it runs, or how it ended. */
export interface Service {
  readonly id: string;
  readonly command: string;
  readonly state: string;
  readonly running: boolean;
}

function readServices(reply: { readonly services?: unknown }): readonly Service[] {
  const given = (Array.isArray(reply.services) ? reply.services : []) as Record<string, unknown>[];
  return given.map((each) => ({ id: String(each.id), command: String(each.command), state: String(each.state), running: each.running === true }));
}

/**
 * One session of the agent. It outlives the agent process: `use` gives the current connection, and a session of an earlier
 * connection is resumed before it is used.
 */
export class Session {
  readonly updates = new Signal<acp.SessionUpdate>();
  readonly changed = new Signal<Settings>();
  readonly queueChanged = new Signal<void>();
  settings: Settings = { options: [], commands: [] };
  /** The prompts that wait for the running one. */
  queue: readonly QueuedPrompt[] = [];
  /** Why the last answer of a session that was loaded is incomplete: then an empty prompt lets it go on. */
  incomplete: string | undefined;
  private muted = false;
  private prompting = 0;

  constructor(
    readonly id: string,
    readonly workspaceLocation: Place,
    private connection: Connection,
    private readonly use: (work: (connection: Connection) => Promise<Connection>) => Promise<Connection>,
  ) {}

  get running(): boolean {
    return this.prompting > 0;
  }

  /** Set the state from a reply. */
  initialized(reply: {
    modes?: acp.SessionModeState | null;
    configOptions?: readonly acp.SessionConfigOption[] | null;
    _meta?: Record<string, unknown> | null;
  }): void {
    const about = reply._meta?.cantrip as { untrusted?: unknown; incomplete?: unknown } | undefined;
    this.incomplete = typeof about?.incomplete === "string" ? about.incomplete : undefined;
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

  /**
   * Send a prompt. During another one it waits in the queue under this id; the reply comes when it has run, or with
   * `_meta.cantrip.queued` if it never ran by itself. `sent` is called when nothing can be sent before it any more.
   */
  async prompt(content: readonly acp.ContentBlock[], id?: string, sent: () => void = () => undefined): Promise<acp.PromptResponse> {
    this.prompting += 1;
    try {
      const connection = await this.ensureConnected();
      const reply = connection.request(methods.agent.session.prompt, { sessionId: this.id, prompt: [...content], ...(id === undefined ? {} : { _meta: { cantrip: { promptId: id } } }) });
      sent();
      return await reply;
    } finally {
      this.prompting -= 1;
    }
  }

  /** Whether a prompt can wait for the running one. */
  get queuesPrompts(): boolean {
    return this.connection.queuesPrompts;
  }

  setQueue(prompts: readonly QueuedPrompt[]): void {
    this.queue = prompts;
    this.queueChanged.fire();
  }

  async editQueued(id: string, prompt: readonly acp.ContentBlock[]): Promise<void> {
    await this.changeQueue("edit", { id, prompt });
  }

  async removeQueued(id: string): Promise<void> {
    await this.changeQueue("remove", { id });
  }

  /** Give a prompt that waits to the entity before its next query. */
  async sendQueuedNow(id: string): Promise<void> {
    await this.changeQueue("send_now", { id });
  }

  get stopsCalls(): boolean {
    return this.connection.stopsCalls;
  }

  /** Stop one running call. A call that has ended meanwhile needs no stop. */
  async stopCall(toolCallId: string): Promise<void> {
    try {
      await this.connection.requestExtension("_cantrip/tool_call/cancel", { sessionId: this.id, toolCallId });
    } catch (problem) {
      if (!(problem instanceof RequestError) || problem.code !== INVALID_PARAMS) throw problem;
    }
  }

  private async changeQueue(action: "edit" | "remove" | "send_now", params: object): Promise<void> {
    this.setQueue(readQueue(await this.connection.requestExtension(`_cantrip/queue/${action}`, { sessionId: this.id, ...params })).prompts);
  }

  /** The files that the entity changed and the user has not kept. */
  async changedFiles(): Promise<ChangedFile[]> {
    return changedFiles(await this.connection.requestExtension("_cantrip/changes", { sessionId: this.id }));
  }

  /** Both texts of a changed file: null if there is none, or if it is not a text. */
  async changedTexts(path: string): Promise<{ readonly before: string | null; readonly after: string | null } | undefined> {
    const reply = await this.connection.requestExtension<{ files?: { path?: unknown; before?: unknown; after?: unknown }[] }>("_cantrip/changes", { sessionId: this.id, texts: true });
    const found = reply.files?.find((each) => each.path === path);
    const text = (value: unknown): string | null => (typeof value === "string" ? value : null);
    return found && { before: text(found.before), after: text(found.after) };
  }

  /** Keep changes: all, those of a file, or one hunk of it. */
  async keepChanges(choice: FileChoice = {}): Promise<void> {
    await (await this.ensureConnected()).requestExtension("_cantrip/keep", { sessionId: this.id, ...choice });
  }

  /** Undo changes, take the last restore back, or restore the files as they were after a turn (0: at the start). */
  async restoreFiles(action: "undo" | "redo" | "restore", how: FileChoice & { readonly turn?: string | 0; readonly since?: "start"; readonly force?: boolean; readonly dryRun?: boolean } = {}): Promise<RestoreResult> {
    return restoreResult(await (await this.ensureConnected()).requestExtension(`_cantrip/${action}`, { sessionId: this.id, ask: false, ...how }));
  }

  /** Its services (`_cantrip/services/list`). */
  async services(): Promise<readonly Service[]> {
    return readServices(await (await this.ensureConnected()).requestExtension("_cantrip/services/list", { sessionId: this.id }));
  }

  /** The last lines that a service printed. */
  async serviceOutput(service: string): Promise<string> {
    const reply = await this.connection.requestExtension<{ output?: unknown }>("_cantrip/services/output", { sessionId: this.id, service });
    return typeof reply.output === "string" ? reply.output : "";
  }

  /** Stop a service, and return all. */
  async stopService(service: string): Promise<readonly Service[]> {
    return readServices(await this.connection.requestExtension("_cantrip/services/stop", { sessionId: this.id, service }));
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
  ensureConnected(): Promise<Connection> {
    return this.use(async (connection) => {
      if (connection !== this.connection) await this.resume(connection);
      this.connection = connection;
      return connection;
    });
  }

  private async resume(connection: Connection): Promise<void> {
    const params = { sessionId: this.id, cwd: this.workspaceLocation.cwd, additionalDirectories: [...this.workspaceLocation.directories], mcpServers: [...(this.workspaceLocation.servers ?? [])] };
    if (connection.hasCapability("resume")) {
      this.initialized(await connection.request(methods.agent.session.resume, params));
      return;
    }
    // The transcript already contains the replayed updates.
    this.muted = true;
    try {
      this.initialized(await connection.request(methods.agent.session.load, params));
    } finally {
      this.muted = false;
    }
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
