/** The children of a call, from the actions that the agent reports of them (`_meta.cantrip.children`). */
import type { Child } from "./items";

/** The most steps of a child that are kept; earlier ones are counted. */
const MOST_STEPS = 60;
/** The most children of a call that are kept, so that a batch of thousands stays readable. Those that ended first go first. */
const MOST_CHILDREN = 100;

/** The children after more actions. `now` is the time in ms; undefined in a replay. */
export function withActions(children: readonly Child[], actions: unknown, now: number | undefined): readonly Child[] {
  if (!Array.isArray(actions) || actions.length === 0) return children;
  const all = new Map(children.map((each) => [each.id, each]));
  for (const action of actions as readonly unknown[]) {
    const { number, kind, text, child } = (action ?? {}) as Readonly<Record<string, unknown>>;
    if (typeof kind !== "string" || typeof text !== "string") continue;
    const place = typeof number === "string" ? number : "";
    // Earlier agents name no child.
    const id = typeof child === "string" ? child : `number ${place}`;
    const known = all.get(id) ?? { id, number: place, task: "", state: "running", now: "", steps: [], earlier: 0, ...(now === undefined ? {} : { started: now }) };
    all.set(id, next(known, kind, text, now));
  }
  const kept = [...all.values()];
  while (kept.length > MOST_CHILDREN) {
    const over = kept.findIndex((each) => each.state !== "running");
    kept.splice(Math.max(over, 0), 1);
  }
  return kept;
}

/** The children after the end of their call: none of them runs. */
export function atEnd(children: readonly Child[], now: number | undefined): readonly Child[] {
  return children.map((each) => (each.state === "running" ? { ...each, state: "stopped", now: "stopped with its parent", ...(now === undefined ? {} : { ended: now }) } : each));
}

function next(child: Child, kind: string, text: string, now: number | undefined): Child {
  if (kind === "intent") {
    // One that stays open can get a second task.
    const again: Child = { ...child, state: "running", ended: undefined };
    return child.task === "" ? { ...again, task: text } : step(again, kind, text);
  }
  if (kind === "done" || kind === "stopped") return { ...child, state: kind, now: kind === "done" ? child.now : text, ...(now === undefined ? {} : { ended: now }) };
  return step(child, kind, text);
}

function step(child: Child, kind: string, text: string): Child {
  const steps = [...child.steps, { kind, text }];
  const more = Math.max(steps.length - MOST_STEPS, 0);
  const line = text.trim().split("\n").at(-1) ?? "";
  return { ...child, now: line, steps: steps.slice(more), earlier: child.earlier + more };
}
