import * as acp from "@agentclientprotocol/sdk/unstable";
import type { AgentProcess } from "./process";
import { traceStreams, type TraceLevel } from "./trace";

/** The services of the editor for the agent. A signal is aborted if the agent cancels its request or ends. */
export interface ClientServices {
  updated(sessionId: string, update: acp.SessionUpdate): void;
  /** The prompts of a session that wait have changed. */
  queueChanged(sessionId: string, prompts: readonly QueuedPrompt[]): void;
  permission(request: acp.RequestPermissionRequest, signal: AbortSignal): Promise<acp.RequestPermissionResponse>;
  readFile(request: acp.ReadTextFileRequest): Promise<acp.ReadTextFileResponse>;
  writeFile(request: acp.WriteTextFileRequest): Promise<acp.WriteTextFileResponse>;
  elicit(request: acp.CreateElicitationRequest, signal: AbortSignal): Promise<acp.CreateElicitationResponse>;
  elicited(note: acp.CompleteElicitationNotification): void;
  readonly terminals: TerminalServices;
}

/** A prompt that waits for the running one. `sending`: the entity gets it before its next query. */
export interface QueuedPrompt {
  readonly id: string;
  readonly text: string;
  readonly sending: boolean;
}

/** Read the parameters of `_cantrip/queue_changed`, or the answer to `_cantrip/queue/…`. */
export function readQueue(value: unknown): { readonly sessionId: string; readonly prompts: readonly QueuedPrompt[] } {
  const given = (value ?? {}) as { sessionId?: unknown; prompts?: unknown };
  const prompts = (Array.isArray(given.prompts) ? given.prompts : []) as Partial<Record<keyof QueuedPrompt, unknown>>[];
  return {
    sessionId: String(given.sessionId),
    prompts: prompts.map((each) => ({ id: String(each.id), text: typeof each.text === "string" ? each.text : "", sending: each.sending === true })),
  };
}

/** Commands that the agent runs in the editor's own terminals (ACP, Terminals). */
export interface TerminalServices {
  create(request: acp.CreateTerminalRequest): Promise<acp.CreateTerminalResponse>;
  output(request: acp.TerminalOutputRequest): acp.TerminalOutputResponse;
  waitForExit(request: acp.WaitForTerminalExitRequest): Promise<acp.WaitForTerminalExitResponse>;
  kill(request: acp.KillTerminalRequest): void;
  release(request: acp.ReleaseTerminalRequest): void;
}

export interface ConnectionOptions {
  readonly version: string;
  readonly level: () => TraceLevel;
  readonly trace: (line: string) => void;
  readonly handshakeMs?: number;
}

/** A connection to an initialized agent. Requests reject with `acp.RequestError` if the agent refuses them, or with `AgentExitedError`. */
export class Connection {
  private constructor(
    private readonly connection: acp.ClientConnection,
    readonly about: acp.InitializeResponse,
    readonly process: AgentProcess,
    readonly gone: Promise<AgentExitedError>,
  ) {}

  static async open(process: AgentProcess, services: ClientServices, options: ConnectionOptions): Promise<Connection> {
    const stream = repliesFirst(traceStreams(acp.ndJsonStream(process.input, process.output), options.level, options.trace));
    const connection = createClient(services).connect(stream);
    const gone = process.ended.then((how) => {
      const problem = new AgentExitedError(how, process.stderrTail);
      connection.close(problem);
      return problem;
    });
    const hello = connection.agent.request(acp.methods.agent.initialize, {
      protocolVersion: acp.PROTOCOL_VERSION,
      clientCapabilities: {
        fs: { readTextFile: true, writeTextFile: true },
        terminal: true,
        session: { notices: {}, compaction: {}, configOptions: { boolean: {} } },
        elicitation: { form: {}, url: {} },
        auth: { terminal: true },
        _meta: { terminal_output: true, cantrip: { promptQueueing: true, outputStyles: true } },
      },
      clientInfo: { name: "cantrip-vscode", title: "Cantrip for VS Code", version: options.version },
    });
    // The promise that rejects second must not count as unhandled.
    hello.catch(() => undefined);
    const about = await withTimeout(rejectOnExit(hello, gone), options.handshakeMs ?? 30_000, process);
    if (about.protocolVersion !== acp.PROTOCOL_VERSION) {
      await process.stop();
      throw new Error(
        `The agent speaks version ${about.protocolVersion} of the Agent Client Protocol and this extension version ${acp.PROTOCOL_VERSION}: update the older of the two.`,
      );
    }
    return new Connection(connection, about, process, gone);
  }

  request<M extends acp.AgentRequestMethod>(
    method: M,
    params: acp.AgentRequestParamsByMethod[M],
  ): Promise<acp.AgentRequestResponsesByMethod[M]> {
    const answer: Promise<acp.AgentRequestResponsesByMethod[M]> = this.connection.agent.request(method, params);
    answer.catch(() => undefined);
    return rejectOnExit(answer, this.gone);
  }

