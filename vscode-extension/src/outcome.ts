/** Describes how a cast ended, and asks for trust if a recipe needs it. */
import * as vscode from "vscode";
import { failure, type Server } from "./server/server";

export interface Outcome {
  readonly result: unknown;
  readonly terminated: boolean;
  readonly reason: string;
  readonly turns: number;
  readonly cost: number | null;
  /** The loom's path, if it is kept in a file. */
  readonly loom: string | null;
}

const MAX_RESULT_LENGTH = 300;

/** The outcome in one line. */
export function outcomeSummary(name: string, outcome: Outcome): string {
  const { result, reason, turns, cost } = outcome;
  const whole = typeof result === "string" ? result : result === null || result === undefined ? "" : JSON.stringify(result);
  const short = whole.length > MAX_RESULT_LENGTH ? `${whole.slice(0, MAX_RESULT_LENGTH - 1)}…` : whole;
  const spent = cost === null ? "" : `, $${cost.toFixed(4)}`;
  return `${name}: ${short === "" ? reason : short} (${reason}, ${turns} turn${turns === 1 ? "" : "s"}${spent})`;
}

/** Work with a recipe. If that needs trust, ask the user once and try again. */
export async function withTrust<Answer>(server: Server, what: string, work: () => Promise<Answer>): Promise<Answer | undefined> {
  try {
    return await work();
  } catch (error) {
    const why = failure(error);
    if (why.error !== "UntrustedRecipe" || why.command === undefined) throw error;
    const chosen = await vscode.window.showWarningMessage(why.message, { modal: true }, `Trust and ${what}`);
    if (chosen === undefined) return undefined;
    await server.execute(why.command.command, why.command.arguments ?? []);
    return work();
  }
}
