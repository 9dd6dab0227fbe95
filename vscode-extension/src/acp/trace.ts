import type { AnyMessage, Stream } from "@agentclientprotocol/sdk/unstable";
import { masked } from "./masking";

export type TraceLevel = "off" | "messages" | "verbose";

/** Streams that write each message to the log, with secrets masked. `level` is read for each message. */
export function traceStreams(stream: Stream, level: () => TraceLevel, write: (line: string) => void): Stream {
  const open = new Map<string, { method: string; at: number }>();
  const tell = (sent: boolean, message: AnyMessage): void => {
    const now = level();
    const fields = message as { id?: unknown; method?: string; params?: unknown; result?: unknown; error?: unknown };
    let what: string;
    let hides = false;
    if (fields.method !== undefined) {
      const asks = fields.id !== undefined;
      what = `${fields.method}${asks ? ` (request ${String(fields.id)})` : ""}`;
      if (asks) open.set(`${sent ? "out" : "in"}:${String(fields.id)}`, { method: fields.method, at: Date.now() });
    } else {
      const key = `${sent ? "in" : "out"}:${String(fields.id)}`;
      const asked = open.get(key);
      open.delete(key);
      // What the user typed into a form may be secret.
      hides = asked?.method === "elicitation/create" && fields.error === undefined;
      const took = asked ? `, ${Date.now() - asked.at} ms` : "";
      what = `${fields.error === undefined ? "answer" : "error"} to ${asked?.method ?? "?"} (request ${String(fields.id)}${took})`;
    }
    if (now === "off") return;
    const body = hides ? "" : now === "verbose" ? `\n${JSON.stringify(masked(fields.params ?? fields.result ?? fields.error ?? null), null, 2)}` : "";
    write(`${sent ? "→" : "←"} ${what}${body}`);
  };
  return {
    readable: stream.readable.pipeThrough(tap((message) => tell(false, message))),
    writable: tapWriting(stream.writable, (message) => tell(true, message)),
  };
}

function tap(seen: (message: AnyMessage) => void): TransformStream<AnyMessage, AnyMessage> {
  return new TransformStream({
    transform(message, controller) {
      seen(message);
      controller.enqueue(message);
    },
  });
}

function tapWriting(target: WritableStream<AnyMessage>, seen: (message: AnyMessage) => void): WritableStream<AnyMessage> {
  const writer = target.getWriter();
  return new WritableStream<AnyMessage>({
    async write(message) {
      seen(message);
      await writer.write(message);
    },
    close: () => writer.close(),
    abort: (reason) => writer.abort(reason),
  });
}