  /** A request of an extension, `_cantrip/…`. */
  requestExtension<Answer>(method: `_${string}`, params: object): Promise<Answer> {
    const answer = this.connection.agent.request<Answer>(method, params);
    answer.catch(() => undefined);
    return rejectOnExit(answer, this.gone);
  }

  async cancel(sessionId: string): Promise<void> {
    await this.connection.agent.notify(acp.methods.agent.session.cancel, { sessionId });
  }

  /** Whether the agent has a session capability, such as `fork`. */
  hasCapability(ability: keyof acp.SessionCapabilities | "load"): boolean {
    const offered = this.about.agentCapabilities;
    if (ability === "load") return offered?.loadSession === true;
    return offered?.sessionCapabilities?.[ability] != null;
  }

  /** Whether prompts wait while another one runs. */
  get queuesPrompts(): boolean {
    return (this.about.agentCapabilities?._meta?.cantrip as { promptQueueing?: unknown } | undefined)?.promptQueueing === true;
  }

  /** Whether one running call can be stopped alone. */
  get stopsCalls(): boolean {
    return (this.about.agentCapabilities?._meta?.cantrip as { toolCallCancel?: unknown } | undefined)?.toolCallCancel === true;
  }

  async close(): Promise<void> {
    await this.process.stop();
  }
}

/** The agent's process ended. */
export class AgentExitedError extends Error {
  constructor(
    readonly how: string,
    readonly lastWords: readonly string[],
  ) {
    const said = lastWords.filter((line) => line.trim()).slice(-3).join("\n");
    super(`The agent ${how}.${said ? `\n${said}` : ""}`);
    this.name = "AgentGone";
  }
}

function createClient(services: ClientServices): acp.ClientApp {
  const { session, fs, terminal, elicitation } = acp.methods.client;
  const terminals = services.terminals;
  return acp
    .client({ name: "cantrip-vscode" })
    .onNotification(session.update, ({ params }) => services.updated(params.sessionId, params.update))
    .onNotification("_cantrip/queue_changed", readQueue, ({ params }) => services.queueChanged(params.sessionId, params.prompts))
    .onNotification(elicitation.complete, ({ params }) => services.elicited(params))
    .onRequest(session.requestPermission, ({ params, signal }) => services.permission(params, signal))
    .onRequest(fs.readTextFile, ({ params }) => services.readFile(params))
    .onRequest(fs.writeTextFile, ({ params }) => services.writeFile(params))
    .onRequest(elicitation.create, ({ params, signal }) => services.elicit(params, signal))
    .onRequest(terminal.create, ({ params }) => terminals.create(params))
    .onRequest(terminal.output, ({ params }) => terminals.output(params))
    .onRequest(terminal.waitForExit, ({ params }) => terminals.waitForExit(params))
    .onRequest(terminal.kill, ({ params }) => {
      terminals.kill(params);
      return {};
    })
    .onRequest(terminal.release, ({ params }) => {
      terminals.release(params);
      return {};
    });
}

/**
 * A reply is handled completely before the messages after it. Otherwise the first updates of a queued prompt would be handled
 * before the end of the prompt that it waited for, because a promise needs some steps to wake who waits for it.
 */
function repliesFirst(stream: acp.Stream): acp.Stream {
  const ordered = new TransformStream<acp.AnyMessage, acp.AnyMessage>({
    async transform(message, controller) {
      controller.enqueue(message);
      if (!("method" in message)) await new Promise((resolve) => setImmediate(resolve));
    },
  });
  return { readable: stream.readable.pipeThrough(ordered), writable: stream.writable };
}

async function rejectOnExit<T>(answer: Promise<T>, gone: Promise<AgentExitedError>): Promise<T> {
  let over = false;
  const lost = gone.then(async (problem) => {
    // Messages that arrived before the end are handled first.
    await new Promise((resolve) => setTimeout(resolve, 20));
    if (!over) throw problem;
    return undefined as never;
  });
  lost.catch(() => undefined);
  try {
    return await Promise.race([answer, lost]);
  } catch (problem) {
    if (problem instanceof acp.RequestError || problem instanceof AgentExitedError) throw problem;
    // The error of a closed connection does not say why it closed, so replace it with the reason.
    const ended = await Promise.race([gone, new Promise<undefined>((resolve) => setTimeout(resolve, 500, undefined))]);
    throw ended ?? problem;
  } finally {
    over = true;
  }
}

async function withTimeout<T>(answer: Promise<T>, milliseconds: number, process: AgentProcess): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      const words = process.stderrTail.slice(-3).join("\n");
      reject(new Error(`The agent did not answer within ${milliseconds / 1000} s.${words ? `\n${words}` : ""}`));
      void process.stop();
    }, milliseconds);
  });
  try {
    return await Promise.race([answer, late]);
  } finally {
    clearTimeout(timer);
  }
}
