import type * as acp from "@agentclientprotocol/sdk/unstable";
import { randomUUID } from "node:crypto";
import { Signal } from "../acp/signal";

/** A pending question of the agent. */
export interface Pending {
  readonly id: string;
  readonly request: acp.RequestPermissionRequest;
}

/** What the user adds to an answer: why it is a rejection or what a plan lacks, and a plan as the user edited it. */
export interface AnswerNote {
  readonly reason?: string;
  readonly plan?: string;
}

/** The open questions, answered by their ids. If a session is stopped, all its questions are cancelled. */
export class Permissions {
  readonly asked = new Signal<Pending>();
  readonly settled = new Signal<{ readonly pending: Pending; readonly option: string | undefined }>();
  private readonly open = new Map<string, { pending: Pending; settle: (option: string | undefined, note?: AnswerNote) => void }>();

  ask(request: acp.RequestPermissionRequest, signal: AbortSignal): Promise<acp.RequestPermissionResponse> {
    const pending: Pending = { id: randomUUID(), request };
    return new Promise((resolve) => {
      const settle = (option: string | undefined, note?: AnswerNote): void => {
        if (!this.open.delete(pending.id)) return;
        signal.removeEventListener("abort", taken);
        resolve({ outcome: option === undefined ? { outcome: "cancelled" } : { outcome: "selected", optionId: option, ...(note === undefined ? {} : { _meta: { cantrip: note } }) } });
        this.settled.fire({ pending, option });
      };
      const taken = (): void => settle(undefined);
      this.open.set(pending.id, { pending, settle });
      signal.addEventListener("abort", taken, { once: true });
      if (signal.aborted) return taken();
      this.asked.fire(pending);
    });
  }

  /** Answer a question with one of its options. Returns false for any other option. */
  answer(id: string, option: string, note?: AnswerNote): boolean {
    const entry = this.open.get(id);
    if (entry === undefined || !entry.pending.request.options.some((each) => each.optionId === option)) return false;
    entry.settle(option, note);
    return true;
  }

  /** Answer with the option of a kind, such as `allow_once`. */
  answerKind(id: string, kind: acp.PermissionOptionKind): boolean {
    const option = this.open.get(id)?.pending.request.options.find((each) => each.kind === kind);
    return option !== undefined && this.answer(id, option.optionId);
  }

  /** Whether a question is still open. */
  hasPending(id: string): boolean {
    return this.open.has(id);
  }

  cancel(sessionId: string): void {
    for (const { pending, settle } of [...this.open.values()]) {
      if (pending.request.sessionId === sessionId) settle(undefined);
    }
  }

  of(sessionId: string): Pending[] {
    return [...this.open.values()].map((entry) => entry.pending).filter((pending) => pending.request.sessionId === sessionId);
  }
}
