import { randomBytes } from "node:crypto";
import { homedir } from "node:os";
import * as vscode from "vscode";
import { words, wantsSignIn } from "../acp/errors";
import type { FileChoice } from "../acp/session";
import { Signal, type Subscription } from "../acp/signal";
import { conflictWords, doneWords, plannedWords, type RestoreResult } from "../acp/changes";
import type { Approvals } from "./approvals";
import { contentOf, fileAttached } from "./attachments";
import { PageChannel } from "./channel";
import type { CodeBlocks } from "./codeblocks";
import type { Conversation } from "./conversation";
import { findWords } from "./find";
import type { Attachment } from "./items";
import { follow, reveal } from "./links";
import type { Mentions } from "./mentions";
import { parseWebviewMessage, type WebviewMessage, type State, type HostMessage } from "./messages";
import { type ChatService, place } from "./service";
import type { AnswerNote } from "./permissions";
import { pictureData } from "./pictures";
import type { RestoreOptions, Review } from "./review";
import type { Setup } from "../environment/setup";
import type { Compared } from "../loom/comparison";
import { choices, formatUsage } from "./state";

const AT_ONCE = 120;
/** The most items that a page gets for one request. */
const MOST_ASKED = 400;

export interface PanelActions {
  readonly setup: Setup;
  readonly signIn: () => Promise<unknown>;
  /** Show two sessions side by side. */
  readonly compare: (compared: Compared) => void;
}

/** The kind of the editor tabs with the chat. */
export const TAB = "cantrip.chatTab";
/** The title of a tab whose conversation has none. */
export const UNTITLED = "Cantrip Chat";

/** The chat in the side bar or in an editor tab. It has no state: when the editor creates it again, it gets everything again. */
export class ChatPanel implements vscode.WebviewViewProvider, vscode.Disposable {
  static readonly id = "cantrip.chat";
  readonly visibility = new Signal<boolean>();
  /** Fires with each state of the conversation that is shown. */
  readonly shown = new Signal<State>();
  private view: vscode.WebviewView | vscode.WebviewPanel | undefined;
  private ready = false;
  private waiting: HostMessage[] = [];
  private readonly channel = new PageChannel(
    (message) => { this.post(message); },
    4 * AT_ONCE,
    () => { this.reset(this.service.current, true); },
  );
  private following: Subscription[] = [];
  private readonly parts: Subscription[] = [];

  constructor(
    private readonly extension: vscode.Uri,
    private readonly service: ChatService,
    private readonly approvals: Approvals,
    private readonly mentions: Mentions,
    private readonly codeBlocks: CodeBlocks,
    private readonly actions: PanelActions,
  ) {
    this.parts.push(
      service.onDidShowConversation.on((conversation) => { this.follow(conversation); }),
      service.busyChanged.on(() => { this.postState(); }),
      actions.setup.changed.on(() => { this.postState(); }),
      vscode.workspace.onDidGrantWorkspaceTrust(() => void this.start()),
      vscode.workspace.onDidChangeWorkspaceFolders(() => void this.start()),
    );
  }

  get visible(): boolean {
    return this.view?.visible ?? false;
  }

  /** Whether it is the active editor tab. */
  get active(): boolean {
    return this.view !== undefined && "active" in this.view && this.view.active;
  }

  resolveWebviewView(view: vscode.WebviewView): void {
    this.attach(view);
    view.onDidChangeVisibility(() => { this.visibility.fire(view.visible); });
  }

  /** Show the chat in a view or in a tab. `tab` names the tab; its page keeps that. */
  attach(view: vscode.WebviewView | vscode.WebviewPanel, tab?: string): void {
    this.view = view;
    this.ready = false;
    view.webview.options = {
      enableScripts: true,
      enableCommandUris: false,
      localResourceRoots: [vscode.Uri.joinPath(this.extension, "dist", "chat")],
    };
    view.webview.onDidReceiveMessage((value: unknown) => {
      const message = parseWebviewMessage(value);
      if (message !== undefined) void this.handleMessage(message);
    });
    view.onDidDispose(() => {
      this.view = undefined;
      this.ready = false;
    });
    view.webview.html = page(view.webview, this.extension, tab);
  }

