import type * as acp from "@agentclientprotocol/sdk/unstable";
import * as vscode from "vscode";
import type { Agent } from "../acp/agent";
import { isGone, isInUse, describeError } from "../acp/errors";
import { type McpStatus, serversOf } from "../acp/mcp";
import type { Place, Session } from "../acp/session";
import { Signal, type Subscription } from "../acp/signal";
import { contentOf } from "./attachments";
import { Conversation, type Wanted } from "./conversation";
import { answerLine } from "./formfields";
import type { Forms } from "./forms";
import type { Attachment, FormItem, ToolItem } from "./items";
import type { Review } from "./review";
import type { Pending, Permissions } from "./permissions";
import { REUSE } from "./state";
import { listed, type Listed, versionsOf } from "./versions";

const LAST = "cantrip.chat.session";
/** The stored open questions: calls that need a permission, and forms. If the window closes before an answer, they are shown again. */
const WAITING = "cantrip.chat.waiting";
const MOST_WAITING = 20;
/** After a reload, the agent of the window that closed may still need a moment to release its session. */
const RELEASE_MS = 30_000;
const RELEASE_STEP_MS = 250;

interface Waiting {
  readonly session: string;
  readonly item: ToolItem | FormItem;
}

const ASK = "ask";


/** What the views of a window share: its conversations. */
class Shared {
  readonly conversations = new Map<string, Conversation>();
  readonly running = new Set<Conversation>();
  readonly busyChanged = new Signal<void>();
  readonly deleted = new Signal<Conversation>();
  readonly reviewed = new Signal<void>();
  readonly signedIn = new Signal<void>();
  readonly last = new WeakMap<Conversation, { text: string; attachments: Attachment[] }>();
  /** The sessions as the agent listed them last, and the number of that list. */
  listed: readonly Listed[] = [];
  lists = 0;
}

/**
 * The conversations of this window, and the one that a view shows. The side bar's view has the first service; each editor tab
 * has one from `another`.
 */
export class ChatService implements vscode.Disposable {
  readonly onDidShowConversation = new Signal<Conversation>();
  readonly busyChanged: Signal<void>;
  /** Fires for updates of the conversation that is shown. */
  readonly onUpdate = new Signal<acp.SessionUpdate>();
  private readonly conversations: Map<string, Conversation>;
  private conversation: Conversation | undefined;
  private readonly running: Set<Conversation>;
  private forking = false;
  private readonly parts: readonly Subscription[];
  private readonly last: WeakMap<Conversation, { text: string; attachments: Attachment[] }>;

  constructor(
    readonly agent: Agent,
    readonly permissions: Permissions,
    readonly forms: Forms,
    private readonly memory: vscode.Memento,
    /** Lets the user choose a model. Resolves to false if they do not. */
    private readonly signIn: () => Promise<boolean>,
    private readonly shared = new Shared(),
    /** The session that an editor tab opens first, as the tab kept it. Without it, the workspace keeps the session of the side bar. */
    private readonly first?: { readonly session: Wanted | undefined },
  ) {
    ({ conversations: this.conversations, running: this.running, busyChanged: this.busyChanged, last: this.last } = shared);
    this.parts = [
      shared.deleted.on((conversation) => { if (conversation === this.conversation) this.newConversation(); }),
      shared.signedIn.on(() => void this.retryStart()),
      agent.restarted.on(() => void this.retryStart()),
    ];
    if (first !== undefined) return;
    permissions.asked.on((pending) => { this.addQuestion(pending); });
    permissions.settled.on(({ pending, option }) => {
      const { sessionId, toolCall, options } = pending.request;
      const chosen = options.find((each) => each.optionId === option);
      const conversation = this.of(sessionId);
      const answer = chosen?.kind ?? (conversation?.stopped === true ? "stopped" : "unanswered");
      conversation?.transcript.setAnswer(toolCall.toolCallId, answer);
      // A closing window answers nothing. The question is shown again when the session is reopened.
      if (answer !== "unanswered") this.forget(sessionId, toolCall.toolCallId);
    });
    forms.asked.on((form) => {
      const item = this.of(form.session)?.transcript.addForm(form);
      if (item !== undefined) this.keepQuestion({ session: form.session, item: { ...item, question: undefined } });
    });
    forms.settled.on(({ form, result }) => {
      const conversation = this.of(form.session);
      const answer = result.how === "closed" ? (conversation?.stopped === true ? "stopped" : "unanswered") : result.how;
      conversation?.transcript.closeForm(form.id, answer, result.how === "answered" ? answerLine(form.fields, result.content) : undefined);
      if (answer !== "unanswered") this.forget(form.session, form.call ?? form.id);
    });
    agent.ended.on(() => {
      for (const conversation of this.running) this.cancelQuestions(conversation.session?.id ?? "");
      if (this.running.size === 0 && this.conversation?.attached === true) this.conversation.transcript.addNotice("warning", "Cantrip stopped", "It starts again with your next message. Nothing of this conversation is lost.");
    });
  }

