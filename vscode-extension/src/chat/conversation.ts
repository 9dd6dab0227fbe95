import { RequestError } from "@agentclientprotocol/sdk/unstable";
import type * as acp from "@agentclientprotocol/sdk/unstable";
import { describeError, wantsSignIn } from "../acp/errors";
import type { Session, Settings } from "../acp/session";
import { Signal, type Subscription } from "../acp/signal";
import type { Attachment } from "./items";
import { Transcript } from "./transcript";

/** A session with its transcript. It is in the extension host, also if no panel shows it. */
export class Conversation {
  readonly transcript: Transcript;
  readonly changed = new Signal<Settings>();
  /** Fires for each update of a running answer, but not during a replay. */
  readonly onUpdate = new Signal<acp.SessionUpdate>();
  readonly onPromptStart = new Signal<void>();
  readonly onPromptEnd = new Signal<void>();
  private subscriptions: Subscription[] = [];
  private current: Session | undefined;
  private stopping = false;
  busy = false;

  constructor(readonly folder: string) {
    this.transcript = new Transcript(folder);
  }

  get session(): Session | undefined {
    return this.current;
  }

  get attached(): boolean {
    return this.current !== undefined;
  }

  get settings(): Settings {
    return this.current?.settings ?? { options: [], commands: [] };
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
    this.subscriptions = [
      session.updates.on((update) => {
        this.transcript.applyUpdate(update);
        if (!this.transcript.replaying) this.onUpdate.fire(update);
      }),
      session.changed.on((settings) => { this.changed.fire(settings); }),
    ];
    this.changed.fire(session.settings);
  }

  /**
   * Run one prompt to its end. `content` makes its content blocks. `open` opens a session if there is none. Errors are added to the
   * transcript. If a key is missing, `signIn` asks for one, and the prompt is sent again.
   */
  async prompt(text: string, attachments: Attachment[], content: () => Promise<acp.ContentBlock[]>, open: () => Promise<Session>, signIn: () => Promise<boolean>): Promise<void> {
    if (this.busy) return;
    this.transcript.addUserMessage(text, attachments);
    this.busy = true;
    this.stopping = false;
    this.onPromptStart.fire();
    try {
      const blocks = await content();
      for (let again = false; ; again = true) {
        try {
          if (this.current === undefined) this.attach(await open());
          this.transcript.ended(await this.sendPrompt(blocks));
          return;
        } catch (problem) {
          if (again || !wantsSignIn(problem) || !(await signIn())) throw problem;
        }
      }
    } catch (problem) {
      const data = problem instanceof RequestError ? (problem.data as { cantrip?: { turn?: unknown } } | undefined) : undefined;
      this.transcript.addError(describeError(problem), data?.cantrip?.turn);
    } finally {
      this.busy = false;
      this.onPromptEnd.fire();
    }
  }

  /** Send the prompt. After an earlier stop, nothing is sent. */
  private async sendPrompt(content: acp.ContentBlock[]): Promise<acp.PromptResponse> {
    if (this.stopping || this.current === undefined) return { stopReason: "cancelled" };
    return this.current.prompt(content);
  }

  async stop(): Promise<void> {
    this.stopping = true;
    await this.current?.cancel();
  }

  dispose(): void {
    for (const each of this.subscriptions) each.dispose();
  }
}
