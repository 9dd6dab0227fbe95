/** Labels and descriptions of looms, casts and turns. Does not use the VS Code API. */
import type { CastData, ForkData, LoomData, Tokens, TurnData } from "./data";

export function many(count: number, what: string): string {
  return `${count} ${what}${count === 1 ? "" : "s"}`;
}

/** The time since then in words, such as "2 hours ago". */
export function ago(then: number, now: number): string {
  const seconds = Math.max(0, Math.round((now - then) / 1000));
  if (seconds < 45) return "now";
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min ago`;
  const hours = Math.round(minutes / 60);
  if (hours < 36) return `${hours} h ago`;
  return `${Math.round(hours / 24)} d ago`;
}

export function money(dollars: number | null): string {
  if (dollars === null) return "";
  return dollars >= 1 ? `$${dollars.toFixed(2)}` : `$${dollars.toFixed(4)}`;
}

export function tokens(of: Tokens): string {
  if (of.prompt === null && of.completion === null) return "tokens unknown";
  const count = (of.prompt ?? 0) + (of.completion ?? 0);
  if (count === 0) return "";
  return count < 10_000 ? `${count} tokens` : `${(count / 1000).toFixed(0)}k tokens`;
}

export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

const joined = (parts: readonly string[]) => parts.filter((part) => part !== "").join(" · ");

export function loomLabel(loom: LoomData): string {
  return loom.title === "" ? loom.name : loom.title;
}

export function loomDescription(loom: LoomData, now: number): string {
  return ago(loom.modified, now);
}

/** A loom to compare with. */
export interface LoomChoice {
  readonly label: string;
  readonly description: string;
  readonly detail?: string;
  readonly uri: string;
}

/** A fork by the first message that differs, and when it was sent. */
export function forkChoice(fork: ForkData, now: number): LoomChoice {
  const sent = Date.parse(fork.sent ?? "");
  const instead = fork.instead === null ? "No message is in its place here." : `In place of: ${fork.instead}`;
  if (fork.message === null) return { label: "Nothing else", description: ago(fork.modified, now), detail: fork.instead === null ? "It has the same messages." : `It ends before: ${fork.instead}`, uri: fork.uri };
  return { label: fork.message, description: ago(Number.isNaN(sent) ? fork.modified : sent, now), detail: instead, uri: fork.uri };
}

export function recordChoice(loom: LoomData, now: number): LoomChoice {
  return { label: loomLabel(loom), description: ago(loom.modified, now), uri: loom.uri };
}

/** The title of a tab with two looms. */
export function comparisonTitle(left: string, right: string): string {
  const short = (text: string) => (text.length > 24 ? `${text.slice(0, 23).trimEnd()}…` : text);
  return left === "" ? `Compare: ${short(right)}` : `${short(left)} ↔ ${short(right)}`;
}

export function castLabel(cast: CastData): string {
  return cast.intent === "" ? `run ${cast.id}` : cast.intent;
}

export function castDescription(cast: CastData): string {
  const how = cast.reason ?? cast.state;
  const fork = cast.forkedFrom === null ? "" : "fork";
  return joined([fork, how, many(cast.turns, "turn"), tokens(cast.tokens), money(cast.cost)]);
}

export function turnLabel(turn: TurnData): string {
  if (turn.role === "call") return "call";
  const lead = turn.role === "fold" ? "fold" : String(turn.sequence);
  const gates = turn.gates.join(", ");
  const rest = turn.text === "" ? turn.said : turn.text;
  const words = gates !== "" && rest !== "" ? `${gates}: ${rest}` : gates + rest;
  return `${lead}  ${words === "" ? "(said nothing)" : words}`;
}

export function turnDescription(turn: TurnData): string {
  const reward = turn.reward === null ? "" : `reward ${turn.reward}`;
  const children = turn.children === 0 ? "" : many(turn.children, "child").replace("childs", "children");
  const forks = turn.forks === 0 ? "" : many(turn.forks, "fork");
  const reason = turn.reason ?? "";
  return joined([reward, turn.failed ? "failed" : "", reason, children, forks, turn.role === "call" ? "" : duration(turn.ms)]);
}

/** All details of a turn, for a tooltip. */
export function turnFacts(turn: TurnData): string {
  return joined([turn.timestamp, turn.model ?? "", duration(turn.ms), tokens(turn.tokens), money(turn.cost)]);
}
