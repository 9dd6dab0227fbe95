import type { ChangedFile } from "../acp/changes";
import type { ErrorNotice } from "../acp/errors";
import type { McpStatus } from "../acp/mcp";
import type { SetupState } from "../environment/setup";
import type { Found } from "./find";
import type { Attachment, Item, Op } from "./items";

/** The state of the panel besides the conversation. */
export interface State {
  /** While a session is being opened, nothing can be sent to it. */
  readonly status: "ready" | "opening" | "noFolder" | "untrusted" | "setUp";
  /** Why no session could be opened. */
  readonly problem?: ErrorNotice;
  /** With the status `setUp`: what the set-up does, or why it failed. */
  readonly setUp?: SetupState;
  readonly title: string;
  /** The session that is shown or will be, which an editor tab opens again after a reload. Empty if there is none yet. */
  readonly session: string;
  readonly running: boolean;
  /** Whether a message can be sent while another one runs. */
  readonly queues: boolean;
  /** Whether one running call can be stopped alone. */
  readonly stopsCalls?: boolean;
  /** The time of the extension host in ms, which is not always that of the page's machine. */
  readonly now?: number;
  /** The messages that wait for the running one. */
  readonly queue: readonly QueuedMessage[];
  readonly options: readonly Choice[];
  readonly commands: readonly { readonly name: string; readonly description: string; readonly hint: string }[];
  readonly usage?: { readonly used: number; readonly size: number; readonly cost: string };
  readonly plan: readonly { readonly content: string; readonly status: string; readonly priority: string }[];
  /** Why the first prompt will ask for trust. */
  readonly caution?: string;
}

/** A message that waits. `sending`: the agent gets it with its next query. */
export interface QueuedMessage {
  readonly id: string;
  readonly text: string;
  readonly attachments: readonly Attachment[];
  readonly sending: boolean;
}

/** A config option of the session. */
export interface Choice {
  readonly id: string;
  readonly name: string;
  readonly description: string;
  readonly category: string;
  readonly value: string | boolean;
  readonly values: readonly { readonly value: string; readonly name: string; readonly description: string; readonly group?: string }[];
  /** What the chosen model is known not to read. */
  readonly unread?: readonly Unread[];
}

/** Kinds of attachments that some models cannot read. */
export type Unread = "pictures" | "audio" | "PDF files";

export interface SessionRow {
  readonly id: string;
  readonly title: string;
  readonly cwd: string;
  readonly when: string;
  readonly current: boolean;
  readonly busy: boolean;
  /** Whether the agent waits there for an answer of the user. */
  readonly waiting: boolean;
}

export type HostMessage =
  /** A conversation: its last items, from the place `first` on, of `total`. */
  | { readonly type: "reset"; readonly items: readonly Item[]; readonly first?: number; readonly total?: number; readonly same?: boolean; readonly state: State }
  | { readonly type: "ops"; readonly ops: readonly Op[] }
  /** The items that were asked for, from the place `first` on, of `total`. */
  | { readonly type: "items"; readonly ask: number; readonly first: number; readonly items: readonly Item[]; readonly total: number }
  | { readonly type: "state"; readonly state: State }
  | { readonly type: "sessions"; readonly sessions: readonly SessionRow[]; readonly problem?: string }
  /** `note` says why there are none. */
  | { readonly type: "mentions"; readonly ask: number; readonly found: readonly Attachment[]; readonly note?: string }
  /** The items with the words that were asked for. */
  | { readonly type: "found"; readonly ask: number; readonly items: readonly Found[] }
  /** Put a text and attachments into the composer; with `add` after what is there. */
  | { readonly type: "attach"; readonly attachments: readonly Attachment[]; readonly text?: string; readonly add?: boolean }
  /** The files that the agent changed and the user has not kept; and whether the last restore can be taken back. */
  | { readonly type: "changes"; readonly files: readonly ChangedFile[]; readonly canRedo: boolean }
  /** A picture of the workspace as a `data:` address; none if it must not or cannot be shown. */
  | { readonly type: "picture"; readonly ask: number; readonly data?: string }
  | { readonly type: "focus" }
  /** Show a message where the one was whose button for another version was pressed, and focus its button. */
  | { readonly type: "reveal"; readonly item: string; readonly index: number; readonly step: -1 | 1 }
  | { readonly type: "showServers" }
  | { readonly type: "servers"; readonly servers: readonly McpStatus[]; readonly problem?: string }
  | { readonly type: "showSessions" };