  /** Show the view or the tab, and focus it. */
  private async reveal(): Promise<void> {
    if (this.view !== undefined && "reveal" in this.view) this.view.reveal();
    else await vscode.commands.executeCommand(`${ChatPanel.id}.focus`);
  }

  /** Show the panel, focus the input and insert something there. */
  async compose(attachments: readonly Attachment[], text?: string): Promise<void> {
    await this.reveal();
    if (attachments.length > 0 || text !== undefined) this.send({ type: "attach", attachments, ...(text === undefined ? {} : { text }) });
    this.send({ type: "focus" });
  }

  async sessions(): Promise<void> {
    await this.reveal();
    this.send({ type: "showSessions" });
    await this.postSessions();
  }

  async servers(): Promise<void> {
    await this.reveal();
    this.send({ type: "showServers" });
  }

  dispose(): void {
    this.channel.clear();
    for (const each of [...this.parts, ...this.following]) each.dispose();
  }

  // --- to the panel

  private send(message: HostMessage): void {
    this.channel.send(message);
  }

  private post(message: HostMessage): void {
    if (!this.ready || this.view === undefined) {
      if (message.type === "attach" || message.type === "focus" || message.type === "showSessions" || message.type === "showServers") this.waiting.push(message);
      return;
    }
    void this.view.webview.postMessage(message);
  }

  private follow(conversation: Conversation): void {
    for (const each of this.following) each.dispose();
    this.following = [
      conversation.transcript.ops.on((op) => { this.channel.queue(op); }),
      conversation.transcript.planned.on(() => { this.postState(); }),
      conversation.changed.on(() => { this.postState(); }),
      conversation.cleared.on(() => { this.reset(conversation); }),
      conversation.queueChanged.on(() => { this.postState(); }),
      conversation.returned.on(({ text, attachments }) => { this.send({ type: "attach", text, attachments, add: true }); }),
      conversation.review.changed.on(() => { this.postChanges(conversation); }),
    ];
    this.reset(conversation);
  }

  private reset(conversation: Conversation, same = false): void {
    const { items } = conversation.transcript;
    const state = this.state();
    this.shown.fire(state);
    this.channel.clear();
    this.send({ type: "reset", items: items.slice(-AT_ONCE), first: Math.max(0, items.length - AT_ONCE), total: items.length, same, state });
    this.postChanges(conversation);
  }

  private postChanges({ review }: Conversation): void {
    this.send({ type: "changes", files: review.files, canRedo: review.canRedo });
  }

  private state(): State {
    const { current } = this.service;
    const { settings } = current;
    const opening = current.opening !== undefined || (current.closed && current.problem === undefined);
    const missing = !current.attached && current.problem?.action === "setUp";
    const status = !vscode.workspace.isTrusted ? "untrusted" : place() === undefined ? "noFolder" : missing ? "setUp" : opening ? "opening" : "ready";
    return {
      status,
      ...(current.problem === undefined ? {} : { problem: current.problem }),
      ...(missing ? { setUp: this.actions.setup.state } : {}),
      title: settings.title ?? "",
      session: current.sessionId ?? "",
      running: current.busy,
      queues: current.queues,
      stopsCalls: current.stopsCalls,
      now: Date.now(),
      queue: current.queue,
      options: choices(settings),
      commands: settings.commands.map((each) => ({ name: each.name, description: each.description, hint: each.input?.hint ?? "" })),
      ...(settings.usage === undefined ? {} : { usage: formatUsage(settings.usage) }),
      plan: current.transcript.plan.map(({ content, status: at, priority }) => ({ content, status: at, priority })),
      ...(settings.untrusted === undefined ? {} : { caution: settings.untrusted }),
    };
  }

  private postState(): void {
    const state = this.state();
    this.shown.fire(state);
    if (this.view !== undefined && "reveal" in this.view) this.view.title = state.title || UNTITLED;
    else if (this.view !== undefined) this.view.description = state.title;
    this.send({ type: "state", state });
  }

