import { methods } from "@agentclientprotocol/sdk/unstable";
import type * as acp from "@agentclientprotocol/sdk/unstable";
import type { AgentCommand } from "./command";
import { type AgentExitedError, type ClientServices, Connection, type ConnectionOptions } from "./connection";
import { AgentProcess } from "./process";
import { type McpStatus, mcpStatus } from "./mcp";
import { type Place, Session } from "./session";
import { Signal } from "./signal";

const MOST_PAGES = 50;

/** The services of the editor that are the same for every session; updates go to the sessions by themselves. */
export type EditorServices = Omit<ClientServices, "updated" | "queueChanged">;

/** A model that a server on this machine offers. */
export interface LocalModel {
  /** Its address, such as `ollama:qwen3`. */
  readonly crystal: string;
  readonly provider: string;
  readonly name: string;
  /** In tokens. */
  readonly contextWindow?: number | null;
  readonly tools?: boolean | null;
}

function isLocalModel(value: unknown): value is LocalModel {
  const model = value as Partial<Record<keyof LocalModel, unknown>> | null;
  return typeof model?.crystal === "string" && typeof model.provider === "string" && typeof model.name === "string";
}

/**
 * The agent: started when it is first needed, started again after it died, and the sessions that are open in it.
 *
 * `ended` tells of a process that ended by itself. Its sessions stay: they are resumed in the next process when they are used.
 */
export class Agent {
  readonly ended = new Signal<AgentExitedError>();
  readonly onConnect = new Signal<Connection>();
  private starting: Promise<Connection> | undefined;
  private readonly sessions = new Map<string, Session>();
  /** Updates of a session whose reply has not named it yet. */
  private readonly early = new Map<string, acp.SessionUpdate[]>();
  private stopping = false;

  constructor(
    private readonly command: () => Promise<AgentCommand>,
    private readonly services: EditorServices,
    private readonly options: ConnectionOptions & { readonly log: (line: string) => void },
  ) {}

  /** The current connection; starts the agent if none runs. Rejects with a message for the user. */
  connection(): Promise<Connection> {
    this.starting ??= this.start();
    return this.starting;
  }

  get running(): boolean {
    return this.starting !== undefined;
  }

  async newSession(place: Place): Promise<Session> {
    const connection = await this.connection();
    const reply = await connection.request(methods.agent.session.new, this.withPaths(connection, place));
    return this.register(reply.sessionId, place, connection, reply);
  }

  /** A session that lived before. `prepare` gets it before its past is replayed. */
  async loadSession(id: string, place: Place, prepare: (session: Session) => void): Promise<Session> {
    const connection = await this.connection();
    const session = this.sessions.get(id) ?? new Session(id, place, connection, () => this.connection());
    prepare(session);
    this.sessions.set(id, session);
    try {
      const reply = await connection.request(methods.agent.session.load, { sessionId: id, ...this.withPaths(connection, place) });
      session.initialized(reply);
    } catch (problem) {
      this.sessions.delete(id);
      throw problem;
    }
    return session;
  }

  /** A new session that goes on from a turn of another one; from its last turn where none is named, from its start for 0. */
  async forkSession(id: string, place: Place, turn?: string | 0): Promise<string> {
    const connection = await this.connection();
    if (!connection.hasCapability("fork")) throw new Error("This agent does not fork sessions.");
    const reply = await connection.request(methods.agent.session.fork, {
      sessionId: id,
      ...this.withPaths(connection, place),
      ...(turn === undefined ? {} : { _meta: { cantrip: { turn } } }),
    });
    this.register(reply.sessionId, place, connection, reply);
    return reply.sessionId;
  }

  async listSessions(cwd?: string): Promise<acp.SessionInfo[]> {
    const connection = await this.connection();
    if (!connection.hasCapability("list")) return [];
    const found: acp.SessionInfo[] = [];
    let cursor: string | undefined;
    for (let page = 0; page < MOST_PAGES; page += 1) {
      const reply = await connection.request(methods.agent.session.list, { ...(cwd ? { cwd } : {}), ...(cursor ? { cursor } : {}) });
      found.push(...reply.sessions);
      if (!reply.nextCursor || reply.nextCursor === cursor) break;
      cursor = reply.nextCursor;
    }
    return found;
  }