  /** The service of another view, with the same conversations. `session` is the one that it shows first. */
  another(session: Wanted | undefined): ChatService {
    return new ChatService(this.agent, this.permissions, this.forms, this.memory, this.signIn, this.shared, { session });
  }

  /** The conversation that is shown. The first one is that from before the window was loaded, which is not open yet, or else a new one. */
  get current(): Conversation {
    this.conversation ??= this.addListeners(new Conversation(place()?.cwd ?? "", this.kept()));
    return this.conversation;
  }

  private kept(): Wanted | undefined {
    if (this.first !== undefined) return this.first.session;
    const id = this.memory.get<string>(LAST);
    return id === undefined ? undefined : { id };
  }

  /** The session of the conversation that is shown, if it has one. */
  get shownSession(): Session | undefined {
    return this.conversation?.session;
  }

  get busy(): readonly Conversation[] {
    return [...this.running];
  }

  /** The conversations in which the agent waits for an answer of the user, in the order in which their prompts began. */
  get waiting(): readonly Conversation[] {
    return this.busy.filter((each) => {
      const id = each.session?.id ?? "";
      return this.permissions.of(id).length > 0 || this.forms.of(id).length > 0;
    });
  }

  /** Send a message. During an answer it waits for its end, or with `now` for the next query. */
  async send(text: string, attachments: Attachment[], now = false): Promise<void> {
    const where = place();
    if (where === undefined) throw new Error("Open a folder first. Cantrip works in a folder.");
    const conversation = await this.openWanted();
    if (conversation === undefined) {
      this.current.returned.fire({ text, attachments });
      return;
    }
    if (conversation.session !== undefined && !conversation.busy) this.forget(conversation.session.id);
    this.last.set(conversation, { text, attachments });
    await conversation.prompt(
      text,
      attachments,
      () => contentOf(text, attachments),
      () => this.begin(conversation, where),
      this.signIn,
      now,
    );
  }

  /** Let an answer that was cut go on: a prompt without content. */
  async continueAnswer(itemId: string): Promise<void> {
    const where = place();
    const conversation = this.current;
    if (where === undefined || conversation.session === undefined || conversation.busy || !conversation.transcript.canContinue(itemId)) return;
    this.forget(conversation.session.id);
    await conversation.prompt("", [], () => Promise.resolve([]), () => this.begin(conversation, where), this.signIn, false, true);
  }

  /** Send the last prompt again. If there was none, open the session again. */
  async retry(): Promise<void> {
    const last = this.last.get(this.current);
    if (last === undefined || this.current.problem !== undefined) return this.retryStart();
    await this.send(last.text, last.attachments);
  }