  private async postSessions(): Promise<void> {
    try {
      const busy = new Set(this.service.busy.map((each) => each.session?.id));
      const waiting = new Set(this.service.waiting.map((each) => each.session?.id));
      const sessions = (await this.service.list()).map((each) => ({
        id: each.sessionId,
        title: each.title ?? "Untitled",
        cwd: each.cwd.startsWith(homedir()) ? `~${each.cwd.slice(homedir().length)}` : each.cwd,
        when: each.updatedAt ?? "",
        current: each.sessionId === this.service.current.session?.id,
        busy: busy.has(each.sessionId),
        waiting: waiting.has(each.sessionId),
      }));
      this.send({ type: "sessions", sessions });
    } catch (problem) {
      this.send({ type: "sessions", sessions: [], problem: words(problem) });
    }
  }

  private async postServers(restart?: number): Promise<void> {
    try {
      this.send({ type: "servers", servers: await this.service.mcpServers(restart) });
    } catch (problem) {
      this.send({ type: "servers", servers: [], problem: words(problem) });
    }
  }

  /** Restore the last conversation, or start a new one. */
  private async start(): Promise<void> {
    this.follow(this.service.current);
    if (!vscode.workspace.isTrusted || place() === undefined) return;
    if (!this.service.current.hasMessages) await this.service.restore();
  }

  // --- from the panel

  private async handleMessage(message: WebviewMessage): Promise<void> {
    if (!vscode.workspace.isTrusted && !["ready", "trust", "link"].includes(message.type)) return;
    const { service } = this;
    const { current } = service;
    switch (message.type) {
      case "ready": {
        this.ready = true;
        await this.start();
        const waiting = this.waiting;
        this.waiting = [];
        for (const each of waiting) this.send(each);
        return;
      }
      case "send":
        return service.send(message.text, [...message.attachments], message.now);
      case "editQueued": {
        const { id, text } = message;
        const attachments = [...message.attachments];
        return current.editQueued(id, text, attachments, () => contentOf(text, attachments)).catch((problem: unknown) => {
          showError(problem);
          // It has started meanwhile. The edit is not lost.
          this.send({ type: "attach", text, attachments, add: true });
          this.postState();
        });
      }
      case "removeQueued":
        return current.removeQueued(message.id).catch(showError);
      case "sendQueuedNow":
        return current.session?.sendQueuedNow(message.id).catch(showError);
      case "keepChange":
        return current.review.keep(choiceOf(message)).catch(showError);
      case "undoChange":
        return this.restoreFiles(current, message.path === undefined ? "all" : "file", (how) => current.review.undo(choiceOf(message), how));
      case "redoChange":
        return this.redo();
      case "goToChange":
        await vscode.commands.executeCommand(`cantrip.review.${message.direction}`);
        return;
      case "openChange":
        return this.openChange(current, message.path).catch(showError);
      case "restore":
        return this.restoreTo(current, message.item).catch(showError);
      case "resend":
        return service.resend(message.item, message.text, [...message.attachments]);
      case "tryAgain":
        return service.resend(message.item);
      case "version":
        return this.showVersion(message.item, message.step).catch(showError);
      case "compareVersions":
        return this.compareVersions(current, message.item);
      case "continue":
        return service.continueAnswer(message.item);
      case "stop":
        return service.stop();
      case "new":
        service.newConversation();
        return;
      case "sessions":
        return this.postSessions();
      case "servers":
        return this.postServers();
      case "restartServer":
        return this.postServers(message.server);
      case "openServerSettings":
        await vscode.commands.executeCommand("workbench.action.openSettings", "cantrip.chat.mcpServers");
        return;
      case "open":
        return service.open(message.id);
      case "delete":
        if (await confirmed("Delete this session for good?", "Delete")) await service.delete(message.id).catch(showError);
        return this.postSessions();
      case "option":
        return this.choose(current, message.id, message.value);
      case "answer":
        service.permissions.answer(message.question, message.option, noteOf(message));
        return;
      case "answerForm":
        service.forms.answer(message.form, message.content);
        return;
      case "skipForm":
        service.forms.skip(message.form);
        return;
      case "fork":
        return this.fork(current, message.turn).catch(showError);
      case "location":
        return reveal(message.path, message.line);
      case "diff": {
        const diff = current.transcript.diff(message.item, message.path);
        return diff && this.approvals.show(diff, current.transcript.questionOf(message.item));
      }
      case "stopCall": {
        const call = current.transcript.callOf(message.item);
        return call === undefined ? undefined : current.session?.stopCall(call).catch(showError);
      }
      case "openOutput": {
        const output = current.transcript.outputOf(message.item);
        return output && this.approvals.showOutput(output.title, output.text);
      }
      case "link":
        return follow(message.href, current.folder);
      case "find":
        this.send({ type: "found", ask: message.ask, items: findWords(current.transcript.items, message.words) });
        return;
      case "mention":
        this.send({ type: "mentions", ask: message.ask, ...(await this.mentions.find(message.query)) });
        return;
      case "dropped": {
        const uris = message.uris.map((uri) => vscode.Uri.parse(uri)).filter((uri) => uri.scheme === "file" || uri.scheme === "vscode-remote");
        this.send({ type: "attach", attachments: await Promise.all(uris.map((uri) => fileAttached(vscode.Uri.file(uri.path)))) });
        return;
      }
      case "items": {
        const { items } = current.transcript;
        const first = Math.max(0, Math.min(message.from, items.length));
        const asked = items.slice(first, Math.min(message.to, first + MOST_ASKED));
        this.send({ type: "items", ask: message.ask, first, items: asked, total: items.length });
        return;
      }
      case "copy":
        return vscode.env.clipboard.writeText(message.text);
      case "copyAnswer":
        return vscode.env.clipboard.writeText(current.transcript.answer(message.item));
      case "insert":
        return insert(message.text);
      case "applyCode":
        return this.codeBlocks.apply(message.text, message.file, current.folder).catch(showError);
      case "newFile":
        return this.codeBlocks.newFile(message.text, message.language).catch(showError);
      case "runInTerminal":
        return this.codeBlocks.runInTerminal(message.text, message.language, current.folder).catch(showError);
      case "picture": {
        const data = await pictureData(message.href, current.folder, (vscode.workspace.workspaceFolders ?? []).map(({ uri }) => uri.fsPath));
        this.send({ type: "picture", ask: message.ask, ...(data === undefined ? {} : { data }) });
        return;
      }
      case "askAgain":
        return service.askAgain(message.item);
      case "retry":
        return service.retry();
      case "restart":
        return service.restart();
      case "signIn":
        await this.actions.signIn();
        return;
      case "setUp":
        // The page shows its progress, or a message does if the conversation is in the page.
        if (this.state().status === "setUp") await this.actions.setup.run();
        else await vscode.commands.executeCommand("cantrip.setup");
        return;
      case "cancelSetUp":
        this.actions.setup.cancel();
        return;
      case "otherSetUp":
        await this.actions.setup.otherWays();
        return;
      case "trust":
        await vscode.commands.executeCommand("workbench.trust.manage");
        return;
      case "openFolder":
        await vscode.commands.executeCommand("workbench.action.files.openFolder");
        return;
    }
  }