  async closeSession(id: string): Promise<void> {
    this.sessions.delete(id);
    const connection = await this.connection();
    if (connection.hasCapability("close")) await connection.request(methods.agent.session.close, { sessionId: id });
  }

  async deleteSession(id: string): Promise<void> {
    this.sessions.delete(id);
    const connection = await this.connection();
    await connection.request(methods.agent.session.delete, { sessionId: id });
  }

  /** `crystal` is the model to use with the method `local`. */
  async authenticate(methodId: string, crystal?: string): Promise<void> {
    const connection = await this.connection();
    await connection.request(methods.agent.authenticate, { methodId, ...(crystal === undefined ? {} : { _meta: { cantrip: { crystal } } }) });
  }

  /** The MCP servers of a session; after a restart of one of them, if its place in the list is given. */
  async mcpServers(sessionId: string, restart?: number): Promise<readonly McpStatus[]> {
    const connection = await this.connection();
    const [method, more] = restart === undefined ? (["_cantrip/mcp/list", {}] as const) : (["_cantrip/mcp/restart", { server: restart }] as const);
    const reply = await connection.requestExtension<Record<string, unknown>>(method, { sessionId, ...more });
    return Array.isArray(reply.servers) ? reply.servers.map(mcpStatus) : [];
  }

  /** The models of servers on this machine, which need no key. Empty if the agent cannot look for them. */
  async localModels(): Promise<readonly LocalModel[]> {
    const connection = await this.connection();
    const reply = await connection.requestExtension<Record<string, unknown>>("_cantrip/models/local", {}).catch(() => undefined);
    return Array.isArray(reply?.models) ? reply.models.filter(isLocalModel) : [];
  }

  async logout(): Promise<void> {
    const connection = await this.connection();
    await connection.request(methods.agent.logout, {});
  }

  /** Ends the process; the next use starts another one. */
  async stop(): Promise<void> {
    const starting = this.starting;
    if (starting === undefined) return;
    this.stopping = true;
    try {
      const connection = await starting.catch(() => undefined);
      await connection?.close();
    } finally {
      this.stopping = false;
      if (this.starting === starting) this.starting = undefined;
    }
  }

  private async start(): Promise<Connection> {
    try {
      const process = AgentProcess.start(await this.command(), (line) => this.options.log(line));
      const services: ClientServices = { ...this.services, updated: (id, update) => this.onUpdate(id, update), queueChanged: (id, prompts) => this.sessions.get(id)?.setQueue(prompts) };
      const connection = await Connection.open(process, services, this.options);
      void connection.gone.then((problem) => {
        this.starting = undefined;
        for (const session of this.sessions.values()) session.setQueue([]);
        if (!this.stopping) this.ended.fire(problem);
      });
      this.onConnect.fire(connection);
      return connection;
    } catch (problem) {
      this.starting = undefined;
      throw problem;
    }
  }

  private register(
    id: string,
    place: Place,
    connection: Connection,
    reply: acp.NewSessionResponse | acp.ForkSessionResponse,
  ): Session {
    const session = new Session(id, place, connection, () => this.connection());
    this.sessions.set(id, session);
    session.initialized(reply);
    const early = this.early.get(id) ?? [];
    this.early.delete(id);
    for (const update of early) session.onUpdate(update);
    return session;
  }

  private onUpdate(id: string, update: acp.SessionUpdate): void {
    const session = this.sessions.get(id);
    if (session !== undefined) return session.onUpdate(update);
    // The reply that names it is being handled at this moment.
    const early = this.early.get(id) ?? [];
    if (early.length < 200) early.push(update);
    this.early.set(id, early);
    if (this.early.size > 20) this.early.delete(this.early.keys().next().value as string);
  }

  private withPaths(connection: Connection, place: Place): { cwd: string; additionalDirectories?: string[]; mcpServers: acp.McpServer[] } {
    const more = place.directories.length > 0 && connection.hasCapability("additionalDirectories");
    return { cwd: place.cwd, ...(more ? { additionalDirectories: [...place.directories] } : {}), mcpServers: [...(place.servers ?? [])] };
  }
}
