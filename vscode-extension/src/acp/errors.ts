import { RequestError } from "@agentclientprotocol/sdk/unstable";
import { NoProgram } from "./command";
import { AgentGone } from "./connection";

/** An error for the person who must act: what happened, and what can be done about it. */
export interface Told {
  readonly title: string;
  readonly detail: string;
  readonly action: "restart" | "signIn" | "setUp" | "newSession" | "none";
}

const AUTH_REQUIRED = -32000;
const NOT_FOUND = -32002;

/** Whether the agent wants a key or a sign-in first. */
export function wantsSignIn(problem: unknown): boolean {
  return problem instanceof RequestError && problem.code === AUTH_REQUIRED;
}

export function told(problem: unknown): Told {
  if (problem instanceof AgentGone) {
    return {
      title: `The agent ${problem.how}`,
      detail: problem.lastWords.filter((line) => line.trim()).slice(-6).join("\n") || "It said nothing about the reason.",
      action: problem.how.startsWith("could not be started") ? "setUp" : "restart",
    };
  }
  if (problem instanceof RequestError) {
    const data = problem.data as Record<string, unknown> | undefined;
    const more = ["details", "howTo", "hint"].map((key) => data?.[key]).find((text) => typeof text === "string" && !problem.message.includes(text));
    const detail = typeof more === "string" ? `${problem.message}\n${more}` : problem.message;
    if (problem.code === AUTH_REQUIRED) return { title: "A model's key is needed", detail: keyless(problem.message), action: "signIn" };
    if (problem.code === NOT_FOUND) return { title: "This session is gone", detail, action: "newSession" };
    return { title: "The agent refused", detail, action: "none" };
  }
  const text = problem instanceof Error ? problem.message : String(problem);
  const [title = "Something went wrong", ...rest] = text.split("\n");
  return { title, detail: rest.join("\n"), action: problem instanceof NoProgram ? "setUp" : "none" };
}

/** Why there is no key, without all the ways to set one elsewhere: the button beside it leads to one. */
function keyless(message: string): string {
  const why = message.replace(/^Authentication required: /, "").split(/\.\s/)[0] ?? "";
  return `${why.charAt(0).toUpperCase()}${why.slice(1)}.\nGive a key here; “cantrip doctor” in a terminal shows what was found.`;
}