  private async showVersion(item: string, step: -1 | 1): Promise<void> {
    const found = await this.service.openVersion(item, step);
    this.send(found === undefined ? { type: "focus" } : { type: "reveal", item: found.id, index: found.index, step });
  }

  /** Show the session side by side with one that has another version of a message. */
  private async compareVersions({ transcript }: Conversation, itemId: string): Promise<void> {
    const item = transcript.items.find((each) => each.id === itemId);
    if (item?.type !== "user" || item.versions === undefined) return;
    const { at, sessions } = item.versions;
    const others = [...sessions.keys()].filter((each) => each !== at);
    let [other] = others;
    if (others.length > 1) {
      const titles = new Map((await this.service.list()).map(({ sessionId, title }) => [sessionId, title ?? ""]));
      const choices = others.map((place) => ({ label: `Version ${place + 1} of ${sessions.length}`, description: titles.get(sessions[place] ?? "") ?? "", place }));
      other = (await vscode.window.showQuickPick(choices, { title: `Compare version ${at + 1} of this message with…` }))?.place;
    }
    if (other === undefined) return;
    const [first, second] = [Math.min(at, other), Math.max(at, other)];
    const [left, right] = [sessions[first], sessions[second]];
    if (left !== undefined && right !== undefined) this.actions.compare({ left, right, title: `Versions ${first + 1} and ${second + 1} of “${firstWords(item.text)}”` });
  }

  /** Take the last restore of the conversation that is shown back. */
  redo(): Promise<void> {
    const { current } = this.service;
    return this.restoreFiles(current, "redo", (how) => current.review.redo(how));
  }

