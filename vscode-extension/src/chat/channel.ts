import type { HostMessage } from "./messages";
import type { Op } from "./items";

const BATCH_MS = 25;

/**
 * What the extension host tells a page of the chat, in order. Ops that follow each other closely become one message, and
 * texts that continue each other one op. Every other message waits for no timer, but goes out after the ops before it:
 * a page that hears that an answer has ended has all of its text.
 */
export class PageChannel {
  private ops: Op[] = [];
  private timer: NodeJS.Timeout | undefined;

  /** `most`: with more ops than this at once, `overflow` sends everything again in their place. */
  constructor(
    private readonly post: (message: HostMessage) => void,
    private readonly most = Infinity,
    private readonly overflow: () => void = () => undefined,
  ) {}

  send(message: HostMessage): void {
    this.flush();
    this.post(message);
  }

  queue(op: Op): void {
    const last = this.ops.at(-1);
    if (op.op === "text" || op.op === "output") {
      if (last?.op === op.op && last.id === op.id) this.ops[this.ops.length - 1] = { ...last, text: last.text + op.text };
      else this.ops.push(op);
    } else {
      // A copy of the current state: later additions are separate ops.
      const now = { ...op, item: { ...op.item } };
      if (last?.op === "set" && op.op === "set" && last.item.id === op.item.id) this.ops[this.ops.length - 1] = now;
      else this.ops.push(now);
    }
    this.timer ??= setTimeout(() => { this.flush(); }, BATCH_MS);
  }

  flush(): void {
    const ops = this.ops;
    this.clear();
    if (ops.length > this.most) this.overflow();
    else if (ops.length > 0) this.post({ type: "ops", ops });
  }

  /** Forget what was queued, because the page gets everything again. */
  clear(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.ops = [];
  }
}
