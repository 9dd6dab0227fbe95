import type * as acp from "@agentclientprotocol/sdk/unstable";
import * as vscode from "vscode";
import type { Agent } from "../acp/agent";
import { isInUse, describeError } from "../acp/errors";
import type { Place, Session } from "../acp/session";
import { Signal } from "../acp/signal";
import { contentOf } from "./attachments";
import { Conversation } from "./conversation";
import type { Attachment, ToolItem } from "./items";
import type { Pending, Permissions } from "./permissions";
import { signIn } from "./signin";

const LAST = "cantrip.chat.session";
/** The stored open questions with their calls. If the window closes before an answer, they are shown again. */
const WAITING = "cantrip.chat.waiting";
const MOST_WAITING = 20;
/** After a reload, the agent of the window that closed may still need a moment to release its session. */
const RELEASE_MS = 15_000;
const RELEASE_STEP_MS = 250;

interface Waiting {
  readonly session: string;
  readonly item: ToolItem;
}

/** The conversations of this window, and the one that the panel shows. */
export class ChatService implements vscode.Disposable {
  readonly onDidShowConversation = new Signal<Conversation>();
  readonly busyChanged = new Signal<void>();
  /** Fires for updates of the conversation that is shown. */
  readonly onUpdate = new Signal<acp.SessionUpdate>();
  private readonly conversations = new Map<string, Conversation>();
  private conversation: Conversation | undefined;
  private readonly running = new Set<Conversation>();
  private readonly last = new WeakMap<Conversation, { text: string; attachments: Attachment[] }>();

  constructor(
    readonly agent: Agent,
    readonly permissions: Permissions,
    private readonly memory: vscode.Memento,
    private readonly agentProgram: () => Promise<{ command: string; args: readonly string[] }>,
  ) {
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
    agent.ended.on(() => {
      for (const conversation of this.running) this.permissions.cancel(conversation.session?.id ?? "");
      if (this.running.size === 0) this.conversation?.transcript.addNotice("warning", "Cantrip stopped", "It starts again with your next message. Nothing of this conversation is lost.");
    });
  }

  /** The conversation that is shown; a new one if there is none. */
  get current(): Conversation {
    this.conversation ??= this.addListeners(new Conversation(place()?.cwd ?? ""));
    return this.conversation;
  }

  /** The session of the conversation that is shown, if it has one. */
  get shownSession(): Session | undefined {
    return this.conversation?.session;
  }

  get busy(): readonly Conversation[] {
    return [...this.running];
  }

  async send(text: string, attachments: Attachment[]): Promise<void> {
    const where = place();
    if (where === undefined) throw new Error("Open a folder first. Cantrip works in a folder.");
    const conversation = this.current;
    if (conversation.session !== undefined) this.forget(conversation.session.id);
    this.last.set(conversation, { text, attachments });
    await conversation.prompt(
      text,
      attachments,
      contentOf(text, attachments),
      () => this.begin(conversation, where),
      () => signIn(this.agent, this.agentProgram),
    );
  }

  /** Send the last prompt again. If there was none, open the session again. */
  async retry(): Promise<void> {
    const last = this.last.get(this.current);
    if (last === undefined) return this.prepare();
    await this.send(last.text, last.attachments);
  }

  /** Start again in a new conversation if this one holds nothing but the reasons why no session could be opened. */
  retryStart(): void {
    const { session, transcript } = this.current;
    if (session === undefined && transcript.items.length > 0 && transcript.items.every((item) => item.type === "error")) this.newConversation();
  }

  /** Let the agent repeat a question that was not answered. */
  async askAgain(itemId: string): Promise<void> {
    const what = this.current.transcript.unansweredTitle(itemId);
    if (what === undefined) return;
    const [line = "", ...more] = what.split("\n");
    await this.send(`I did not answer your question about “${line.slice(0, 200)}${more.length > 0 || line.length > 200 ? " …" : ""}”. Ask me again.`, []);
  }

  /** Open a session for the conversation, so that its options and commands are known before the first prompt. */
  async prepare(): Promise<void> {
    const where = place();
    const conversation = this.current;
    if (where === undefined || conversation.session !== undefined || conversation.busy) return;
    try {
      const session = await this.begin(conversation, where);
      // A prompt that was sent in the meantime opened a session.
      if (!conversation.attached) conversation.attach(session);
    } catch (problem) {
      if (!conversation.hasMessages) conversation.transcript.addError(describeError(problem));
    }
  }

  async stop(): Promise<void> {
    const conversation = this.current;
    const id = conversation.session?.id;
    await conversation.stop();
    if (id !== undefined) this.permissions.cancel(id);
  }

  newConversation(): void {
    this.show(this.addListeners(new Conversation(place()?.cwd ?? "")));
    void this.memory.update(LAST, undefined);
    void this.prepare();
  }