  /** Restore files and say what was done. Before that, the user decides about the files that they changed too. */
  private async restoreFiles({ transcript }: Conversation, what: "all" | "file" | "redo", restore: (how: RestoreOptions) => Promise<RestoreResult>): Promise<void> {
    try {
      // One file needs no plan: if the user changed it too, this does nothing.
      let result = await restore({ dryRun: what !== "file" });
      const overwrite = await askToOverwrite(result);
      if (overwrite === undefined) return;
      if (overwrite || what !== "file") result = await restore({ force: overwrite });
      if (what === "all" || result.conflicts.length > 0 || result.left.length > 0) transcript.addNotice(result.conflicts.length > 0 ? "warning" : "info", ...doneWords(result));
    } catch (problem) {
      showError(problem);
    }
  }

  /** Ask, and restore the files as they were before a message, or after an answer. The conversation may continue from there. */
  private async restoreTo(conversation: Conversation, itemId: string): Promise<void> {
    const point = conversation.transcript.point(itemId);
    if (point === undefined || conversation.session === undefined || conversation.busy) return;
    const { turn, text, attachments } = point;
    const plan = await conversation.review.restore(turn, { dryRun: true });
    const [only, both] = ["Restore Files", "Restore Files and Continue From There"] as const;
    const nothing = plan.restored.length === 0 && plan.conflicts.length === 0;
    const when = text === undefined ? "after this answer" : "before this message";
    const chosen = nothing
      ? await vscode.window.showInformationMessage(`The files are already as they were ${when}.`, { modal: true, detail: plannedWords(plan) }, "Continue From There")
      : await vscode.window.showWarningMessage(`Restore the files as they were ${when}?`, { modal: true, detail: plannedWords(plan) }, only, both);
    if (chosen === undefined) return;
    const overwrite = await askToOverwrite(plan);
    if (overwrite === undefined) return;
    const result = nothing ? undefined : await conversation.review.restore(turn, { force: overwrite });
    if (chosen === both || nothing) {
      if (!(await this.continueFrom(conversation, turn, result))) return;
      if (text !== undefined) this.send({ type: "attach", text, attachments });
      this.send({ type: "focus" });
    } else if (result !== undefined) conversation.transcript.addNotice(result.conflicts.length > 0 ? "warning" : "info", ...doneWords(result));
  }

  /** Fork from a turn. If files were changed after it, offer to restore them too. */
  private async fork(conversation: Conversation, turn: string | 0): Promise<void> {
    // Without a plan (no files are kept, or the agent works), there is nothing to offer.
    const plan = await conversation.review.restore(turn, { dryRun: true }).catch(() => undefined);
    let result: RestoreResult | undefined;
    if (plan !== undefined && plan.restored.length + plan.conflicts.length > 0) {
      const [both, only] = ["Restore Files and Fork", "Fork Only"] as const;
      const chosen = await vscode.window.showWarningMessage("Also restore the files as they were after this turn?", { modal: true, detail: plannedWords(plan) }, both, only);
      const overwrite = chosen === both ? await askToOverwrite(plan) : false;
      if (chosen === undefined || overwrite === undefined) return;
      if (chosen === both) result = await conversation.review.restore(turn, { force: overwrite });
    }
    await this.continueFrom(conversation, turn, result);
  }

  /** Show a fork of a conversation, and what was restored for it. Returns false if it could not be made. */
  private async continueFrom(conversation: Conversation, turn: string | 0, restored: RestoreResult | undefined): Promise<boolean> {
    await this.service.fork(turn);
    const { current } = this.service;
    if (current === conversation) return false;
    current.review.continues(conversation.review);
    if (restored !== undefined) current.transcript.addNotice("info", ...doneWords(restored));
    return true;
  }

  /** Undo a change that was chosen outside of the page. */
  async undoChangeOf(review: Review, choice: FileChoice): Promise<void> {
    const conversation = this.service.conversationOf(review);
    if (conversation !== undefined) await this.restoreFiles(conversation, "file", (how) => review.undo(choice, how));
  }

  /** Show the changes of a file in the diff editor. */
  async openChangeOf(review: Review, path: string): Promise<void> {
    const conversation = this.service.conversationOf(review);
    if (conversation !== undefined) await this.openChange(conversation, path);
  }

