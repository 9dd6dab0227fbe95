import type * as acp from "@agentclientprotocol/sdk/unstable";
import { describeError, wantsSignIn } from "../acp/errors";
import type { Session, Settings } from "../acp/session";
import { Signal, type Subscription } from "../acp/signal";
import type { Attachment } from "./items";
import { Transcript } from "./transcript";

/** A session with all that was said in it. It lives in the extension host, whether a panel shows it or not. */
export class Conversation {
  readonly transcript: Transcript;
  readonly changed = new Signal<Settings>();
  /** What is said as it is said; a past that is replayed is not. */
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

  /** Whether its user stopped the prompt that runs, or ran last. */
  get stopped(): boolean {
    return this.stopping;
  }

  /** Whether somebody said something in it. */
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
   * One prompt and all that comes of it. `open` gives the session where there is none yet. Whatever goes wrong stands in the
   * transcript; `signIn` is asked for a key where one is missing, and the prompt is sent again after it.
   */
  async prompt(text: string, attachments: Attachment[], content: acp.ContentBlock[], open: () => Promise<Session>, signIn: () => Promise<boolean>): Promise<void> {
    if (this.busy) return;
    this.transcript.addUserMessage(text, attachments);
    this.busy = true;
    this.stopping = false;
    this.onPromptStart.fire();
    try {
      for (let again = false; ; again = true) {
        try {
          if (this.current === undefined) this.attach(await open());
          this.transcript.ended(await this.sendPrompt(content));
          return;
        } catch (problem) {
          if (again || !wantsSignIn(problem) || !(await signIn())) throw problem;
        }
      }
    } catch (problem) {
      this.transcript.addError(describeError(problem));
    } finally {
      this.busy = false;
      this.onPromptEnd.fire();
    }
  }

  /** The reply; a stop that came before there was a session leaves nothing to send. */
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
