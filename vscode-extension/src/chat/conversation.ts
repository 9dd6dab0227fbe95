import { RequestError } from "@agentclientprotocol/sdk/unstable";
import type * as acp from "@agentclientprotocol/sdk/unstable";
import { randomUUID } from "node:crypto";
import { describeError, type ErrorNotice, wantsSignIn } from "../acp/errors";
import type { Session, Settings } from "../acp/session";
import { Signal, type Subscription } from "../acp/signal";
import type { Attachment } from "./items";
import type { QueuedMessage } from "./messages";
import { Review } from "./review";
import { Transcript } from "./transcript";

/** A message that was sent and whose reply has not come. */
interface Sent {
  readonly id: string;
  text: string;
  attachments: Attachment[];
  /** Whether the agent's queue had it. */
  queued: boolean;
  /** Whether it is in the transcript. */
  shown: boolean;
  /** Whether the user removed it from the queue. */
  removed: boolean;
  /** Whether it has no text and lets the last answer go on. */
  readonly continues: boolean;
}

/** A session that a conversation shows once it is open, as it was known before: by its id, and its title if it had one. */
export interface Wanted {
  readonly id: string;
  readonly title?: string | undefined;
}

/** A session with its transcript. It is in the extension host, also if no panel shows it. */
export class Conversation {
  readonly transcript: Transcript;
  readonly review = new Review(() => this.current);
  readonly changed = new Signal<Settings>();
  /** Fires when the messages that wait have changed. */
  readonly queueChanged = new Signal<void>();
  /** Fires for a message that waited and was never started, because the agent stopped. */
  readonly returned = new Signal<{ readonly text: string; readonly attachments: readonly Attachment[] }>();
  /** Fires for each update of a running answer, but not during a replay. */
  readonly onUpdate = new Signal<acp.SessionUpdate>();
  readonly onPromptStart = new Signal<void>();
  readonly onPromptEnd = new Signal<void>();
  /** Resolves when the wanted session is open, or could not be opened; undefined if nobody is opening it. */
  opening: Promise<void> | undefined;
  /** Why its session could not be opened. It stands in the place of the welcome until the session is open. */
  problem: ErrorNotice | undefined;
  /** Fires when the whole transcript was removed. */
  readonly cleared = new Signal<void>();
  /** Whether the wanted session does not exist any more. */
  gone = false;
  /** The mode to which a second press of the key for `ask` returns. */
  modeBeforeAsk = "sandboxed";
  private subscriptions: Subscription[] = [];
  private current: Session | undefined;
  private stopping = false;
  /** The messages without a reply, in the order in which they were sent. */
  private readonly sent: Sent[] = [];
  /** The one that runs. */
  private running: Sent | undefined;
  /** Resolves when the messages before have been sent. */
  private before: Promise<void> = Promise.resolve();

  constructor(
    readonly folder: string,
    /** The session of an earlier process that belongs here. */
    readonly wanted?: Wanted,
  ) {
    this.transcript = new Transcript(folder);
  }

  get session(): Session | undefined {
    return this.current;
  }

  /** The id of its session, also before that is open. */
  get sessionId(): string | undefined {
    return this.current?.id ?? this.wanted?.id;
  }

  /** Whether its session is not open, and nobody is opening it. */
  get closed(): boolean {
    return this.wanted !== undefined && this.current === undefined && this.opening === undefined;
  }

  get attached(): boolean {
    return this.current !== undefined;
  }

  get settings(): Settings {
    return { title: this.wanted?.title, options: [], commands: [], ...this.current?.settings };
  }

  get busy(): boolean {
    return this.running !== undefined;
  }

  /** Whether a message can wait for the running one. */
  /** Whether one running call can be stopped alone. */
  get stopsCalls(): boolean {
    return this.current?.stopsCalls ?? false;
  }

  get queues(): boolean {
    return this.current?.queuesPrompts ?? false;
  }

  /** The messages that wait for the running one. */
  get queue(): QueuedMessage[] {
    const known = (this.current?.queue ?? []).filter((each) => each.id !== this.running?.id);
    const message = ({ id, text, attachments }: Pick<Sent, "id" | "text" | "attachments">, sending: boolean): QueuedMessage => ({ id, text, attachments, sending });
    return [
      ...known.map((each) => message(this.sent.find((own) => own.id === each.id) ?? { ...each, attachments: [] }, each.sending)),
      ...this.sent.filter((each) => !each.queued && !each.shown).map((each) => message(each, false)),
    ];
  }

  /** Whether the user stopped the current or last prompt. */
  get stopped(): boolean {
    return this.stopping;
  }

  /** Whether it has any messages. */
  get hasMessages(): boolean {
    return this.transcript.items.length > 0;
  }

  attach(session: Session): void {
    for (const each of this.subscriptions) each.dispose();
    this.current = session;
    this.problem = undefined;
    this.subscriptions = [
      session.updates.on((update) => {
        this.transcript.applyUpdate(update);
        if (this.transcript.replaying) return;
        if (update.sessionUpdate === "tool_call_update" && update.status === "completed") this.review.refreshSoon();
        this.onUpdate.fire(update);
      }),
      session.changed.on((settings) => { this.changed.fire(settings); }),
      session.queueChanged.on(() => {
        for (const each of session.queue) this.find(each.id, (own) => { own.queued = true; });
        this.queueChanged.fire();
      }),
    ];
    this.changed.fire(session.settings);
  }

