import { RequestError } from "@agentclientprotocol/sdk/unstable";
import { NoProgram } from "./command";
import { AgentExitedError } from "./connection";
import { STOPPED } from "./process";

/** An error message for the user: what happened, and what the user can do. */
export interface ErrorNotice {
  readonly title: string;
  readonly detail: string;
  readonly action: "restart" | "retry" | "signIn" | "setUp" | "newSession" | "none";
}

const AUTH_REQUIRED = -32000;
const NOT_FOUND = -32002;

/** What went wrong, in one text for a person. */
export function words(problem: unknown): string {
  const { title, detail } = describeError(problem);
  return detail === "" || title === GENERAL ? detail || title : `${title}: ${detail}`;
}

const GENERAL = "That did not work";

/** Whether the agent needs a key or a sign-in first. */
export function wantsSignIn(problem: unknown): boolean {
  return problem instanceof RequestError && problem.code === AUTH_REQUIRED;
}

/** Whether another process has the session open. */
export function isInUse(problem: unknown): boolean {
  return problem instanceof RequestError && (problem.data as Record<string, unknown> | undefined)?.reason === "session_in_use";
}

/** Whether the agent has no such session. */
export function isGone(problem: unknown): boolean {
  return problem instanceof RequestError && problem.code === NOT_FOUND;
}

export function describeError(problem: unknown): ErrorNotice {
  if (problem instanceof AgentExitedError && problem.how.startsWith(STOPPED)) {
    return { title: "Cantrip was restarted", detail: "What it was doing ended there.", action: "retry" };
  }
  if (problem instanceof AgentExitedError) {
    return {
      title: problem.how.startsWith("could not be started") ? "Cantrip could not be started" : "Cantrip stopped unexpectedly",
      detail: [`The agent ${problem.how}.`, ...problem.lastWords.filter((line) => line.trim()).slice(-6)].join("\n"),
      action: problem.how.startsWith("could not be started") ? "setUp" : "restart",
    };
  }
  if (problem instanceof RequestError) return describeRequestError(problem);
  const text = problem instanceof Error ? problem.message : String(problem);
  const [title = "Something went wrong", ...rest] = text.split("\n");
  return { title, detail: rest.join("\n"), action: problem instanceof NoProgram ? "setUp" : "none" };
}

/** Errors of providers, found by status or by text, and what the user can do. */
const PROVIDER: readonly (readonly [statuses: readonly number[], words: RegExp, title: string, action: ErrorNotice["action"]])[] = [
  [[402], /insufficient_quota|no credit left|exceeded your current quota|billing/i, "The account has no credit left", "retry"],
  [[401, 403], /\banswered 40[13]\b|invalid (?:x-)?api.?key|incorrect api key|authentication_error|api key not valid|unauthori[sz]ed/i, "The key was not accepted", "signIn"],
  [[404], /\banswered 404\b|model_not_found|no such model|model .{1,80} not found/i, "The model was not found", "none"],
  [[429, 529], /\banswered (?:429|529)\b|rate.?limit|overloaded/i, "The provider asks to wait", "retry"],
  [[413], /do not fit the model's context|context window/i, "This conversation is too long for the model", "newSession"],
  [[500, 502, 503, 504], /\banswered 5\d\d\b/i, "The provider has a problem", "retry"],
  [[], /no connection|connection (?:refused|reset|error)|cannot be reached|time-out|timed out|name resolution|getaddrinfo|ECONNREFUSED|stream was cut|no answer/i, "The model could not be reached", "retry"],
];

const REASONS: Readonly<Record<string, readonly [title: string, action: ErrorNotice["action"]]>> = {
  prompt_in_progress: ["Cantrip is still at work here", "none"],
  session_in_use: ["This session is open elsewhere", "retry"],
  untrusted_recipe: ["The recipe is not trusted", "none"],
};

const KINDS: Readonly<Record<string, readonly [title: string, action: ErrorNotice["action"]]>> = {
  ContextLimitError: ["This conversation is too long for the model", "newSession"],
  SandboxMissing: ["The sandbox is not installed", "retry"],
  SandboxError: ["The sandbox could not be started", "retry"],
  LoomWriteError: ["The session could not be saved", "retry"],
  LoomLocked: ["This session is open elsewhere", "newSession"],
  RecipeError: ["The recipe has a mistake", "none"],
  UntrustedRecipe: ["The recipe is not trusted", "none"],
  MalformedResponse: ["The model's answer could not be read", "retry"],
};

function describeRequestError(problem: RequestError): ErrorNotice {
  const data = (problem.data ?? {}) as Record<string, unknown>;
  if (problem.code === AUTH_REQUIRED) return { title: "A model is needed", detail: missingKeyText(problem.message), action: "signIn" };
  const more = ["details", "howTo", "hint"].map((key) => data[key]).find((text) => typeof text === "string" && !problem.message.includes(text));
  // The field of a wrong parameter is a word of the protocol.
  const said = typeof data.problem === "string" ? data.problem : problem.message.replace(PROTOCOL, "");
  const detail = capital(typeof more === "string" ? `${said}\n${more}` : said);
  if (isGone(problem)) return { title: "This session is gone", detail, action: "newSession" };
  const reason = REASONS[String(data.reason)];
  if (reason !== undefined) return { title: reason[0], detail, action: reason[1] };
  const kind = KINDS[String(data.error)];
  if (kind !== undefined) return { title: kind[0], detail, action: kind[1] };
  const status = typeof data.status === "number" ? data.status : undefined;
  const provider =
    PROVIDER.find(([statuses]) => status !== undefined && statuses.includes(status) && (status !== 429 || !PROVIDER[0]?.[1].test(detail))) ?? PROVIDER.find(([, words]) => words.test(detail));
  if (provider !== undefined) return { title: provider[2], detail, action: provider[3] };
  return { title: GENERAL, detail, action: data.error === undefined ? "none" : "retry" };
}

/** Words of the protocol before the reason. */
const PROTOCOL = /^(?:(?:The prompt failed|Invalid request|Invalid params|Internal error|Resource not found|Authentication required|Method not found): )+/;

function capital(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}`;
}

/** The reason for a missing key, without the other ways to set one: the button does that. */
function missingKeyText(message: string): string {
  const why = message.replace(PROTOCOL, "").split(/\.\s/)[0] ?? "";
  return `${capital(why)}.\nChoose a model here: one of this machine, or one of a provider whose key you have.`;
}