  /**
   * Before a message is sent: wait until the session that is shown is open, or open it. Resolves to the conversation that gets the
   * message, whichever is shown by then: that one, or a new one if its session is gone; undefined if there is none.
   */
  private async openWanted(): Promise<Conversation | undefined> {
    const { current: asked } = this;
    await asked.opening;
    if (!asked.closed) return asked;
    if (this.current !== asked) return undefined;
    if (asked.gone) {
      this.newConversation();
      return this.current;
    }
    const opening = this.prepare();
    const { current: opened } = this;
    await opening;
    return opened.closed ? undefined : opened;
  }

  /** Start again if no session could be opened: open the session that belongs here, or a new one. */
  async retryStart(): Promise<void> {
    await this.conversation?.opening;
    const { conversation } = this;
    if (conversation === undefined || conversation.attached || conversation.problem === undefined) return;
    conversation.setProblem(undefined);
    await this.prepare();
  }

  /** Let the agent repeat a question that was not answered. */
  async askAgain(itemId: string): Promise<void> {
    const what = this.current.transcript.unansweredTitle(itemId);
    if (what === undefined) return;
    const [line = "", ...more] = what.split("\n");
    await this.send(`I did not answer your question about “${line.slice(0, 200)}${more.length > 0 || line.length > 200 ? " …" : ""}”. Ask me again.`, []);
  }

  /**
   * Open a session for the conversation, so that its options and commands are known before the first prompt: the one that belongs to
   * it, or else a new one. `patienceMs` as for `open`.
   */
  async prepare(patienceMs = 0): Promise<void> {
    const where = place();
    const conversation = this.current;
    if (where === undefined || conversation.session !== undefined || conversation.busy) return;
    if (conversation.wanted !== undefined) return conversation.opening ?? this.open(conversation.wanted.id, undefined, patienceMs);
    try {
      const session = await this.begin(conversation, where);
      // A prompt that was sent in the meantime opened a session.
      if (!conversation.attached) conversation.attach(session);
    } catch (problem) {
      if (!conversation.attached && !conversation.hasMessages) conversation.setProblem(describeError(problem));
    }
  }

  /**
   * Go on with the model that was chosen: also in the conversation that is shown, where a message that failed for want of a
   * key is sent again.
   */
  async signedIn(model: string): Promise<void> {
    this.shared.signedIn.fire();
    const { session, transcript } = this.current;
    if (session === undefined) return;
    const last = transcript.items.at(-1);
    await session.setOption("model", model);
    this.refreshModels(session.id);
    if (last?.type === "error" && last.action === "signIn") await this.retry();
  }

  /** Switch the mode to `ask`, or back to the one from before. */
  async toggleAsk(): Promise<void> {
    const conversation = this.current;
    const { session } = conversation;
    const mode = session?.settings.modes?.currentModeId;
    if (session === undefined || mode === undefined) return;
    await session.setMode(mode === ASK ? conversation.modeBeforeAsk : ASK);
    if (mode !== ASK) conversation.modeBeforeAsk = mode;
  }

  async stop(): Promise<void> {
    const conversation = this.current;
    const id = conversation.session?.id;
    await conversation.stop();
    if (id !== undefined) this.cancelQuestions(id);
  }

  private cancelQuestions(session: string): void {
    this.permissions.cancel(session);
    this.forms.cancel(session);
  }

  newConversation(): void {
    this.show(this.addListeners(new Conversation(place()?.cwd ?? "")));
    this.remember(undefined);
    void this.prepare();
  }

  /** Open a session by its id: from this window if it is open, otherwise from the agent with its history. Tries again for `patienceMs` while another agent has it. */
  async open(id: string, cwd?: string, patienceMs = 0): Promise<void> {
    const known = this.conversations.get(id);
    if (known !== undefined) {
      this.show(known);
      this.remember(id);
      void this.refreshVersions();
      return known.opening;
    }
    const here = place();
    const where: Place = { cwd: cwd ?? here?.cwd ?? "", directories: cwd === undefined || cwd === here?.cwd ? (here?.directories ?? []) : [], servers: here?.servers ?? [] };
    const title = this.conversation?.wanted?.id === id ? this.conversation.wanted.title : undefined;
    const conversation = this.addListeners(new Conversation(where.cwd, { id, title }));
    // Another view may show the same session: it is opened once.
    this.conversations.set(id, conversation);
    conversation.opening = this.load(id, where, conversation, Date.now() + patienceMs).finally(() => {
      conversation.opening = undefined;
      conversation.changed.fire(conversation.settings);
    });
    this.show(conversation);
    await conversation.opening;
  }

