/** The chat with the agent: its panel, the participant of the editor's own chat, and the commands that lead there. */
import * as vscode from "vscode";
import { Agent } from "../acp/agent";
import { type AgentCommand, NoProgram } from "../acp/command";
import { words } from "../acp/errors";
import type { TraceLevel } from "../acp/trace";
import { Environment, isFound } from "../environment/environment";
import type { Setup } from "../environment/setup";
import type { Compared } from "../loom/comparison";
import { Approvals } from "./approvals";
import { fileAttached, selectionAttached } from "./attachments";
import { CodeBlocks } from "./codeblocks";
import type { Conversation } from "./conversation";
import { Diffs } from "./diffs";
import { contextAttached } from "./editorcontext";
import { recordTerminals, terminalSelection } from "./editorreader";
import { EditorReview } from "./editorreview";
import { EditorFiles } from "./files";
import { FollowAlong } from "./followalong";
import { Forms } from "./forms";
import { Mentions } from "./mentions";
import { ChatPanel } from "./panel";
import { Participant } from "./participant";
import { Permissions } from "./permissions";
import { ChatService, place } from "./service";
import { signIn } from "./signin";
import { SHOW_QUESTION, Status } from "./status";
import { ChatTabs } from "./tabs";
import { EditorTerminals } from "./terminals";
import { describeCharacter } from "./visible";
import { showServices } from "./services";

/** Register the chat. The agent process starts with the first session. */
export function activateChat(context: vscode.ExtensionContext, environment: Environment, setup: Setup, compare: (compared: Compared) => void): ChatService {
  const trace = vscode.window.createOutputChannel("Cantrip Agent Trace");
  const permissions = new Permissions();
  const forms = new Forms((session) => service.of(session) !== undefined);
  const files = new EditorFiles();
  const diffs = new Diffs();
  const approvals = new Approvals(permissions, diffs);
  const codeBlocks = new CodeBlocks(diffs);
  const mentions = new Mentions();
  const along = new FollowAlong();
  const terminals = new EditorTerminals((id, data) => { service.onTerminalOutput(id, data); });
  const version = (context.extension.packageJSON as { version: string }).version;
  const agent = new Agent(
    () => agentCommand(environment),
    {
      permission: (request, signal) => permissions.ask(request, signal),
      readFile: (request) => files.read(request),
      writeFile: (request) => files.write(request),
      elicit: (request, signal) => forms.show(request, signal),
      elicited: (note) => { forms.complete(note.elicitationId); },
      terminals,
    },
    {
      version,
      level: () => vscode.workspace.getConfiguration("cantrip").get<TraceLevel>("trace.agent", "off"),
      trace: (line) => { trace.appendLine(`[${new Date().toISOString()}] ${line}`); },
      log: (line) => { environment.output.info(`agent: ${line}`); },
    },
  );
  agent.ended.on((problem) => {
    environment.output.warn(problem.message);
    terminals.dispose();
  });
  const service: ChatService = new ChatService(agent, permissions, forms, context.workspaceState, async () => (await chooseModel()) !== undefined);
  const chooseModel = (): Promise<string | undefined> => signIn(agent, () => agentCommand(environment));
  /** Let the user choose a model, and use it in the conversation of a view. */
  const signInFor = async (shown: ChatService): Promise<void> => {
    const chosen = await chooseModel();
    if (chosen !== undefined) await shown.signedIn(chosen);
  };
  const panelOf = (shown: ChatService): ChatPanel =>
    new ChatPanel(context.extensionUri, shown, approvals, mentions, codeBlocks, {
      setup,
      compare,
      signIn: () => signInFor(shown),
    });
  const panel = panelOf(service);
  const tabs = new ChatTabs(context.workspaceState, vscode.Uri.joinPath(context.extensionUri, "media", "icon.png"), (session) => {
    const shown = service.another(session);
    return [panelOf(shown), shown];
  });
  /** The chat in the active editor tab, or else in the side bar. */
  const shown = (): readonly [panel: ChatPanel, service: ChatService] => tabs.all.find(([each]) => each.active) ?? [panel, service];
  /** Show a conversation where it is shown already, else in the side bar. */
  const showConversation = async (conversation: Conversation): Promise<void> => {
    const there = [[panel, service] as const, ...tabs.all].find(([, each]) => each.current === conversation);
    await (there?.[0] ?? panel).compose([]);
    if (there === undefined && conversation.session !== undefined) await service.open(conversation.session.id);
  };
  /** Tell of a question that no visible chat shows. */
  const tellOfQuestion = (session: string, question: string): void => {
    const conversation = service.of(session);
    if (conversation === undefined) return;
    const shown = [[panel, service] as const, ...tabs.all].filter(([, each]) => each.current === conversation).map(([each]) => each);
    if (shown.some((each) => each.visible)) return;
    void vscode.window.showInformationMessage(`Cantrip asks: ${describeCharacter(question, "command").slice(0, 120)}`, "Show").then(async (chosen) => {
      if (chosen === "Show") await showConversation(conversation);
    });
  };
  const review = new EditorReview(() => service.reviews, { openDiff: (of, path) => panel.openChangeOf(of, path), undo: (of, choice) => panel.undoChangeOf(of, choice) });
  service.reviewed.on(() => void review.refresh());
  context.subscriptions.push(
    review,
    trace,
    diffs,
    approvals,
    codeBlocks,
    mentions,
    along,
    terminals,
    recordTerminals(),
    service,
    panel,
    new Status(service),
    new Participant(agent, permissions, approvals, vscode.Uri.joinPath(context.extensionUri, "media", "icon.png"), async () => (await chooseModel()) !== undefined),
    service.onUpdate.on((update) => { along.onUpdate(update); }),
    permissions.asked.on(({ request }) => { tellOfQuestion(request.sessionId, request.toolCall.title ?? "may it go on?"); }),
    forms.asked.on(({ session, message }) => { tellOfQuestion(session, message); }),
    // The program or its environment changed, so the running agent is outdated, and so is an error that there is none.
    environment.onDidChange(() => {
      if (service.busy.length === 0) void agent.restart();
    }),
    vscode.workspace.onDidSaveTextDocument(({ uri }) => {
      if (uri.scheme === "file") service.saved(uri.fsPath);
    }),
    vscode.workspace.onDidDeleteFiles(({ files }) => { for (const uri of files) service.saved(uri.fsPath); }),
    vscode.workspace.onDidRenameFiles(({ files }) => { for (const { oldUri } of files) service.saved(oldUri.fsPath); }),
    vscode.window.registerWebviewViewProvider(ChatPanel.id, panel, { webviewOptions: { retainContextWhenHidden: true } }),
    tabs,
    command("cantrip.chat.openTab", () => {
      tabs.create();
      return Promise.resolve();
    }),
    command("cantrip.chat.open", () => panel.compose([])),
    command("cantrip.chat.new", async () => {
      service.newConversation();
      await panel.compose([]);
    }),
    command(SHOW_QUESTION, async () => {
      // The one that is looked at comes first.
      const waiting = service.waiting;
      const conversation = waiting.find((each) => each === shown()[1].current) ?? waiting[0];
      await (conversation === undefined ? panel.compose([]) : showConversation(conversation));
    }),
    command("cantrip.chat.sessions", () => panel.sessions()),
    command("cantrip.chat.servers", () => panel.servers()),
    command("cantrip.chat.services", async () => {
      const { session } = shown()[1].current;
      if (session !== undefined) await showServices(session);
    }),
    command("cantrip.chat.stop", () => service.stop()),
    command("cantrip.chat.toggleAsk", () => shown()[1].toggleAsk()),
    command("cantrip.chat.redo", () => shown()[0].redo()),
    command("cantrip.chat.restart", () => service.restart()),
    command("cantrip.chat.signIn", () => signInFor(shown()[1])),
    command("cantrip.chat.signOut", async () => {
      await agent.logout();
      void vscode.window.showInformationMessage("The key that you entered here was removed.");
    }),
    command("cantrip.chat.showTrace", () => {
      trace.show();
      return Promise.resolve();
    }),
    command("cantrip.chat.askSelection", async () => {
      const editor = vscode.window.activeTextEditor;
      if (editor !== undefined) await panel.compose([await selectionAttached(editor)]);
    }),
    command("cantrip.chat.askTerminal", async () => {
      const text = await terminalSelection();
      if (text !== "") await panel.compose([{ ...contextAttached("terminal", undefined, "the selection"), text }]);
    }),
    command("cantrip.chat.addFile", async (first, many) => {
      const chosen = Array.isArray(many) && many.length > 0 ? (many as unknown[]) : [first ?? vscode.window.activeTextEditor?.document.uri];
      const uris = chosen.filter((each): each is vscode.Uri => each instanceof vscode.Uri && each.scheme === "file");
      await panel.compose(await Promise.all(uris.map(fileAttached)));
    }),
    {
      // The extension host waits for this, so that the agent can finish writing its looms.
      dispose: () => agent.dispose(),
    },
  );
  return service;
}