  private async openChange(conversation: Conversation, path: string): Promise<void> {
    const file = conversation.review.files.find((each) => each.path === path);
    if (file === undefined) return;
    const full = vscode.Uri.parse(file.uri).fsPath;
    const texts = await conversation.session?.changedTexts(path);
    if (texts === undefined || (file.hunks.length === 0 && file.left === 0)) return reveal(full, undefined);
    return this.approvals.show({ path: full, oldText: file.status === "added" ? null : texts.before, newText: texts.after ?? "" });
  }

  private async choose(conversation: Conversation, id: string, value: string | boolean): Promise<void> {
    const { session } = conversation;
    if (session === undefined) return;
    try {
      if (id === "mode" && !session.settings.options.some((option) => option.id === "mode")) await session.setMode(String(value));
      else await session.setOption(id, value);
      if (id === "model") this.service.refreshModels(session.id);
    } catch (problem) {
      // The change failed, so the panel shows the current value.
      this.postState();
      if (wantsSignIn(problem)) await this.actions.signIn();
      else showError(problem);
    }
  }
}

/** The first words of a message, for a title. */
function firstWords(text: string): string {
  const [line = ""] = text.trim().split("\n");
  return line.length > 24 ? `${line.slice(0, 23).trimEnd()}…` : line;
}

/** Insert text at the cursor of the last active editor, replacing the selection; in a new file if there is no editor. */
async function insert(text: string): Promise<void> {
  const editor = vscode.window.activeTextEditor ?? vscode.window.visibleTextEditors[0];
  if (editor === undefined) {
    await vscode.window.showTextDocument(await vscode.workspace.openTextDocument({ content: text }));
    return;
  }
  const { selections } = editor;
  const done = await editor.edit((edit) => { for (const each of selections) edit.replace(each, text); });
  if (!done) void vscode.window.showWarningMessage("The code could not be inserted: this editor is read-only.");
}

function showError(problem: unknown): void {
  void vscode.window.showWarningMessage(`Cantrip: ${words(problem)}`);
}

async function confirmed(question: string, yes: string): Promise<boolean> {
  return (await vscode.window.showWarningMessage(question, { modal: true }, yes)) === yes;
}

/** Ask about the files of a restore that the user changed too: true to overwrite them, false to leave them (also if there are none), undefined to cancel all. */
async function askToOverwrite(plan: RestoreResult): Promise<boolean | undefined> {
  if (plan.conflicts.length === 0) return false;
  const [title, detail] = conflictWords(plan);
  const overwrite = "Overwrite My Changes";
  const chosen = await vscode.window.showWarningMessage(title, { modal: true, detail }, overwrite, "Keep Mine");
  return chosen === undefined ? undefined : chosen === overwrite;
}

/** What the user adds to an answer; nothing if it is empty. */
function noteOf({ reason = "", plan = "" }: AnswerNote): AnswerNote | undefined {
  return reason === "" && plan === "" ? undefined : { ...(reason === "" ? {} : { reason }), ...(plan === "" ? {} : { plan }) };
}

/** The part of a message that names changes. */
function choiceOf({ path, hunk, version }: FileChoice): FileChoice {
  return { ...(path === undefined ? {} : { path }), ...(hunk === undefined ? {} : { hunk }), ...(version === undefined ? {} : { version }) };
}

function page(webview: vscode.Webview, extension: vscode.Uri, tab: string | undefined): string {
  const nonce = randomBytes(18).toString("base64");
  const file = (name: string): string => webview.asWebviewUri(vscode.Uri.joinPath(extension, "dist", "chat", name)).toString();
  const policy = [
    "default-src 'none'",
    `style-src ${webview.cspSource}`,
    `font-src ${webview.cspSource}`,
    `script-src 'nonce-${nonce}'`,
    "img-src data:",
    "form-action 'none'",
    "base-uri 'none'",
  ].join("; ");
  return `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="${file("codicon.css")}">
<link rel="stylesheet" href="${file("chat.css")}">
<title>Cantrip</title>
</head>
<body${tab === undefined ? "" : ` class="tab" data-tab="${tab.replace(/[^\w-]/g, "")}"`}>
<main id="chat"></main>
<script nonce="${nonce}" src="${file("chat.js")}"></script>
</body>
</html>`;
}