  /** Restore the conversation that was shown when the window closed. */
  async restore(): Promise<void> {
    await this.prepare(RELEASE_MS);
  }

  async fork(turn: string | 0): Promise<void> {
    const session = this.current.session;
    if (session === undefined) return;
    try {
      await this.openFork(session, turn);
      this.current.transcript.addNotice("info", "A fork", "This session continues from that turn. The earlier session stays as it is.");
    } catch (problem) {
      this.current.transcript.addError(describeError(problem));
    }
  }

  /**
   * Send a message again, or another one in its place, in a fork of the session from before the message. `itemId` is the
   * message or the end of its answer. The earlier session keeps the earlier answer.
   */
  async resend(itemId: string, text?: string, attachments?: Attachment[]): Promise<void> {
    const conversation = this.current;
    const { session, transcript } = conversation;
    const message = transcript.message(itemId);
    if (message === undefined || conversation.busy || this.forking) return;
    this.forking = true;
    try {
      if (session !== undefined) await this.openFork(session, message.after);
    } catch (problem) {
      transcript.addError(describeError(problem));
      return;
    } finally {
      this.forking = false;
    }
    this.current.transcript.addNotice("info", text === undefined ? "Tried again" : "Edited", "The earlier version stays in its own session.");
    await this.send(text ?? message.text, attachments ?? message.attachments);
  }

  /**
   * Open the session with the version before or after that of a message. Resolves to the message there; undefined if it has
   * no message in that place, or is not there any more.
   */
  async openVersion(itemId: string, step: -1 | 1): Promise<{ readonly index: number; readonly id: string } | undefined> {
    const { current } = this;
    const message = current.transcript.items.find((item) => item.id === itemId);
    if (message?.type !== "user" || message.versions === undefined) return undefined;
    const wanted = message.versions.sessions[message.versions.at + step];
    await this.refreshVersions();
    if (wanted === undefined || this.current !== current || !this.shared.listed.some(({ id }) => id === wanted)) return undefined;
    await this.open(wanted);
    return this.current.sessionId === wanted ? this.current.transcript.messageAfter(message.after) : undefined;
  }

  /** Look again which messages of this window's conversations have versions in other sessions. */
  private async refreshVersions(): Promise<void> {
    const { shared } = this;
    shared.lists += 1;
    const number = shared.lists;
    let sessions: acp.SessionInfo[];
    try {
      sessions = await this.list();
    } catch {
      // Without a list, the messages keep the versions that were known.
      return;
    }
    if (number !== shared.lists) return;
    shared.listed = listed(sessions);
    for (const conversation of this.conversations.values()) conversation.transcript.refreshVersions();
  }

  private async openFork(session: Session, turn: string | 0): Promise<void> {
    await this.open(await this.agent.forkSession(session.id, session.workspaceLocation, turn));
  }

  /**
   * The MCP servers of the conversation that is shown; after a restart of one of them, if its place in the list is given. If
   * that brought tools that the session does not have, the session is opened again.
   */
  async mcpServers(restart?: number): Promise<readonly McpStatus[]> {
    const { current } = this;
    const { session } = current;
    if (session === undefined) return [];
    await session.ensureConnected();
    const servers = await this.agent.mcpServers(session.id, restart);
    const isNew = restart !== undefined && servers.some((server) => server.tools.some((tool) => !tool.usable));
    if (!isNew || current.busy || this.current !== current) return servers;
    await this.agent.closeSession(session.id);
    this.conversations.delete(session.id);
    current.dispose();
    await this.open(session.id);
    return this.agent.mcpServers(session.id);
  }