function command(name: string, work: (...args: unknown[]) => Promise<unknown>): vscode.Disposable {
  return vscode.commands.registerCommand(name, async (...args: unknown[]) => {
    if (!vscode.workspace.isTrusted) {
      const manage = "Manage Workspace Trust";
      const chosen = await vscode.window.showWarningMessage("Cantrip does not start in a workspace that you do not trust.", manage);
      if (chosen === manage) await vscode.commands.executeCommand("workbench.trust.manage");
      return;
    }
    try {
      await work(...args);
    } catch (problem) {
      void vscode.window.showErrorMessage(`Cantrip: ${words(problem)}`);
    }
  });
}

/** The command that starts the agent. */
async function agentCommand(environment: Environment): Promise<AgentCommand> {
  const found = await environment.find();
  if (!isFound(found)) {
    const why = found[0]?.why;
    throw new NoProgram(`Cantrip is not set up yet\n${why ?? ""}`);
  }
  const recipe = vscode.workspace.getConfiguration("cantrip").get("chat.recipe", "").trim();
  const env = Object.fromEntries(Object.entries({ ...environment.env(), ...found.env }).filter((entry): entry is [string, string] => entry[1] !== undefined));
  return {
    command: found.command,
    args: [...found.args, "acp", ...(recipe === "" ? [] : ["--recipe", recipe])],
    env,
    cwd: place()?.cwd ?? environment.safeCwd,
  };
}
