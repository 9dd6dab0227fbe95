/** The language server: starts it from the user's Cantrip, restarts it when that changes, and sends it requests. */
import * as vscode from "vscode";
import {
  type ExecuteCommandParams,
  ExecuteCommandRequest,
  LanguageClient,
  type LanguageClientOptions,
  ResponseError,
  State,
  TransportKind,
  WorkDoneProgress,
} from "vscode-languageclient/node";
import { isFound, type Environment } from "../environment/environment";
import { looms } from "./looms";

const RECIPES = "**/*.cantrip.{yaml,yml}";

/** Asks the user for the text of a server command before it runs. */
export type Asking = (command: string, args: unknown[]) => Promise<unknown>;

/** How a request failed, with the error data of the server. */
export interface Failure {
  readonly message: string;
  readonly error?: string;
  readonly command?: vscode.Command;
}

export class Server implements vscode.Disposable {
  private client: LanguageClient | undefined;
  private starting: Promise<void> | undefined;
  private readonly trace = vscode.window.createOutputChannel("Cantrip Trace", { log: true });
  private readonly state = new vscode.EventEmitter<"off" | "starting" | "on">();
  /** The server's state. */
  readonly onDidChange = this.state.event;
  private readonly notifications = new vscode.EventEmitter<{ readonly method: string; readonly params: unknown }>();
  /** Custom notifications of the server, `cantrip/…`. */
  readonly onNotification = this.notifications.event;
  private asking: Asking = (command, args) => this.execute(command, args);
  private readonly parts: vscode.Disposable[] = [];
  private wanted = false;

  constructor(private readonly environment: Environment) {
    this.parts.push(
      this.trace,
      this.state,
      this.notifications,
      environment.onDidChange(() => {
        if (this.wanted) void this.restart();
      }),
      vscode.commands.registerCommand("cantrip.restart", async () => {
        environment.invalidate("a restart was asked for");
        await this.restart(true);
      }),
      vscode.commands.registerCommand("cantrip.showOutput", () => {
        environment.output.show();
      }),
    );
  }

  /** Set the function that asks the user before a server command runs. */
  askedBy(asking: Asking): void {
    this.asking = asking;
  }

  get running(): boolean {
    return this.client?.state === State.Running;
  }

  /** Whether this server has a command. */
  has(command: string): boolean {
    return this.client?.initializeResult?.capabilities.executeCommandProvider?.commands.includes(command) ?? false;
  }

  /** Start the server if it does not run. Does nothing if there is no Cantrip. */
  start(loudly = false): Promise<void> {
    this.wanted = true;
    this.starting ??= this.begin(loudly).finally(() => {
      this.starting = undefined;
    });
    return this.starting;
  }

  async restart(loudly = false): Promise<void> {
    await this.starting;
    await this.stop();
    await this.start(loudly);
  }

  async stop(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    if (client === undefined) return;
    try {
      await client.dispose(5_000);
    } catch (error) {
      this.environment.output.warn(`the language server did not stop by itself: ${String(error)}`);
    }
    this.state.fire("off");
  }

  /** Send a request to the server. Throws if the server does not run. */
  async request<Answer>(method: string, params: object): Promise<Answer> {
    await this.starting;
    const client = this.client;
    if (client?.state !== State.Running) throw new Error("The language server is not running.");
    return client.sendRequest<Answer>(method, params);
  }