export type WebviewMessage =
  | { readonly type: "ready" }
  /** `now`: the running answer gets the message with its next query. */
  | { readonly type: "send"; readonly text: string; readonly attachments: readonly Attachment[]; readonly now?: boolean }
  | { readonly type: "editQueued"; readonly id: string; readonly text: string; readonly attachments: readonly Attachment[] }
  | { readonly type: "removeQueued" | "sendQueuedNow"; readonly id: string }
  /** Keep or undo changes: all, those of a file, or one hunk. `version` is that of the content that was shown. */
  | { readonly type: "keepChange" | "undoChange"; readonly path?: string; readonly hunk?: number; readonly version?: string }
  | { readonly type: "openChange"; readonly path: string }
  /** Send another message in place of an earlier one. */
  | { readonly type: "resend"; readonly item: string; readonly text: string; readonly attachments: readonly Attachment[] }
  /** Go to the next or the previous change in the text. */
  | { readonly type: "goToChange"; readonly direction: "next" | "previous" }
  /** Find the items with these words. `ask` numbers the request. */
  | { readonly type: "find"; readonly ask: number; readonly words: string }
  /** Open the session with the version before or after that of a message. */
  | { readonly type: "version"; readonly item: string; readonly step: -1 | 1 }
  /** Show the session beside the one with another version of a message. */
  | { readonly type: "compareVersions"; readonly item: string }
  | { readonly type: "stop" | "new" | "sessions" | "servers" | "openServerSettings" | "restart" | "retry" | "signIn" | "setUp" | "cancelSetUp" | "otherSetUp" | "trust" | "openFolder" | "redoChange" }
  /** The place of the server in the list. */
  | { readonly type: "restartServer"; readonly server: number }
  | { readonly type: "items"; readonly ask: number; readonly from: number; readonly to: number }
  | { readonly type: "open" | "delete"; readonly id: string; readonly cwd?: string }
  | { readonly type: "option"; readonly id: string; readonly value: string | boolean }
  | { readonly type: "answer"; readonly question: string; readonly option: string; readonly reason?: string; readonly plan?: string }
  /** Answer the form with this id, by the names of its fields. */
  | { readonly type: "answerForm"; readonly form: string; readonly content: Readonly<Record<string, unknown>> }
  | { readonly type: "skipForm"; readonly form: string }
  | { readonly type: "fork"; readonly turn: string }
  | { readonly type: "location"; readonly path: string; readonly line?: number }
  | { readonly type: "diff"; readonly item: string; readonly path: string }
  | { readonly type: "link"; readonly href: string }
  | { readonly type: "mention"; readonly ask: number; readonly query: string }
  | { readonly type: "dropped"; readonly uris: readonly string[] }
  | { readonly type: "askAgain" | "tryAgain" | "continue" | "copyAnswer" | "restore" | "openOutput" | "stopCall"; readonly item: string }
  | { readonly type: "copy" | "insert"; readonly text: string }
  /** `file`: the file that the answer names beside the code. */
  | { readonly type: "applyCode"; readonly text: string; readonly file?: string }
  | { readonly type: "newFile" | "runInTerminal"; readonly text: string; readonly language: string }
  | { readonly type: "picture"; readonly ask: number; readonly href: string };

