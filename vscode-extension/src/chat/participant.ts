import type * as acp from "@agentclientprotocol/sdk/unstable";
import * as vscode from "vscode";
import type { Agent } from "../acp/agent";
import { describeError, wantsSignIn } from "../acp/errors";
import type { Session } from "../acp/session";
import type { Approvals } from "./approvals";
import { contentOf, fileAttached, linesAttached } from "./attachments";
import type { Attachment, DiffPart, ToolItem } from "./items";
import type { Permissions } from "./permissions";
import { answered, questionText, changeText, plain, subject } from "./questions";
import { place, setFirstMode, setReuse } from "./service";
import { textOf, Transcript } from "./transcript";
import { describeCharacter } from "./visible";

export const PARTICIPANT = "cantrip.agent";
const ANSWER = "cantrip.chat.answer";
const SHOW_DIFF = "cantrip.chat.showDiff";

/** Data that a turn stores for the next turn of the same conversation. */
interface CantripChatResult extends vscode.ChatResult {
  readonly metadata: { readonly session?: string; readonly reason?: string };
}

/** The agent in the editor's own chat, as `@cantrip`: a session for each conversation there. */
export class Participant implements vscode.Disposable {
  private readonly sessions = new Map<string, Session>();
  private readonly parts: { dispose(): void }[] = [];
  private readonly offerChoices = new Map<string, { readonly diff: acp.Diff; readonly question: string | undefined }>();

  constructor(
    private readonly agent: Agent,
    private readonly permissions: Permissions,
    private readonly approvals: Approvals,
    icon: vscode.Uri,
    private readonly signIn: () => Promise<boolean>,
  ) {
    const participant = vscode.chat.createChatParticipant(PARTICIPANT, (request, context, stream, token) => this.answer(request, context, stream, token));
    participant.iconPath = icon;
    participant.followupProvider = {
      // A request that failed early has no metadata.
      provideFollowups: ({ metadata }: Partial<CantripChatResult>) => {
        if (metadata?.reason === "max_turn_requests") return [{ prompt: "Go on.", label: "Go on" }];
        return metadata?.reason === "end_turn" ? [{ prompt: "", command: "cost", label: "What did this cost?" }] : [];
      },
    };
    this.parts.push(
      participant,
      vscode.commands.registerCommand(ANSWER, (id: unknown, option: unknown) => {
        if (typeof id === "string" && typeof option === "string" && !this.permissions.answer(id, option)) {
          void vscode.window.showInformationMessage("That question was answered already.");
        }
      }),
      vscode.commands.registerCommand(SHOW_DIFF, (key: unknown) => {
        const offered = this.offerChoices.get(String(key));
        return offered && this.approvals.show(offered.diff, offered.question);
      }),
    );
  }

  dispose(): void {
    for (const part of this.parts) part.dispose();
  }

  private async answer(request: vscode.ChatRequest, context: vscode.ChatContext, stream: vscode.ChatResponseStream, token: vscode.CancellationToken): Promise<CantripChatResult> {
    const where = place();
    if (!vscode.workspace.isTrusted || where === undefined) {
      stream.markdown(where === undefined ? "Open a folder first. Cantrip works in a folder." : "Cantrip does not start in a workspace that you do not trust.");
      if (where !== undefined) stream.button({ command: "workbench.trust.manage", title: "Manage Workspace Trust" });
      return { metadata: {} };
    }
    let session: Session | undefined;
    try {
      stream.progress("Starting Cantrip…");
      session = await this.session(context, where);
      const text = request.command === undefined ? request.prompt : `/${request.command} ${request.prompt}`.trim();
      // The editor adds the current file to each request; a slash command has no other text.
      const content = await contentOf(text, request.command === undefined ? await attached(request) : []);
      const reply = await this.turn(session, content, stream, token);
      if (reply.stopReason === "max_turn_requests") stream.markdown("\n\n*Stopped: the limit of turns or time is reached.*");
      return { metadata: { session: session.id, reason: request.command === undefined ? reply.stopReason : "command" } };
    } catch (problem) {
      const { title, detail, action } = describeError(problem);
      if (action === "setUp") stream.button({ command: "cantrip.setup", title: "Set Up Cantrip" });
      if (wantsSignIn(problem)) {
        stream.markdown(`**${title}.** ${detail}`);
        stream.button({ command: "cantrip.chat.signIn", title: "Choose a Model…" });
      }
      return { metadata: session === undefined ? {} : { session: session.id }, errorDetails: { message: detail ? `${title}\n${detail}` : title } };
    }
  }

