/** What a conversation is made of, as the panel shows it. Plain data: it crosses from the extension host to the webview. */

export type Item = UserItem | WordsItem | ToolItem | NoticeItem | FoldItem | ErrorItem | EndItem;

export interface UserItem {
  readonly type: "user";
  readonly id: string;
  text: string;
  readonly attachments: Attachment[];
}

/** What goes with a prompt beside its words. */
export interface Attachment {
  readonly kind: "file" | "folder" | "selection" | "symbol" | "image" | "link";
  readonly name: string;
  readonly uri?: string;
  readonly detail?: string;
  /** A picture in base64. */
  readonly data?: string;
  readonly mime?: string;
}

/** Markdown that the agent says, or thinks. */
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
  /** The call that this one came from: a command that calls gates, or a child. */
  parent?: string;
  parts: ToolPart[];
  locations: { path: string; shown: string; line?: number }[];
  /** The command or the code that it runs, whole. */
  program?: Program;
  /** Its arguments, where they are no program. */
  input?: string;
  /** What a command printed, with its escape codes. */
  output?: string;
  exit?: { code: number | null; signal: string | null };
  /** Whether it was stopped before it had ended: neither a success nor a failure. */
  stopped?: boolean;
  /** What a run of tests came to. */
  tests?: TestReport;
  question?: Question;
  answer?: Answer;
}

export interface Program {
  readonly text: string;
  readonly language: "bash" | "python";
  /** Characters at its end that are not in `text`. */
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
 * What the user said to a question. `stopped`: the user stopped the agent while it was open; `unanswered`: it was closed by
 * something else, such as a reload, and can be asked again; `passed`: so too, and the conversation went on since.
 */
export type Answer = "allow_once" | "allow_always" | "reject_once" | "reject_always" | "stopped" | "unanswered" | "passed";

export interface Question {
  readonly id: string;
  readonly options: readonly { readonly id: string; readonly name: string; readonly kind: string }[];
}

export type ToolPart =
  | { readonly type: "text"; readonly text: string }
  /** What a command printed, of a time that is over. */
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
  /** Lines that were left out of the hunks. */
  readonly left: number;
  /** Characters that were left out at the ends of very long lines. */
  readonly cut?: number;
}

export interface Hunk {
  readonly oldStart: number;
  readonly newStart: number;
  /** Each begins with a space, `+` or `-`. */
  readonly lines: readonly string[];
}

export interface NoticeItem {
  readonly type: "notice";
  readonly id: string;
  readonly severity: "info" | "warning" | "error";
  readonly title: string;
  readonly text: string;
}

/** Earlier turns were put together in a summary. */
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
}

export type ErrorAction = "restart" | "retry" | "signIn" | "setUp" | "newSession" | "none";

/** The end of an answer. `turn` is where a fork would go on from. */
export interface EndItem {
  readonly type: "end";
  readonly id: string;
  readonly reason: string;
  readonly words: string;
  readonly turn?: string;
}

/** A change of the conversation; `text` and `output` add to what is there. */
export type Op =
  | { readonly op: "add"; readonly item: Item }
  | { readonly op: "set"; readonly item: Item }
  | { readonly op: "text"; readonly id: string; readonly text: string }
  | { readonly op: "output"; readonly id: string; readonly text: string };