  /** Run a server command. With a title, its progress is shown and can be cancelled. */
  async execute<Answer>(command: string, args: unknown[], title?: string): Promise<Answer> {
    await this.starting;
    const client = this.client;
    if (client?.state !== State.Running) throw new Error("The language server is not running.");
    if (title === undefined) {
      return (await client.sendRequest(ExecuteCommandRequest.type, { command, arguments: args })) as Answer;
    }
    return vscode.window.withProgress(
      { location: vscode.ProgressLocation.Notification, title, cancellable: true },
      async (progress, cancelled) => {
        const workDoneToken = `cantrip-client-${crypto.randomUUID()}`;
        const params: ExecuteCommandParams = { command, arguments: args, workDoneToken };
        const parts = [
          client.onProgress(WorkDoneProgress.type, workDoneToken, (about) => {
            if (about.message !== undefined) progress.report({ message: about.message });
          }),
          cancelled.onCancellationRequested(() => {
            void client.sendNotification("window/workDoneProgress/cancel", { token: workDoneToken });
          }),
        ];
        try {
          return (await client.sendRequest(ExecuteCommandRequest.type, params)) as Answer;
        } finally {
          for (const part of parts) part.dispose();
        }
      },
    );
  }

  private async begin(loudly: boolean): Promise<void> {
    this.state.fire("starting");
    const asked = loudly ? await this.environment.need() : await this.environment.find();
    if (asked === undefined || !isFound(asked)) {
      this.state.fire("off");
      return;
    }
    const env = { ...this.environment.env(), ...asked.env } as Record<string, string>;
    const client = new LanguageClient(
      "cantrip",
      "Cantrip",
      {
        command: asked.command,
        args: [...asked.args, "lsp"],
        transport: TransportKind.stdio,
        // Not the workspace folder: a Python that starts there might import its files.
        options: { cwd: this.environment.safeCwd, env },
      },
      this.options(),
    );
    this.client = client;
    client.onDidChangeState((event) => {
      if (this.client === client) this.state.fire(event.newState === State.Running ? "on" : event.newState === State.Starting ? "starting" : "off");
    });
    for (const method of ["cantrip/loom/changed", "cantrip/loom/listChanged"]) {
      client.onNotification(method, (params: unknown) => {
        this.notifications.fire({ method, params });
      });
    }
    try {
      await client.start();
    } catch (error) {
      if (this.client === client) this.client = undefined;
      this.state.fire("off");
      const why = `The language server did not start: ${error instanceof Error ? error.message : String(error)}`;
      this.environment.output.error(why);
      void vscode.window.showErrorMessage(why, "Show Output", "Try Again").then((chosen) => {
        if (chosen === "Show Output") this.environment.output.show(true);
        else if (chosen === "Try Again") void this.restart();
      });
    }
  }

  private options(): LanguageClientOptions {
    return {
      documentSelector: [
        { scheme: "file", language: "cantrip" },
        { scheme: "file", pattern: RECIPES },
        { scheme: "file", pattern: "**/*.loom.jsonl" },
      ],
      outputChannel: this.environment.output,
      traceOutputChannel: this.trace,
      synchronize: { fileEvents: vscode.workspace.createFileSystemWatcher("**/{*.cantrip.*,*.loom.jsonl,.cantrip/**}") },
      markdown: { isTrusted: false, supportHtml: false },
      middleware: {
        ...looms,
        executeCommand: (command, args) => this.asking(command, args),
        provideCodeLenses: async (document, token, next) => {
          const lenses = await next(document, token);
          // Commands that cast or run code wait for the user's trust. Reading does not need it.
          if (vscode.workspace.isTrusted) return lenses;
          return lenses?.filter((lens) => ["cantrip.loom.view", "cantrip.openLoom"].includes(lens.command?.command ?? ""));
        },
      },
    };
  }

  dispose(): Promise<void> {
    for (const part of this.parts) part.dispose();
    return this.stop();
  }
}

/** The message of an error for the user, and its data for programs. */
export function failure(error: unknown): Failure {
  if (error instanceof ResponseError) {
    const data: unknown = error.data;
    const about = typeof data === "object" && data !== null ? (data as { error?: unknown; command?: unknown }) : {};
    return {
      message: error.message,
      ...(typeof about.error === "string" ? { error: about.error } : {}),
      ...(typeof about.command === "object" && about.command !== null ? { command: about.command as vscode.Command } : {}),
    };
  }
  return { message: error instanceof Error ? error.message : String(error) };
}