  private async session(context: vscode.ChatContext, where: { cwd: string; directories: readonly string[] }): Promise<Session> {
    const last = context.history.findLast((turn) => turn instanceof vscode.ChatResponseTurn && turn.participant === PARTICIPANT);
    const id = last instanceof vscode.ChatResponseTurn ? (last.result as Partial<CantripChatResult>).metadata?.session : undefined;
    const known = id === undefined ? undefined : this.sessions.get(id);
    if (known !== undefined) return known;
    const open = async (): Promise<Session> => (id === undefined ? this.firstSession(where) : this.agent.loadSession(id, where, () => undefined));
    let session: Session;
    try {
      session = await open();
    } catch (problem) {
      if (!wantsSignIn(problem) || !(await this.signIn())) throw problem;
      session = await open();
    }
    this.sessions.set(session.id, session);
    return session;
  }

  private async firstSession(where: { cwd: string; directories: readonly string[] }): Promise<Session> {
    const session = await this.agent.newSession(where);
    await setFirstMode(session);
    await setReuse(session);
    return session;
  }

  private async turn(session: Session, content: acp.ContentBlock[], stream: vscode.ChatResponseStream, token: vscode.CancellationToken): Promise<acp.PromptResponse> {
    const show = new Rendering(stream, place()?.cwd ?? "", (diff, question) => this.offer(diff, question));
    const parts = [
      session.updates.on((update) => { show.onUpdate(update); }),
      this.permissions.asked.on(({ id, request }) => {
        if (request.sessionId !== session.id) return;
        show.question(request, id);
      }),
      this.permissions.settled.on(({ pending, option }) => {
        if (pending.request.sessionId === session.id) show.answered(pending.request, option);
      }),
      token.onCancellationRequested(() => {
        void session.cancel();
        this.permissions.cancel(session.id);
      }),
    ];
    try {
      return await session.prompt(content);
    } finally {
      for (const part of parts) part.dispose();
    }
  }

  private offer(diff: acp.Diff, question: string | undefined): vscode.Command {
    const key = `${this.offerChoices.size}`;
    this.offerChoices.set(key, { diff, question });
    return { command: SHOW_DIFF, title: "Show the Change", arguments: [key] };
  }
}

const SIGNS: Readonly<Record<string, string>> = { completed: "✓", in_progress: "▸", pending: "○" };

/** Updates in the editor's own chat. */
class Rendering {
  /** The calls of this answer, in the form that the side bar uses. */
  private readonly calls: Transcript;
  private readonly shownDiffs = new Set<string>();
  /** Calls that the user rejected. */
  private readonly settled = new Set<string>();
  private thinking = false;
  /** What the agent said. */
  private said = "";

  constructor(
    private readonly stream: vscode.ChatResponseStream,
    folder: string,
    private readonly offer: (diff: acp.Diff, question?: string) => vscode.Command,
  ) {
    this.calls = new Transcript(folder);
  }

  onUpdate(update: acp.SessionUpdate): void {
    const { stream } = this;
    switch (update.sessionUpdate) {
      case "agent_message_chunk":
        this.thinking = false;
        this.said += textOf(update.content);
        stream.markdown(textOf(update.content));
        return;
      case "agent_thought_chunk":
        if (!this.thinking) stream.progress("Thinking…");
        this.thinking = true;
        return;
      case "tool_call":
        this.calls.applyUpdate(update);
        stream.progress(describeCharacter(update.title, "command"));
        return;
      case "tool_call_update":
        this.calls.applyUpdate(update);
        return this.call(update);
      case "plan":
        // Not a task list: this chat shows the check boxes as HTML text.
        stream.markdown(`\n\n${update.entries.map((entry) => `- ${SIGNS[entry.status] ?? "○"} ${entry.content}`).join("\n")}\n\n`);
        return;
      case "notice":
        stream.markdown(`\n\n> **${update.title}** ${update.description ?? ""}\n\n`);
        return;
      default:
        return;
    }
  }