  async list(): Promise<acp.SessionInfo[]> {
    const where = place();
    return this.agent.listSessions(where?.cwd);
  }

  async delete(id: string): Promise<void> {
    await this.agent.deleteSession(id);
    const conversation = this.conversations.get(id);
    this.conversations.delete(id);
    conversation?.dispose();
    void this.refreshVersions();
    if (conversation !== undefined) this.shared.deleted.fire(conversation);
  }

  async restart(): Promise<void> {
    await this.agent.restart();
    const { session } = this.current;
    if (session === undefined) return;
    try {
      await session.ensureConnected();
      this.current.transcript.addNotice("info", "Cantrip was restarted", "");
    } catch (problem) {
      this.current.transcript.addError(describeError(problem));
    }
  }

  of(sessionId: string): Conversation | undefined {
    return this.conversations.get(sessionId);
  }

  /** Fires if the changed files of any conversation of this window are other ones. */
  get reviewed(): Signal<void> {
    return this.shared.reviewed;
  }

  /** The changes of all conversations of this window. */
  get reviews(): readonly Review[] {
    return [...this.conversations.values()].map(({ review }) => review);
  }

  /** The conversation whose changes these are. */
  conversationOf(review: Review): Conversation | undefined {
    return [...this.conversations.values()].find((each) => each.review === review);
  }

  /** A file was saved in the editor. */
  saved(path: string): void {
    for (const conversation of this.conversations.values()) conversation.review.saved(path);
  }

  onTerminalOutput(terminalId: string, data: string): void {
    for (const conversation of this.conversations.values()) conversation.transcript.appendOutput(terminalId, data);
  }

  /** The view is gone. The conversations of the window end with its first service. */
  dispose(): void {
    for (const part of this.parts) part.dispose();
    if (this.first !== undefined) return;
    for (const conversation of this.conversations.values()) conversation.dispose();
  }

  /** Open the session of a conversation, with its history. If that fails, the conversation says why. */
  private async load(id: string, where: Place, conversation: Conversation, until: number): Promise<void> {
    const { transcript } = conversation;
    transcript.replaying = true;
    try {
      await this.tryToLoad(id, where, conversation, until);
      transcript.endReplay(conversation.session?.incomplete);
      this.refreshModels(id);
      void this.refreshVersions();
      conversation.review.refreshSoon();
      for (const each of this.pendingQuestions()) if (each.session === id) transcript.addUnanswered(each.item);
      if (conversation === this.conversation) this.remember(id);
    } catch (problem) {
      this.conversations.delete(id);
      transcript.replaying = false;
      conversation.gone = isGone(problem);
      const notice = describeError(problem);
      conversation.detach(notice.action === "none" ? { ...notice, action: "retry" } : notice);
      if (conversation.gone && this.memory.get(LAST) === id) this.remember(undefined);
    }
  }

  private async tryToLoad(id: string, where: Place, conversation: Conversation, until: number): Promise<void> {
    for (;;) {
      try {
        await this.agent.loadSession(id, where, (session) => {
          conversation.transcript.clear();
          conversation.attach(session);
        });
        return;
      } catch (problem) {
        if (!isInUse(problem) || Date.now() >= until) throw problem;
        await new Promise((resolve) => setTimeout(resolve, RELEASE_STEP_MS));
      }
    }
  }

  /** Let the picker have all models of the server. It works without them, so nothing waits for this. */
  refreshModels(sessionId: string): void {
    this.agent.refreshModels(sessionId).catch(() => undefined);
  }

  private async begin(conversation: Conversation, where: Place): Promise<Session> {
    const session = await this.agent.newSession(where);
    await setFirstMode(session);
    await setReuse(session);
    this.conversations.set(session.id, conversation);
    this.refreshModels(session.id);
    // The window may reload during an answer.
    if (conversation.busy && conversation === this.conversation) this.remember(session.id);
    return session;
  }