/** Check a message of the webview. The webview shows untrusted text, so its messages are not trusted. */
export function parseWebviewMessage(value: unknown): WebviewMessage | undefined {
  if (value === null || typeof value !== "object") return undefined;
  const fields = value as Record<string, unknown>;
  const texts = (...names: string[]): boolean => names.every((name) => typeof fields[name] === "string");
  switch (fields.type) {
    case "ready":
    case "stop":
    case "new":
    case "sessions":
    case "servers":
    case "openServerSettings":
    case "restart":
    case "retry":
    case "signIn":
    case "setUp":
    case "cancelSetUp":
    case "otherSetUp":
    case "trust":
    case "openFolder":
    case "redoChange":
      return { type: fields.type };
    case "send":
      return texts("text") && (fields.now === undefined || typeof fields.now === "boolean") && Array.isArray(fields.attachments) && fields.attachments.every(isAttachment) ? (fields as unknown as WebviewMessage) : undefined;
    case "restartServer":
      return Number.isInteger(fields.server) ? (fields as unknown as WebviewMessage) : undefined;
    case "editQueued":
      return texts("id", "text") && Array.isArray(fields.attachments) && fields.attachments.every(isAttachment) ? (fields as unknown as WebviewMessage) : undefined;
    case "removeQueued":
    case "sendQueuedNow":
      return texts("id") ? (fields as unknown as WebviewMessage) : undefined;
    case "keepChange":
    case "undoChange":
      return (fields.path === undefined || texts("path", "version")) && (fields.hunk === undefined || (texts("path") && Number.isInteger(fields.hunk))) ? (fields as unknown as WebviewMessage) : undefined;
    case "openChange":
      return texts("path") ? (fields as unknown as WebviewMessage) : undefined;
    case "goToChange":
      return fields.direction === "next" || fields.direction === "previous" ? (fields as unknown as WebviewMessage) : undefined;
    case "resend":
      return texts("item", "text") && Array.isArray(fields.attachments) && fields.attachments.every(isAttachment) ? (fields as unknown as WebviewMessage) : undefined;
    case "items":
      return [fields.ask, fields.from, fields.to].every(Number.isInteger) ? (fields as unknown as WebviewMessage) : undefined;
    case "open":
    case "delete":
      return texts("id") && (fields.cwd === undefined || texts("cwd")) ? (fields as unknown as WebviewMessage) : undefined;
    case "option":
      return texts("id") && (texts("value") || typeof fields.value === "boolean") ? (fields as unknown as WebviewMessage) : undefined;
    case "answer":
      return texts("question", "option") && ["reason", "plan"].every((name) => fields[name] === undefined || texts(name)) ? (fields as unknown as WebviewMessage) : undefined;
    case "answerForm":
      return texts("form") && fields.content !== null && typeof fields.content === "object" && !Array.isArray(fields.content) ? (fields as unknown as WebviewMessage) : undefined;
    case "skipForm":
      return texts("form") ? (fields as unknown as WebviewMessage) : undefined;
    case "fork":
      return texts("turn") ? (fields as unknown as WebviewMessage) : undefined;
    case "location":
      return texts("path") && (fields.line === undefined || typeof fields.line === "number") ? (fields as unknown as WebviewMessage) : undefined;
    case "diff":
      return texts("item", "path") ? (fields as unknown as WebviewMessage) : undefined;
    case "link":
      return texts("href") ? (fields as unknown as WebviewMessage) : undefined;
    case "find":
      return texts("words") && typeof fields.ask === "number" ? (fields as unknown as WebviewMessage) : undefined;
    case "mention":
      return texts("query") && typeof fields.ask === "number" ? (fields as unknown as WebviewMessage) : undefined;
    case "dropped":
      return Array.isArray(fields.uris) && fields.uris.every((uri) => typeof uri === "string") ? (fields as unknown as WebviewMessage) : undefined;
    case "askAgain":
    case "tryAgain":
    case "continue":
    case "copyAnswer":
    case "restore":
    case "openOutput":
    case "stopCall":
    case "compareVersions":
      return texts("item") ? (fields as unknown as WebviewMessage) : undefined;
    case "version":
      return texts("item") && (fields.step === 1 || fields.step === -1) ? (fields as unknown as WebviewMessage) : undefined;
    case "copy":
    case "insert":
      return texts("text") ? (fields as unknown as WebviewMessage) : undefined;
    case "applyCode":
      return texts("text") && (fields.file === undefined || texts("file")) ? (fields as unknown as WebviewMessage) : undefined;
    case "newFile":
    case "runInTerminal":
      return texts("text", "language") ? (fields as unknown as WebviewMessage) : undefined;
    case "picture":
      return texts("href") && Number.isInteger(fields.ask) ? (fields as unknown as WebviewMessage) : undefined;
    default:
      return undefined;
  }
}

function isAttachment(value: unknown): boolean {
  if (value === null || typeof value !== "object") return false;
  const fields = value as Record<string, unknown>;
  const optional = (name: string): boolean => fields[name] === undefined || typeof fields[name] === "string";
  return typeof fields.kind === "string" && typeof fields.name === "string" && ["uri", "detail", "data", "mime", "text"].every(optional);
}
