import type * as acp from "@agentclientprotocol/sdk/unstable";
import { isAbsolute, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { Signal } from "../acp/signal";
import { diffHunks } from "./hunks";
import { atEnd, withActions } from "./children";
import { oneLine, withoutMarks } from "./formfields";
import type { OpenForm } from "./forms";
import type { Answer, Attachment, EndItem, ErrorItem, FoldItem, FormAnswer, FormItem, Item, NoticeItem, Op, Question, ToolItem, ToolPart, UserItem, WordsItem } from "./items";
import { contextOf } from "./editorcontext";
import type { Versions } from "./versions";
import { exitOf, inColours, inputOf, program, programOf, recordedOutput, sentence, testsOf, unfenced, withoutColours } from "./results";

const MOST_OUTPUT = 200_000;

type Fields<T extends Item> = Omit<T, "id" | "type">;

/**
 * A conversation as items, made from the updates of a session. Items are only added at the end or changed in place. Every
 * change fires an `Op`, so that a view can follow without reading all items again.
 */
export class Transcript {
  readonly ops = new Signal<Op>();
  readonly items: Item[] = [];
  plan: readonly acp.PlanEntry[] = [];
  readonly planned = new Signal<readonly acp.PlanEntry[]>();
  /** The versions of the message after a turn, given the turns before the earlier messages. */
  versionsAt: (turn: string | 0, earlier: ReadonlySet<string | 0>) => Versions | undefined = () => undefined;
  /** Whether the updates are a replay, which also has the user's messages. */
  replaying = false;
  private readonly tools = new Map<string, ToolItem>();
  private readonly open = new Set<ToolItem>();
  /** The questions that nobody answered: a replay of many messages must not look for them among all items. */
  private readonly unanswered = new Set<ToolItem | FormItem>();
  /** The open forms, and the last form of each call. */
  private readonly forms = new Map<string, FormItem>();
  private readonly asking = new Map<string, FormItem>();
  private readonly folds = new Map<string, FoldItem>();
  /** Tool calls by the ids of their terminals. */
  private readonly terminals = new Map<string, ToolItem>();
  private readonly diffs = new Map<string, acp.Diff>();
  /** The messages and thoughts of the agent, by kind and message id. */
  private readonly messages = new Map<string, WordsItem>();
  private speaking: { item: WordsItem | UserItem; messageId: string | undefined } | undefined;
  private turn: string | undefined;
  /** The last turn of the session; 0 before the first one. */
  private last: string | 0 = 0;
  /** Whether the agent said something in the current answer. */
  private said = false;
  private next = 0;

  constructor(private readonly folder: string) {}

  clear(): void {
    this.items.length = 0;
    this.tools.clear();
    this.open.clear();
    this.unanswered.clear();
    this.forms.clear();
    this.asking.clear();
    this.folds.clear();
    this.terminals.clear();
    this.diffs.clear();
    this.messages.clear();
    this.speaking = undefined;
    this.turn = undefined;
    this.last = 0;
    this.plan = [];
  }

  addUserMessage(text: string, attachments: Attachment[]): void {
    this.forgetPlan();
    this.expireUnanswered();
    this.continued();
    this.said = false;
    this.add<UserItem>("user", { text, attachments, after: this.last });
    this.refreshVersions();
  }

  /** A plan belongs to the message that it was made for. An agent that goes on with it sends its next state. */
  private forgetPlan(): void {
    if (this.plan.length === 0) return;
    this.plan = [];
    this.planned.fire(this.plan);
  }

  /** Look again which messages have other versions. */
  refreshVersions(): void {
    const earlier = new Set<string | 0>();
    for (const item of this.items) {
      if (item.type !== "user" || item.steered === true) continue;
      // After a message that failed without a turn, the next one has the same turn before it.
      const versions = earlier.has(item.after) ? undefined : this.versionsAt(item.after, earlier);
      earlier.add(item.after);
      if (JSON.stringify(versions) !== JSON.stringify(item.versions)) this.change(item, { versions });
    }
  }

  /** The place of the first message after a turn, and the message; undefined if none is there. */
  messageAfter(turn: string | 0): { readonly index: number; readonly id: string } | undefined {
    const index = this.items.findIndex((item) => item.type === "user" && item.steered !== true && item.after === turn);
    const item = this.items[index];
    return item === undefined ? undefined : { index, id: item.id };
  }

  /** The conversation goes on, so no earlier answer can be continued any more. */
  continued(): void {
    for (const item of this.items) if ((item.type === "end" || item.type === "error") && item.incomplete === true) this.change(item, { incomplete: false });
  }

  /** Whether the item is the end of an answer that can go on. */
  canContinue(itemId: string): boolean {
    const item = this.items.find((each) => each.id === itemId);
    return (item?.type === "end" || item?.type === "error") && item.incomplete === true;
  }

  /** Mark unanswered questions as passed, because the conversation has continued. */
  private expireUnanswered(): void {
    for (const item of this.unanswered) this.change<ToolItem | FormItem>(item, { answer: "passed" });
  }

  applyUpdate(update: acp.SessionUpdate): void {
    switch (update.sessionUpdate) {
      case "user_message_chunk":
        return this.userText(update);
      case "agent_message_chunk":
        return this.words("agent", update);
      case "agent_thought_chunk":
        return this.words("thought", update);
      case "tool_call":
      case "tool_call_update":
        return this.tool(update);
      case "plan":
        this.plan = update.entries;
        return this.planned.fire(this.plan);
      case "notice":
        this.void(update._meta);
        this.add<NoticeItem>("notice", { severity: severity(update.severity), title: update.title, text: update.description ?? "" });
        return;
      case "compaction_update":
        return this.fold(update.compactionId, update.status, update.summary?.map(textOf).join("") ?? update.error ?? undefined);
      case "compaction_summary_chunk": {
        const fold = this.folds.get(update.compactionId);
        return this.fold(update.compactionId, fold?.status ?? "in_progress", (fold?.text ?? "") + textOf(update.content));
      }
      default:
        return;
    }
  }

  /** The answer has ended. */
  ended(reply: acp.PromptResponse): void {
    const about = reply._meta?.cantrip as { turn?: unknown; command?: unknown; reason?: unknown } | undefined;
    this.reached(about?.turn);
    // A slash command is not a turn, so it cannot be forked.
    if (about?.command !== undefined && reply.stopReason === "end_turn") return this.settle();
    const turn = typeof about?.turn === "string" && about.turn ? about.turn : undefined;
    // Without a record of the agent, nothing was begun that could go on.
    const cut = about !== undefined && INCOMPLETE.has(reply.stopReason);
    this.end(reply.stopReason, turn, cut ? (typeof about.reason === "string" && about.reason !== "cancelled" ? about.reason : reply.stopReason) : undefined);
  }

  /** The prompt failed. `turn` is the last turn before the failure, if the agent named it. */
  addError(problem: Omit<ErrorItem, "type" | "id">, turn?: unknown): void {
    this.reached(turn);
    this.settle();
    const own = this.items.slice(this.items.findLastIndex((item) => item.type === "user") + 1);
    const begun = own.some((item) => item.type === "tool" || (item.type === "agent" && item.text !== ""));
    const incomplete = begun && (problem.action === "none" || problem.action === "retry" || problem.action === "restart");
    this.add<ErrorItem>("error", { ...problem, ...(incomplete ? { incomplete } : {}) });
  }

  private reached(turn: unknown): void {
    if (typeof turn === "string" && turn !== "") this.last = turn;
  }

  addNotice(level: NoticeItem["severity"], title: string, text: string): void {
    this.add<NoticeItem>("notice", { severity: level, title, text });
  }

  /** The replay has ended. Its last answer can be forked, and continued if the agent says why it is `incomplete`. */
  endReplay(incomplete?: string): void {
    this.replaying = false;
    this.refreshVersions();
    if (incomplete !== undefined) this.end("cancelled", this.turn, incomplete === "cancelled" ? "stopped" : incomplete);
    else if (this.turn !== undefined) this.end("end_turn", this.turn);
    else this.settle();
  }

  /** Add the question about a call. */
  question(question: Question, call: acp.ToolCallUpdate): void {
    this.tool(call);
    const item = this.tools.get(call.toolCallId);
    if (item === undefined) return;
    // A gate that runs a command (such as the tests) shows it only in its question.
    const text = item.kind === "execute" && item.program === undefined ? item.parts.find((part) => part.type === "text" || part.type === "output")?.text : undefined;
    const shown = text === undefined ? undefined : program(unfenced(text) ?? text, "bash");
    // The question already shows the program.
    const parts = item.kind === "execute" ? item.parts.filter((part) => part.type !== "text" && part.type !== "output") : item.parts;
    this.change(item, { question, parts, ...(shown === undefined ? {} : { program: shown }) });
    // The question shows the plan, so the answer that ends with it does not.
    const said = this.items.findLast((each): each is WordsItem => each.type === "agent");
    const plan = item.planText?.trim() ?? "";
    if (said === undefined || plan === "" || !said.text.trimEnd().endsWith(plan)) return;
    said.text = said.text.trimEnd().slice(0, -plan.length).trimEnd();
    this.ops.fire({ op: "set", item: said });
  }

  setAnswer(callId: string, answer: Answer): void {
    const item = this.tools.get(callId);
    if (item) this.change(item, { question: undefined, answer });
  }

  /** Add a form that waits for the user. */
  addForm({ id, call, message, fields }: OpenForm): FormItem {
    const asking = call === undefined ? undefined : this.tools.get(call);
    if (asking?.name === ASK_USER) this.change(asking, { asked: true });
    const item = this.add<FormItem>("form", { form: id, callId: call, message, fields, question: id });
    this.forms.set(id, item);
    return item;
  }

  /** The form is closed: with the answer in one line, or without one. */
  closeForm(id: string, answer: FormAnswer, said?: string): void {
    const item = this.forms.get(id);
    if (item?.question === undefined) return;
    this.forms.delete(id);
    this.change(item, { question: undefined, answer, ...(said === undefined ? {} : { said }) });
  }

  /** Add a question of an earlier process that was not answered: a call, or a form. */
  addUnanswered(asked: ToolItem | FormItem): void {
    if (asked.type === "form") {
      const { callId, message } = asked;
      if (callId === undefined || !this.asking.has(callId)) this.add<FormItem>("form", { callId, message, fields: [], answer: "unanswered" });
      return;
    }
    const known = this.tools.get(asked.callId);
    // A call that continued was answered elsewhere.
    if (known?.status === "completed" || (known !== undefined && known.answer !== undefined && known.answer !== "unanswered")) return;
    // A call that ran was answered: the stored question of a closed window may be outdated.
    if (known !== undefined && (known.exit !== undefined || known.tests !== undefined || known.parts.some((part) => part.type === "output"))) return;
    const parts = asked.parts.map((part) => part);
    if (known !== undefined) return this.change(known, { status: "failed", answer: "unanswered", parts, program: asked.program, input: asked.input, title: asked.title, kind: asked.kind });
    this.tools.set(asked.callId, this.add<ToolItem>("tool", { ...asked, parts, question: undefined, status: "failed", answer: "unanswered" }));
  }

  /** The title for a question that was not answered. */
  unansweredTitle(itemId: string): string | undefined {
    const item = this.items.find((each) => each.id === itemId);
    if (item?.type === "form") return item.answer === "unanswered" ? item.message : undefined;
    return item?.type === "tool" && item.answer === "unanswered" ? (item.program?.text ?? item.title) : undefined;
  }

  /** The current state of a call. */
  call(callId: string): ToolItem | undefined {
    return this.tools.get(callId);
  }

  /** The user's message with this id, or the one that an answer with this id belongs to. */
  message(itemId: string): UserItem | undefined {
    const at = this.items.findIndex((item) => item.id === itemId);
    return this.items.slice(0, at + 1).findLast((item): item is UserItem => item.type === "user" && item.steered !== true);
  }

  /** The turn that a message or the end of an answer leads back to: the one before the message, with the message, or that of the answer. */
  point(itemId: string): { readonly turn: string | 0; readonly text?: string; readonly attachments: readonly Attachment[] } | undefined {
    const item = this.items.find((each) => each.id === itemId);
    if (item?.type === "user") return { turn: item.after, text: item.text, attachments: item.attachments };
    return item?.type === "end" && item.turn !== undefined ? { turn: item.turn, attachments: [] } : undefined;
  }

  /** The Markdown of the answer whose end has this id: what was said after its last call, or else its last words. */
  answer(itemId: string): string {
    const at = this.items.findIndex((item) => item.id === itemId);
    const own = this.items.slice(this.items.slice(0, at + 1).findLastIndex((item) => item.type === "user") + 1, at);
    const words = (items: readonly Item[]): string[] => items.flatMap((item) => (item.type === "agent" && item.text !== "" ? [item.text.trim()] : []));
    const last = words(own.slice(own.findLastIndex((item) => item.type === "tool") + 1));
    return (last.length > 0 ? last : words(own).slice(-1)).join("\n\n");
  }

  /** Append output of a terminal that the editor runs for the agent. */
  appendOutput(terminalId: string, data: string): void {
    const item = this.terminals.get(terminalId);
    if (item) this.output(item, data);
  }

  /** The id of the call that an item shows. */
  callOf(itemId: string): string | undefined {
    const item = this.items.find((each) => each.id === itemId);
    return item?.type === "tool" ? item.callId : undefined;
  }

  /** The open question of an item. */
  questionOf(itemId: string): string | undefined {
    const item = this.items.find((each) => each.id === itemId);
    return item?.type === "tool" ? item.question?.id : undefined;
  }

  /** The output of a call with its title, as much as there is of it. */
  outputOf(itemId: string): { readonly title: string; readonly text: string } | undefined {
    const item = this.items.find((each) => each.id === itemId);
    if (item?.type !== "tool") return undefined;
    const text = item.tests?.output ?? item.output ?? item.parts.flatMap((part) => (part.type === "output" ? [part.text] : [])).join("\n");
    return { title: item.title, text };
  }

  /** The complete texts of a diff of an item. */
  diff(itemId: string, path: string): acp.Diff | undefined {
    return this.diffs.get(`${itemId}\n${path}`);
  }

  // --- messages

  private userText(update: acp.ContentChunk): void {
    if (this.replaying) this.expireUnanswered();
    const messageId = update.messageId ?? undefined;
    let item = this.speaking?.item;
    if (item?.type !== "user" || this.speaking?.messageId !== messageId) {
      if (this.replaying && this.turn !== undefined && (update._meta as Meta | null | undefined)?.cantrip?.steering !== true) this.end("end_turn", this.turn);
      const { after, steering } = (update._meta as Meta | null | undefined)?.cantrip ?? {};
      if (this.replaying && steering !== true) this.forgetPlan();
      item = this.add<UserItem>("user", { text: "", attachments: [], ...(steering === true ? { steered: true } : {}), after: typeof after === "string" || after === 0 ? after : this.last });
      this.speaking = { item, messageId };
    }
    const content = update.content;
    if (content.type === "text") {
      const { text, attachments } = splitLinks(item.text + content.text);
      item.text = text;
      item.attachments.push(...attachments);
    } else item.attachments.push(attachmentOf(content));
    this.ops.fire({ op: "set", item });
  }

  private words(type: "agent" | "thought", update: acp.ContentChunk): void {
    const messageId = update.messageId ?? undefined;
    if (this.replaying && messageId !== undefined && !messageId.endsWith(":answer")) this.turn = messageId.split(":")[0];
    const text = textOf(update.content);
    if (!text) return;
    if (type === "agent") this.said = true;
    // A message is one text, whatever comes between its pieces (a notice, a message of the user, the end of the answer).
    const key = messageId === undefined ? undefined : `${type} ${messageId}`;
    const known = key === undefined ? (this.speaking?.messageId === undefined ? this.speaking?.item : undefined) : this.messages.get(key);
    if (known?.type === type) {
      known.text += text;
      this.ops.fire({ op: "text", id: known.id, text });
      return;
    }
    // The blank line before a later message is for clients that ignore messageId.
    const item = this.add<WordsItem>(type, { text: text.replace(/^\n+/, "") });
    if (key !== undefined) this.messages.set(key, item);
    this.speaking = { item, messageId };
  }

  /** Remove the text of an interrupted attempt of the model, and add a notice with the reason. */
  private void(meta: unknown): void {
    const id = (meta as { cantrip?: { void?: unknown } } | null | undefined)?.cantrip?.void;
    if (typeof id !== "string") return;
    for (const key of [`agent ${id}`, `thought ${id}:thought`]) {
      const item = this.messages.get(key);
      if (item === undefined) continue;
      item.text = "";
      this.messages.delete(key);
      this.ops.fire({ op: "set", item });
    }
    this.speaking = undefined;
  }

  // --- calls

  private tool(update: acp.ToolCall | acp.ToolCallUpdate): void {
    const id = update.toolCallId;
    const known = this.tools.get(id);
    const item = known ?? this.newTool(update);
    if (this.replaying && id.includes(".")) this.turn = id.slice(0, id.lastIndexOf("."));
    const meta = update._meta as Meta | null | undefined;
    const info = meta?.terminal_info?.terminal_id;
    if (info) this.terminals.set(info, item);
    const data = meta?.terminal_output?.data;
    const only = Object.keys(update).every((key) => key === "sessionUpdate" || key === "toolCallId" || key === "_meta");
    if (typeof data === "string" && only && known) return this.output(item, data);
    const change: Partial<ToolItem> = {};
    if (update.title) change.title = update.title;
    if (update.kind) change.kind = update.kind;
    if (update.name) change.name = update.name;
    if (update.status) change.status = update.status;
    if (update.locations) {
      change.locations = update.locations.map((at) => ({ path: at.path, shown: this.shown(at.path), line: at.line ?? undefined }));
    }
    if (update.rawInput !== undefined && update.rawInput !== null) {
      change.program = programOf(update.rawInput) ?? item.program;
      if (change.program === undefined) change.input = inputOf(update.rawInput);
      const plan = (update.rawInput as { plan?: unknown }).plan;
      if ((update.kind ?? item.kind) === "switch_mode" && typeof plan === "string") {
        change.planText = plan;
        change.input = undefined;
      }
    }
    const actions = meta?.cantrip?.children;
    const now = this.replaying ? undefined : Date.now();
    if (Array.isArray(actions)) change.children = withActions(item.children ?? [], actions, now);
    const ended = update.status === "completed" || update.status === "failed";
    if (ended && (change.children ?? item.children) !== undefined) change.children = atEnd(change.children ?? item.children ?? [], now);
    // The first block of such an update describes the children, which have lines of their own here.
    if (update.content) change.parts = this.parts(item, Array.isArray(actions) ? update.content.slice(1) : update.content, { ...item, ...change });
    const tests = testsOf(update.rawOutput);
    if (tests !== undefined) {
      change.tests = tests.report;
      change.title = `Tests: ${tests.report.summary}`;
      if (tests.command !== undefined) change.program = program(tests.command, "bash");
    }
    const exit = exitOf(update.rawOutput);
    if (exit !== undefined) change.exit = exit;
    const answer = ANSWERS[String(meta?.cantrip?.permission)];
    if (answer !== undefined) {
      change.answer = item.answer === "stopped" ? item.answer : answer;
      // The answer is shown as text.
      if (change.parts) change.parts = change.parts.filter((part) => part.type === "diff");
    }
    if (meta?.cantrip?.stopped === true) {
      change.stopped = true;
      if (change.parts) change.parts = change.parts.filter((part) => part.type !== "text");
    }
    // The record has the end of a long output, and after a reload the same text.
    const recorded = recordedOutput(change.name ?? item.name, update.rawOutput);
    if (recorded !== undefined && answer === undefined && (item.output === undefined || meta?.cantrip?.stopped !== true)) {
      // Output that came in pieces has codes at the borders of the pieces too.
      const known = withoutColours(item.output ?? "") === recorded;
      if (!known) change.recorded = true;
      change.output = known ? (item.output ?? "") : inColours(recorded, meta?.cantrip?.styles);
      if (change.parts) change.parts = change.parts.filter((part) => part.type !== "output" && !(part.type === "text" && recorded.includes(part.text.trim())));
    }
    const via = meta?.cantrip?.via;
    if (typeof via === "string") change.parent = via;
    if (meta?.terminal_exit) change.exit = { code: meta.terminal_exit.exit_code ?? null, signal: meta.terminal_exit.signal ?? null };
    if (!this.replaying && change.status !== undefined) {
      if (change.status === "in_progress" && item.started === undefined) change.started = Date.now();
      if (!isOpen(change.status) && isOpen(item.status)) change.ended = Date.now();
    }
    // When the call continues, its question is answered.
    if (update.status && update.status !== "pending" && item.question) change.question = undefined;
    this.change(item, change);
    if (item.name === ASK_USER && ended) this.questionEnded(item, update, meta);
    if (isOpen(item.status)) this.open.add(item);
    else this.open.delete(item);
    if (typeof data === "string") this.output(item, data);
  }

  /** A call of `ask_user` has ended. A replay has the question only here. */
  private questionEnded(call: ToolItem, { rawInput, rawOutput }: acp.ToolCallUpdate, meta: Meta | null | undefined): void {
    const how = meta?.cantrip?.question;
    const answer = how === "answered" || how === "skipped" || how === "unanswered" ? how : meta?.cantrip?.stopped === true ? "unanswered" : undefined;
    if (answer === undefined) return;
    const { question: message, choices } = (rawInput ?? {}) as { question?: unknown; choices?: unknown };
    const { output } = (rawOutput ?? {}) as { output?: unknown };
    const chosen = Array.isArray(choices) && choices.includes(output);
    const said = answer === "answered" && typeof output === "string" ? { said: oneLine(chosen ? withoutMarks(output) : output) } : {};
    const known = this.asking.get(call.callId);
    if (known !== undefined) {
      // The answer came from elsewhere.
      if (answer === "answered" && known.answer !== "answered") this.change(known, { question: undefined, answer, ...said });
      return;
    }
    if (typeof message !== "string") return;
    this.change(call, { asked: true });
    this.add<FormItem>("form", { callId: call.callId, message, fields: [], answer, ...said });
  }

  private newTool(update: acp.ToolCall | acp.ToolCallUpdate): ToolItem {
    const item = this.add<ToolItem>("tool", {
      callId: update.toolCallId,
      title: update.title ?? update.name ?? "Tool call",
      kind: update.kind ?? "other",
      status: update.status ?? "pending",
      parts: [],
      locations: [],
    });
    this.tools.set(update.toolCallId, item);
    return item;
  }

  /** The parts of a call; `now` is its new state. */
  private parts(item: ToolItem, content: readonly acp.ToolCallContent[], now: ToolItem): ToolPart[] {
    const parts: ToolPart[] = [];
    for (const each of content) {
      if (each.type === "diff") {
        this.diffs.set(`${item.id}\n${each.path}`, each);
        parts.push(diffHunks(each.path, this.shown(each.path), each.oldText ?? null, each.newText));
      } else if (each.type === "terminal") {
        this.terminals.set(each.terminalId, item);
      } else if (each.content.type === "image") {
        parts.push({ type: "image", mime: each.content.mimeType, data: each.content.data });
      } else if (each.content.type === "resource_link") {
        parts.push({ type: "link", name: each.content.name, uri: each.content.uri });
      } else {
        const text = textOf(each.content);
        const printed = now.kind === "execute" ? unfenced(text) : undefined;
        if (printed !== undefined) parts.push({ type: "output", text: printed });
        else if (text) parts.push({ type: "text", text: now.status === "failed" ? sentence(text) : text });
      }
    }
    return parts;
  }

  private output(item: ToolItem, data: string): void {
    item.output = ((item.output ?? "") + data).slice(-MOST_OUTPUT);
    this.ops.fire({ op: "output", id: item.id, text: data });
  }

  private fold(id: string, status: string, text: string | undefined): void {
    const known = this.folds.get(id);
    if (known) return this.change(known, { status, text: text ?? known.text });
    this.folds.set(id, this.add<FoldItem>("fold", { status, text: text ?? "" }));
  }

  // --- items

  /** `cut` says why the answer is incomplete, if it can go on. */
  private end(reason: string, turn: string | undefined, cut?: string): void {
    this.reached(turn);
    this.settle();
    this.turn = undefined;
    this.add<EndItem>("end", { reason, words: cut === undefined ? (WORDS[reason] ?? "") : `Incomplete: ${CUT[cut] ?? "it ended early"}.`, said: this.said, turn, ...(cut === undefined ? {} : { incomplete: true }) });
    this.said = false;
  }

  /** Close the calls that have not ended. */
  private settle(): void {
    this.speaking = undefined;
    for (const id of [...this.forms.keys()]) this.closeForm(id, "unanswered");
    for (const item of this.open) {
      // Its question was closed without an answer.
      const answer = item.question === undefined ? item.answer : "unanswered";
      this.change(item, { status: "failed", stopped: true, question: undefined, answer, ...(item.children ? { children: atEnd(item.children, this.replaying ? undefined : Date.now()) } : {}) });
    }
    this.open.clear();
  }

  private add<T extends Item>(type: T["type"], fields: Fields<T>): T {
    this.speaking = undefined;
    this.next += 1;
    const item = { ...fields, type, id: `i${this.next}` } as unknown as T;
    this.items.push(item);
    this.noteAnswer(item);
    this.ops.fire({ op: "add", item });
    return item;
  }

  private change<T extends Item>(item: T, change: Partial<T>): void {
    Object.assign(item, change);
    this.noteAnswer(item);
    this.ops.fire({ op: "set", item });
  }

  private noteAnswer(item: Item): void {
    if (item.type === "form" && item.callId !== undefined) this.asking.set(item.callId, item);
    if (item.type !== "tool" && item.type !== "form") return;
    if (item.answer === "unanswered") this.unanswered.add(item);
    else this.unanswered.delete(item);
  }

  private shown(path: string): string {
    const near = relative(this.folder, path);
    return near && !near.startsWith("..") && !isAbsolute(near) ? near : path;
  }
}

interface Meta {
  readonly terminal_info?: { readonly terminal_id?: string };
  readonly terminal_output?: { readonly data?: unknown };
  readonly terminal_exit?: { readonly exit_code?: number | null; readonly signal?: string | null };
  readonly cantrip?: { readonly via?: unknown; readonly permission?: unknown; readonly stopped?: unknown; readonly after?: unknown; readonly steering?: unknown; readonly children?: unknown; readonly question?: unknown; readonly styles?: unknown };
}

/** The gate whose calls are questions to the user. */
const ASK_USER = "ask_user";

/** The reason of a call that was not allowed. If the session's mode refused it, the text says so. */
const ANSWERS: Readonly<Record<string, Answer>> = { rejected: "reject_once", rejected_always: "reject_always", unasked: "unanswered" };

const WORDS: Readonly<Record<string, string>> = {
  cancelled: "Stopped by you.",
  refusal: "The model declined to answer.",
};

/** The reasons of the protocol for an answer that was cut. */
const INCOMPLETE: ReadonlySet<string> = new Set(["cancelled", "max_tokens", "max_turn_requests"]);

/** Why an answer was cut: the agent's reasons, or else the protocol's. */
const CUT: Readonly<Record<string, string>> = {
  cancelled: "you stopped it",
  stopped: "it was stopped",
  interrupted: "Cantrip ended before it was finished",
  error: "it failed",
  max_turns: "the limit of turns is reached",
  max_seconds: "the limit of time is reached",
  max_cost: "the limit of cost is reached",
  max_tokens: "the limit of tokens is reached",
  output_limit: "the model cut it at its limit for one answer",
  max_turn_requests: "the limit of turns or time is reached",
};

function isOpen(status: ToolItem["status"]): boolean {
  return status === "pending" || status === "in_progress";
}

function severity(given: string): NoticeItem["severity"] {
  return given === "error" || given === "warning" ? given : "info";
}

export function textOf(content: acp.ContentBlock): string {
  if (content.type === "text") return content.text;
  if (content.type === "resource_link") return `[${content.name}](${content.uri})`;
  if (content.type === "resource" && "text" in content.resource) return content.resource.text;
  return "";
}

function attachmentOf(content: acp.ContentBlock): Attachment {
  if (content.type === "image") return { kind: "image", name: "picture", data: content.data, mime: content.mimeType };
  if (content.type === "resource_link") return linkAttached(content.name, content.uri);
  if (content.type === "resource") return { kind: "file", name: nameOf(content.resource.uri), uri: content.resource.uri };
  return { kind: "link", name: content.type };
}

/** The agent adds attached files and resources to the text as `[@name](uri)`. In a replay they are attachments again. */
function splitLinks(text: string): { text: string; attachments: Attachment[] } {
  const links = /(?:\s?\[@(?:(?!\]\(|\[@).)*\]\([^()\s]*\))+$/.exec(text)?.[0] ?? "";
  const attachments = [...links.matchAll(/\[@((?:(?!\]\().)*)\]\(([^()\s]*)\)/g)].map(([, name = "", uri = ""]) => linkAttached(name, uri));
  return { text: text.slice(0, text.length - links.length), attachments };
}

function linkAttached(name: string, uri: string): Attachment {
  const context = contextOf(uri);
  if (context !== undefined) return { kind: context.context, name: context.name, uri };
  if (!uri.startsWith("file:")) return { kind: "link", name, uri };
  const kind = /[?&]symbol=/.test(uri) ? "symbol" : /#L\d+/.test(uri) ? "selection" : name.endsWith("/") ? "folder" : "file";
  return { kind, name, uri };
}

function nameOf(uri: string): string {
  try {
    const path = uri.startsWith("file:") ? fileURLToPath(uri) : uri;
    return path.split(/[\\/]/).pop() ?? uri;
  } catch {
    return uri;
  }
}