  private show(conversation: Conversation): void {
    this.conversation = conversation;
    this.onDidShowConversation.fire(conversation);
  }

  private addListeners(conversation: Conversation): Conversation {
    conversation.transcript.versionsAt = (turn, earlier) => versionsOf(this.shared.listed, conversation.sessionId ?? "", turn, earlier);
    conversation.onUpdate.on((update) => { if (conversation === this.conversation) this.onUpdate.fire(update); });
    conversation.review.changed.on(() => { this.shared.reviewed.fire(); });
    // Another session may have changed the same files, and compares them with what is there.
    conversation.review.written.on((paths) => {
      for (const other of this.conversations.values()) if (other !== conversation) for (const path of paths) other.review.saved(path);
    });
    conversation.onPromptStart.on(() => {
      this.running.add(conversation);
      if (conversation.session !== undefined && conversation === this.conversation) this.remember(conversation.session.id);
      this.busyChanged.fire();
    });
    conversation.onPromptEnd.on(() => {
      this.running.delete(conversation);
      if (conversation.session !== undefined && conversation === this.conversation) this.remember(conversation.session.id);
      this.busyChanged.fire();
    });
    return conversation;
  }

  private addQuestion(pending: Pending): void {
    const { request } = pending;
    const options = request.options.map((each) => ({ id: each.optionId, name: each.name, kind: each.kind }));
    const transcript = this.of(request.sessionId)?.transcript;
    transcript?.question({ id: pending.id, options }, request.toolCall);
    const item = transcript?.call(request.toolCall.toolCallId);
    if (item === undefined) return;
    this.keepQuestion({ session: request.sessionId, item: { ...item, question: undefined } });
  }

  private keepQuestion(kept: Waiting): void {
    void this.memory.update(WAITING, [...this.pendingQuestions(), kept].slice(-MOST_WAITING));
  }

  private pendingQuestions(): Waiting[] {
    return this.memory.get<Waiting[]>(WAITING, []);
  }

  /** Forget the open question of a call or a form, or all of a session. */
  private forget(session: string, id?: string): void {
    const all = this.pendingQuestions();
    const left = all.filter(({ session: of, item }) => of !== session || (id !== undefined && (item.callId ?? (item.type === "form" && item.form)) !== id));
    if (left.length !== all.length) void this.memory.update(WAITING, left);
  }

  private remember(id: string | undefined): void {
    if (this.first === undefined) void this.memory.update(LAST, id);
  }
}

/** Set the mode of a new session that the settings name. The setting of a workspace can only be stricter than `trusted`. */
export async function setFirstMode(session: Session): Promise<void> {
  const mode = vscode.workspace.getConfiguration("cantrip").get("chat.mode", "");
  if (!["sandboxed", ASK, "read-only", "plan"].includes(mode) || mode === session.settings.modes?.currentModeId) return;
  await session.setMode(mode);
}

/** Switch the reuse of results off in a new session, if the setting says so. */
export async function setReuse(session: Session): Promise<void> {
  const reuse = vscode.workspace.getConfiguration("cantrip").get("chat.reuseResults", true);
  const known = session.settings.options.find((option) => option.id === REUSE);
  if (known?.type === "boolean" && known.currentValue !== reuse) await session.setOption(REUSE, reuse);
}

/** The folders of a session: the first folder of the workspace, and the other folders; and the MCP servers of the settings. */
export function place(): Place | undefined {
  const folders = (vscode.workspace.workspaceFolders ?? []).filter((folder) => folder.uri.scheme === "file").map((folder) => folder.uri.fsPath);
  const [cwd, ...directories] = folders;
  if (cwd === undefined) return undefined;
  const known = (text: string): string =>
    text.replace(/\$\{(?:workspaceFolder|env:(\w+))\}/g, (_, name: string | undefined) => (name === undefined ? cwd : (process.env[name] ?? "")));
  return { cwd, directories, servers: serversOf(vscode.workspace.getConfiguration("cantrip").get<unknown>("chat.mcpServers"), known) };
}