  question(request: acp.RequestPermissionRequest, id: string): void {
    const options = request.options.map((option) => ({ id: option.optionId, name: option.name, kind: option.kind }));
    this.calls.question({ id, options }, request.toolCall);
    const item = this.calls.call(request.toolCall.toolCallId);
    if (item === undefined) return;
    // A plan that the answer above ends with stands there once.
    const isSaid = item.planText !== undefined && this.said.trimEnd().endsWith(item.planText.trim());
    this.stream.markdown(`\n\n**${questionText(item)}**\n\n${isSaid ? "" : subject(item)}\n\n`);
    for (const part of item.parts) if (part.type === "diff") this.diff(item, part, id);
    // Each button takes one line, so permanent answers are links below the buttons.
    const once = options.filter((option) => !option.kind.endsWith("always"));
    const always = options.filter((option) => option.kind.endsWith("always"));
    for (const option of once) this.stream.button({ command: ANSWER, title: describeCharacter(option.name, "command"), arguments: [id, option.id] });
    if (always.length === 0) return;
    const links = new vscode.MarkdownString(always.map((option) => `- [${plain(option.name)}](command:${ANSWER}?${encodeURIComponent(JSON.stringify([id, option.id]))})`).join("\n"));
    links.isTrusted = { enabledCommands: [ANSWER] };
    this.stream.markdown(links);
    this.stream.markdown("\n\n");
  }

  answered(request: acp.RequestPermissionRequest, option: string | undefined): void {
    const item = this.calls.call(request.toolCall.toolCallId);
    const kind = request.options.find((each) => each.optionId === option)?.kind;
    if (item === undefined || kind === undefined) return;
    this.calls.setAnswer(item.callId, kind);
    const words = answered(item, kind);
    if (words) this.stream.markdown(`\n\n*${words}*\n\n`);
    if (kind.startsWith("reject")) this.settled.add(item.callId);
  }

  private call(update: acp.ToolCallUpdate): void {
    const item = this.calls.call(update.toolCallId);
    if (item === undefined || (update.status !== "completed" && update.status !== "failed")) return;
    for (const at of item.locations) {
      const uri = vscode.Uri.file(at.path);
      this.stream.reference(at.line === undefined ? uri : new vscode.Location(uri, new vscode.Position(Math.max(0, at.line - 1), 0)));
    }
    if (update.status === "completed") {
      for (const part of item.parts) if (part.type === "diff") this.diff(item, part);
      return;
    }
    if (item.stopped || this.settled.has(item.callId)) return;
    const words = answered(item, item.answer);
    if (words) {
      this.stream.markdown(`\n\n*${words}*\n\n`);
      return;
    }
    const why = item.program ? "" : item.parts.map((part) => (part.type === "text" ? ` ${part.text}` : "")).join("");
    this.stream.markdown(`\n\n*${plain(item.title)}* failed.${why && plain(why)}\n\n`);
  }

  private diff(item: ToolItem, part: DiffPart, question?: string): void {
    const key = `${item.callId}\n${part.path}`;
    if (this.shownDiffs.has(key)) return;
    this.shownDiffs.add(key);
    this.stream.markdown("\n\n");
    this.stream.anchor(vscode.Uri.file(part.path), part.shown);
    this.stream.markdown(` +${part.added} −${part.removed}\n\n${changeText(part)}\n\n`);
    const whole = this.calls.diff(item.id, part.path);
    if (whole) this.stream.button(this.offer(whole, question));
  }
}

async function attached(request: vscode.ChatRequest): Promise<Attachment[]> {
  const found: Attachment[] = [];
  for (const { value } of request.references) {
    const uri = value instanceof vscode.Location ? value.uri : value;
    // The current file may be one side of an open diff, which the agent cannot read.
    if (uri instanceof vscode.Uri && uri.scheme !== "file") continue;
    if (value instanceof vscode.Uri) found.push(await fileAttached(value));
    else if (value instanceof vscode.Location) found.push(linesAttached(value.uri, value.range, "selection"));
  }
  return found;
}
