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
  input?: string;
  /** What a command printed, with its escape codes. */
  output?: string;
  exit?: { code: number | null; signal: string | null };
  question?: Question;
  answer?: string;
}

export interface Question {
  readonly id: string;
  readonly options: readonly { readonly id: string; readonly name: string; readonly kind: string }[];
}

export type ToolPart =
  | { readonly type: "text"; readonly text: string }
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
  readonly action: "restart" | "signIn" | "setUp" | "newSession" | "none";
}

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