  /** Forget a session that could not be opened, and keep why. */
  detach(problem: ErrorNotice): void {
    for (const each of this.subscriptions) each.dispose();
    this.current = undefined;
    this.transcript.clear();
    this.cleared.fire();
    this.setProblem(problem);
  }

  setProblem(problem: ErrorNotice | undefined): void {
    this.problem = problem;
    this.changed.fire(this.settings);
  }

  /**
   * Run one prompt to its end, after the one that runs. `content` makes its content blocks. `open` opens a session if there is none.
   * Errors are added to the transcript. If a key is missing, `signIn` asks for one, and the prompt is sent again. `now`: the
   * entity gets it before its next query. `continues`: it has no content, and the last answer goes on.
   */
  async prompt(text: string, attachments: Attachment[], content: () => Promise<acp.ContentBlock[]>, open: () => Promise<Session>, signIn: () => Promise<boolean>, now = false, continues = false): Promise<void> {
    const waits = this.busy;
    if (waits && !this.queues) return;
    const own: Sent = { id: randomUUID(), text, attachments, queued: false, shown: false, removed: false, continues };
    this.sent.push(own);
    if (waits) this.queueChanged.fire();
    else this.start(own);
    const { before } = this;
    let sent: () => void = () => undefined;
    this.before = new Promise((resolve) => { sent = resolve; });
    try {
      const blocks = await content();
      await before;
      for (let again = waits; ; again = true) {
        try {
          if (this.current === undefined) this.attach(await open());
          const reply = await this.sendPrompt(own, blocks, () => {
            sent();
            // If the answer has ended meanwhile, the message is the next one anyway.
            if (now && waits) void this.current?.sendQueuedNow(own.id).catch(() => undefined);
          });
          this.ended(own, reply);
          return;
        } catch (problem) {
          if (again || !wantsSignIn(problem) || !(await signIn())) throw problem;
        }
      }
    } catch (problem) {
      this.failed(own, problem);
    } finally {
      sent();
      this.sent.splice(this.sent.indexOf(own), 1);
      if (this.running === own) this.next();
      else this.queueChanged.fire();
    }
  }

  /** Replace a message that waits. */
  async editQueued(id: string, text: string, attachments: Attachment[], content: () => Promise<acp.ContentBlock[]>): Promise<void> {
    await this.current?.editQueued(id, await content());
    this.find(id, (own) => Object.assign(own, { text, attachments }));
    this.queueChanged.fire();
  }

  async removeQueued(id: string): Promise<void> {
    // Its reply comes before that of the request.
    this.find(id, (own) => { own.removed = true; });
    await this.current?.removeQueued(id);
  }

  private find(id: string, work: (own: Sent) => void): void {
    const own = this.sent.find((each) => each.id === id);
    if (own !== undefined) work(own);
  }

  private start(own: Sent): void {
    const first = this.running === undefined;
    this.running = own;
    this.stopping = false;
    this.review.continued();
    this.show(own);
    if (first) this.onPromptStart.fire();
  }

  private show(own: Sent): void {
    own.shown = true;
    if (own.continues) this.transcript.continued();
    else this.transcript.addUserMessage(own.text, own.attachments);
  }

  private ended(own: Sent, reply: acp.PromptResponse): void {
    const queued = (reply._meta?.cantrip as { queued?: { started?: unknown; sent_into_running_prompt?: unknown } } | undefined)?.queued;
    if (queued?.started === false) {
      if (!own.removed) this.returned.fire(own);
    } else if (queued?.sent_into_running_prompt !== true) {
      if (!own.shown) this.show(own);
      this.transcript.ended(reply);
    }
  }

  private failed(own: Sent, problem: unknown): void {
    // The one that runs says what happened.
    if (!own.shown) return this.returned.fire(own);
    if (this.current === undefined) {
      // No session could be opened for it, so nothing was said yet: the message stands in the input again.
      this.detach(describeError(problem));
      return this.returned.fire(own);
    }
    const data = problem instanceof RequestError ? (problem.data as { cantrip?: { turn?: unknown } } | undefined) : undefined;
    this.transcript.addError(describeError(problem), data?.cantrip?.turn);
  }

  /** The running prompt has ended. The agent has started the next one: the first of its queue, or one that it had not queued yet. */
  private next(): void {
    const ended = this.running?.id;
    const first = this.current?.queue.find((each) => each.id !== ended);
    const next = this.sent.find((each) => (first === undefined ? !each.queued && !each.shown : each.id === first.id));
    if (next !== undefined) this.start(next);
    else {
      this.running = undefined;
      this.onPromptEnd.fire();
    }
    this.review.refreshSoon();
    this.queueChanged.fire();
  }

  /** Send the prompt. After an earlier stop, nothing is sent. */
  private async sendPrompt(own: Sent, content: acp.ContentBlock[], sent: () => void): Promise<acp.PromptResponse> {
    if ((this.stopping && own === this.running) || this.current === undefined) return { stopReason: "cancelled" };
    return this.current.prompt(content, own.id, sent);
  }

  async stop(): Promise<void> {
    this.stopping = true;
    await this.current?.cancel();
  }

  dispose(): void {
    this.review.dispose();
    for (const each of this.subscriptions) each.dispose();
  }
}