  /** Open a session by its id: from this window if it is open, otherwise from the agent with its history. Tries again for `patienceMs` while another agent has it. */
  async open(id: string, cwd?: string, patienceMs = 0): Promise<void> {
    const known = this.conversations.get(id);
    if (known !== undefined) {
      this.show(known);
      this.remember(id);
      return;
    }
    const here = place();
    const where: Place = { cwd: cwd ?? here?.cwd ?? "", directories: cwd === undefined || cwd === here?.cwd ? (here?.directories ?? []) : [] };
    const conversation = this.addListeners(new Conversation(where.cwd));
    conversation.transcript.replaying = true;
    this.show(conversation);
    try {
      await this.load(id, where, conversation, Date.now() + patienceMs);
      conversation.transcript.endReplay();
      for (const each of this.pendingQuestions()) if (each.session === id) conversation.transcript.addUnanswered(each.item);
      this.remember(id);
    } catch (problem) {
      this.conversations.delete(id);
      conversation.transcript.replaying = false;
      conversation.transcript.addError(describeError(problem));
      if (this.memory.get(LAST) === id) void this.memory.update(LAST, undefined);
    }
  }

  /** Restore the conversation that was shown when the window closed. */
  async restore(): Promise<void> {
    const id = this.memory.get<string>(LAST);
    if (id === undefined || this.current.hasMessages || this.current.session !== undefined) return this.prepare();
    await this.open(id, undefined, RELEASE_MS);
  }

  async fork(turn: string): Promise<void> {
    const session = this.current.session;
    if (session === undefined) return;
    try {
      const id = await this.agent.forkSession(session.id, session.workspaceLocation, turn);
      await this.open(id);
      this.current.transcript.addNotice("info", "A fork", "This session continues from that turn. The earlier session stays as it is.");
    } catch (problem) {
      this.current.transcript.addError(describeError(problem));
    }
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
    if (conversation !== undefined && conversation === this.conversation) this.newConversation();
  }

  async restart(): Promise<void> {
    await this.agent.stop();
    try {
      const session = this.current.session;
      if (session === undefined) await this.prepare();
      else await session.ensureConnected();
      this.current.transcript.addNotice("info", "Cantrip was restarted", "");
    } catch (problem) {
      this.current.transcript.addError(describeError(problem));
    }
  }

  of(sessionId: string): Conversation | undefined {
    return this.conversations.get(sessionId);
  }

  onTerminalOutput(terminalId: string, data: string): void {
    for (const conversation of this.conversations.values()) conversation.transcript.appendOutput(terminalId, data);
  }

  dispose(): void {
    for (const conversation of this.conversations.values()) conversation.dispose();
  }

  private async load(id: string, where: Place, conversation: Conversation, until: number): Promise<void> {
    for (;;) {
      try {
        await this.agent.loadSession(id, where, (session) => {
          conversation.transcript.clear();
          conversation.attach(session);
          this.conversations.set(id, conversation);
        });
        return;
      } catch (problem) {
        if (!isInUse(problem) || Date.now() >= until) throw problem;
        await new Promise((resolve) => setTimeout(resolve, RELEASE_STEP_MS));
      }
    }
  }

  private async begin(conversation: Conversation, where: Place): Promise<Session> {
    const session = await this.agent.newSession(where);
    this.conversations.set(session.id, conversation);
    // The window may reload during an answer.
    if (conversation.busy && conversation === this.conversation) this.remember(session.id);
    return session;
  }

  private show(conversation: Conversation): void {
    this.conversation = conversation;
    this.onDidShowConversation.fire(conversation);
  }

  private addListeners(conversation: Conversation): Conversation {
    conversation.onUpdate.on((update) => { if (conversation === this.conversation) this.onUpdate.fire(update); });
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
    const kept: Waiting = { session: request.sessionId, item: { ...item, question: undefined } };
    void this.memory.update(WAITING, [...this.pendingQuestions(), kept].slice(-MOST_WAITING));
  }

  private pendingQuestions(): Waiting[] {
    return this.memory.get<Waiting[]>(WAITING, []);
  }

  /** Forget the open questions of a call, or of a whole session. */
  private forget(session: string, callId?: string): void {
    const all = this.pendingQuestions();
    const left = all.filter((each) => each.session !== session || (callId !== undefined && each.item.callId !== callId));
    if (left.length !== all.length) void this.memory.update(WAITING, left);
  }

  private remember(id: string): void {
    void this.memory.update(LAST, id);
  }
}

/** The folders of a session: the first folder of the workspace, and the other folders. */
export function place(): Place | undefined {
  const folders = (vscode.workspace.workspaceFolders ?? []).filter((folder) => folder.uri.scheme === "file").map((folder) => folder.uri.fsPath);
  const [cwd, ...directories] = folders;
  return cwd === undefined ? undefined : { cwd, directories };
}
