/** The items of a conversation. They are plain data, because the extension host sends them to the webview. */
import type { FormField } from "./formfields";
import type { Versions } from "./versions";

export type Item = UserItem | WordsItem | ToolItem | FormItem | NoticeItem | FoldItem | ErrorItem | EndItem;

export interface UserItem {
  readonly type: "user";
  readonly id: string;
  text: string;
  attachments: Attachment[];
  /** The turn before the message, or 0: a fork from there can send another message instead. */
  readonly after: string | 0;
  /** Whether it was sent into a running answer, which a fork cannot begin from. */
  readonly steered?: boolean;
  /** Its versions, if it has others in other sessions. */
  versions?: Versions | undefined;
}

/**
 * An attachment of a prompt. The content of `problems`, `terminal` and `changes` is read when the prompt is sent; the
 * `uri` names them.
 */
export interface Attachment {
  readonly kind: "file" | "folder" | "selection" | "symbol" | "image" | "link" | EditorContext;
  readonly name: string;
  readonly uri?: string;
  readonly detail?: string;
  /** A picture in base64. */
  readonly data?: string;
  readonly mime?: string;
  /** The selected text of a terminal. */
  readonly text?: string;
}

export type EditorContext = "problems" | "terminal" | "changes";

/** A message or a thought of the agent, in Markdown. */
export interface WordsItem {
  readonly type: "agent" | "thought";
  readonly id: string;
  text: string;
}

export type ToolStatus = "pending" | "in_progress" | "completed" | "failed";

export interface ToolItem {
  readonly type: "tool";
  readonly id: string;
  readonly callId: string;
  title: string;
  kind: string;
  name?: string;
  status: ToolStatus;
  /** The parent call: a command that calls gates, or a child. */
  parent?: string;
  parts: ToolPart[];
  locations: { path: string; shown: string; line?: number }[];
  /** The complete command or code that it runs. */
  program?: Program;
  /** Its arguments, if they are not a program. */
  input?: string;
  /** The output of a command, with its escape codes. */
  output?: string;
  /** Whether `output` is what was recorded of it, and not what came while it ran. */
  recorded?: boolean;
  exit?: { code: number | null; signal: string | null };
  /** When it began to run and when it ended, in ms; absent in a replay. */
  started?: number;
  ended?: number;
  /** Whether it was stopped before its end. That is neither a success nor a failure. */
  stopped?: boolean;
  /** The children that it started, in the order of their start. */
  children?: readonly Child[];
  /** The report of a test run. */
  tests?: TestReport;
  /** The plan that the user decides about, in Markdown. */
  planText?: string;
  question?: Question;
  answer?: Answer;
  /** Whether it asks the user with a form, which is an item of its own. */
  asked?: boolean;
}

/** A question of the agent that is not about a permission, with the fields for the answer. */
export interface FormItem {
  readonly type: "form";
  readonly id: string;
  /** The id of the form; absent in a replay. */
  readonly form?: string;
  /** The call that asks, if it is known. */
  readonly callId?: string | undefined;
  /** The question, in Markdown. */
  readonly message: string;
  readonly fields: readonly FormField[];
  /** Its id while it is open. */
  question?: string | undefined;
  answer?: FormAnswer;
  /** The answer in one line. */
  said?: string;
}

export type FormAnswer = "answered" | "skipped" | "stopped" | "unanswered" | "passed";

/** A child: an agent that does a part of the work, with a task of its own. */
export interface Child {
  readonly id: string;
  /** Its number among the children of the call, as in `2.1`; empty if it is the only one. */
  readonly number: string;
  readonly task: string;
  readonly state: "running" | "done" | "stopped";
  /** What it did last, or why it was stopped. */
  readonly now: string;
  /** Its last steps. */
  readonly steps: readonly { readonly kind: string; readonly text: string }[];
  /** The number of steps before these. */
  readonly earlier: number;
  /** When it began and when it ended, in ms; absent in a replay. */
  readonly started?: number | undefined;
  readonly ended?: number | undefined;
}

export interface Program {
  readonly text: string;
  readonly language: "bash" | "python";
  /** The number of characters that were cut off at the end. */
  readonly left: number;
}

export interface TestReport {
  readonly ok: boolean;
  /** `3 passed, 1 failed`. */
  readonly summary: string;
  readonly note: string;
  readonly failures: readonly { readonly name: string; readonly cause: string; readonly text: string }[];
  readonly output: string;
}

/**
 * The user's answer to a question. `stopped`: the user stopped the agent while it was open; `unanswered`: something else
 * closed it, such as a reload, and it can be asked again; `passed`: the same, but the conversation has continued.
 */
export type Answer = "allow_once" | "allow_always" | "reject_once" | "reject_always" | "stopped" | "unanswered" | "passed";

export interface Question {
  readonly id: string;
  readonly options: readonly { readonly id: string; readonly name: string; readonly kind: string }[];
}

export type ToolPart =
  | { readonly type: "text"; readonly text: string }
  /** The output of a command that has ended. */
  | { readonly type: "output"; readonly text: string }
  | { readonly type: "image"; readonly mime: string; readonly data: string }
  | { readonly type: "link"; readonly name: string; readonly uri: string }
  | DiffPart;

export interface DiffPart {
  readonly type: "diff";
  readonly path: string;
  readonly shown: string;
  readonly isNew: boolean;
  readonly added: number;
  readonly removed: number;
  readonly hunks: readonly Hunk[];
  /** The number of lines that were left out of the hunks. */
  readonly left: number;
  /** The number of characters that were cut off from very long lines. */
  readonly cut?: number;
}

export interface Hunk {
  readonly oldStart: number;
  readonly newStart: number;
  /** Each line begins with a space, `+` or `-`. */
  readonly lines: readonly string[];
}

export interface NoticeItem {
  readonly type: "notice";
  readonly id: string;
  readonly severity: "info" | "warning" | "error";
  readonly title: string;
  readonly text: string;
}

/** A fold: earlier turns were replaced by a summary. */
export interface FoldItem {
  readonly type: "fold";
  readonly id: string;
  status: string;
  text: string;
}

export interface ErrorItem {
  readonly type: "error";
  readonly id: string;
  readonly title: string;
  readonly detail: string;
  readonly action: ErrorAction;
  /** Whether a part of the answer is there, so that it can go on. */
  incomplete?: boolean;
}

export type ErrorAction = "restart" | "retry" | "signIn" | "setUp" | "newSession" | "none";

/** The end of an answer. `turn` is the turn from which a fork continues. */
export interface EndItem {
  readonly type: "end";
  readonly id: string;
  readonly reason: string;
  readonly words: string;
  /** Whether the agent said something that can be copied. */
  readonly said: boolean;
  readonly turn?: string;
  /** Whether the answer was cut and can go on. Only the last one of a session can. */
  incomplete?: boolean;
}

/** A change of the conversation. `text` and `output` append to an item. */
export type Op =
  | { readonly op: "add"; readonly item: Item }
  | { readonly op: "set"; readonly item: Item }
  | { readonly op: "text"; readonly id: string; readonly text: string }
  | { readonly op: "output"; readonly id: string; readonly text: string };
