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

/** A provider whose models need a key. `needsModel`: no model of it is chosen by default. */
export interface KeyProvider {
  readonly provider: string;
  readonly hasKey: boolean;
  readonly needsModel: boolean;
}

/** A model that the agent can run itself. `bytes` is what it downloads if it is not `here`. */
export interface EmbeddedModel {
  readonly crystal: string;
  readonly about: string;
  readonly bytes: number;
  readonly here: boolean;
}

/** The models that a server lists, and its address in full. */
export interface ServedModels {
  readonly baseUrl: string;
  readonly models: readonly { readonly name: string; readonly contextWindow?: number | null }[];
}

/** One process of the agent, from the first use of it to its end. */
class Run {
  /** Whether its owner has ended it. Requests that were under way go to the next one. */
  stopped = false;
  process: AgentProcess | undefined;
  readonly connection: Promise<Connection>;

  constructor(start: (run: Run) => Promise<Connection>) {
    this.connection = start(this);
    // Whoever uses it gets the error.
    this.connection.catch(() => undefined);
  }
}

/**
 * The agent: started when it is first needed, started again after it died, and the sessions that are open in it.
 *
 * This class alone starts and ends the process. A process starts only when the one before has ended, and a request that was
 * under way when its process was stopped here goes to the next one. `ended` tells of a process that ended by itself. Its
 * sessions stay: they are resumed in the next process when they are used.
 */
export class Agent {
  readonly ended = new Signal<AgentExitedError>();
  readonly onConnect = new Signal<Connection>();
  /** Fires when the process was ended on purpose, so that what could not start can try again. */
  readonly restarted = new Signal<void>();
  private run: Run | undefined;
  /** Resolves when the processes that were stopped have ended. */
  private ending: Promise<void> = Promise.resolve();
  private disposed = false;
  private readonly sessions = new Map<string, Session>();
  /** Updates of a session whose reply has not named it yet. */
  private readonly early = new Map<string, acp.SessionUpdate[]>();

  constructor(
    private readonly command: () => Promise<AgentCommand>,
    private readonly services: EditorServices,
    private readonly options: ConnectionOptions & { readonly log: (line: string) => void },
  ) {}

  /** The current connection; starts the agent if none runs. Rejects with a message for the user. */
  connection(): Promise<Connection> {
    return this.use((connection) => Promise.resolve(connection));
  }

  async newSession(place: Place): Promise<Session> {
    return this.use(async (connection) => {
      const reply = await connection.request(methods.agent.session.new, this.withPaths(connection, place));
      return this.register(reply.sessionId, place, connection, reply);
    });
  }

  /** A session that lived before. `prepare` gets it before its past is replayed. */
  async loadSession(id: string, place: Place, prepare: (session: Session) => void): Promise<Session> {
    return this.use(async (connection) => {
      const session = this.sessions.get(id) ?? new Session(id, place, connection, (work) => this.use(work));
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
    });
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
    return this.use(async (connection) => {
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
    });
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

  /** Let a session's server say which models it has. New ones come as an update of the options. */
  async refreshModels(sessionId: string): Promise<void> {
    await this.use((connection) => connection.requestExtension("_cantrip/models/refresh", { sessionId }));
  }

  /** What the user can sign in with (`_cantrip/sign_in/list`). */
  async signInList(): Promise<{ readonly providers: readonly KeyProvider[]; readonly embedded: readonly EmbeddedModel[] }> {
    return this.use((connection) => connection.requestExtension("_cantrip/sign_in/list", {}));
  }

  /** The models of a provider, or of the server at an address if the provider is `local`. Rejects if it lists none. */
  async servedModels(provider: string, key: string, baseUrl = ""): Promise<ServedModels> {
    return this.use((connection) => connection.requestExtension("_cantrip/sign_in/models", { provider, key, baseUrl }));
  }

  /** Save a key, an address and a model. `overridden` are variables of the agent's environment that come first. */
  async signIn(choice: { readonly provider: string; readonly key: string; readonly baseUrl: string; readonly model: string }): Promise<{ readonly crystal: string; readonly overridden: readonly string[] }> {
    return this.use((connection) => connection.requestExtension("_cantrip/sign_in", choice));
  }

  async logout(): Promise<void> {
    const connection = await this.connection();
    await connection.request(methods.agent.logout, {});
  }

  /** End the process; the next use starts another one. Resolves when it has ended. */
  stop(): Promise<void> {
    const { run } = this;
    if (run !== undefined) {
      run.stopped = true;
      this.run = undefined;
      // One that has not started its process yet does not start it any more.
      this.ending = this.ending.then(() => run.process?.stop());
    }
    return this.ending;
  }

  /** End the process, because its program or its environment has changed. */
  async restart(): Promise<void> {
    await this.stop();
    this.restarted.fire();
  }

  /** End the process for good. */
  dispose(): Promise<void> {
    this.disposed = true;
    return this.stop();
  }

  /** Use the process that runs, or start one. If that is stopped here meanwhile, use the next one. */
  private async use<T>(work: (connection: Connection) => Promise<T>): Promise<T> {
    for (;;) {
      if (this.disposed) throw new Error("Cantrip is closed with its window.");
      const run = (this.run ??= new Run((made) => this.start(made)));
      try {
        return await work(await run.connection);
      } catch (problem) {
        if (!run.stopped) throw problem;
      }
    }
  }

  private async start(run: Run): Promise<Connection> {
    try {
      // The one before may still write the sessions that this one opens.
      await this.ending;
      const command = await this.command();
      if (run.stopped) throw new Error("The agent was stopped before it began.");
      run.process = AgentProcess.start(command, (line) => this.options.log(line));
      const services: ClientServices = { ...this.services, updated: (id, update) => this.onUpdate(id, update), queueChanged: (id, prompts) => this.sessions.get(id)?.setQueue(prompts) };
      const connection = await Connection.open(run.process, services, this.options);
      void connection.gone.then((problem) => {
        if (this.run === run) this.run = undefined;
        for (const session of this.sessions.values()) session.setQueue([]);
        if (!run.stopped) this.ended.fire(problem);
      });
      this.onConnect.fire(connection);
      return connection;
    } catch (problem) {
      if (this.run === run) this.run = undefined;
      throw problem;
    }
  }

  private register(
    id: string,
    place: Place,
    connection: Connection,
    reply: acp.NewSessionResponse | acp.ForkSessionResponse,
  ): Session {
    const session = new Session(id, place, connection, (work) => this.use(work));
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
