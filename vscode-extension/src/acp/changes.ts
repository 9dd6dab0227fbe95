/** The files that an entity changed, and what a restore did: the data of `_cantrip/changes`, `undo`, `redo`, `restore` and `keep`. */

/** A file that the entity changed and the user has not kept. */
export interface ChangedFile {
  /** Relative to the folder of the session. It names the file in requests. */
  readonly path: string;
  readonly uri: string;
  readonly status: "added" | "deleted" | "modified";
  readonly added: number;
  readonly removed: number;
  /** Names the present content, so that a choice about another one is refused. */
  readonly version: string;
  /** Empty if the file can only be kept or undone as a whole. */
  readonly hunks: readonly ChangedHunk[];
  /** The number of lines that were left out of the hunks. */
  readonly left: number;
  /** It changed while a command ran: nobody knows whether the user or the command changed it. */
  readonly perhapsYours: boolean;
}

export interface ChangedHunk {
  /** Counts from 1. */
  readonly number: number;
  readonly oldStart: number;
  readonly newStart: number;
  /** Each line begins with a space, `+` or `-`. */
  readonly lines: readonly string[];
}

/** What a restore did, or would do. */
export interface RestoreResult {
  readonly restored: readonly { readonly path: string; readonly action: string }[];
  /** Files that the user changed too. They were left as they are. */
  readonly conflicts: readonly { readonly path: string; readonly reason: string }[];
  /** Files that cannot be restored. */
  readonly left: readonly { readonly path: string; readonly reason: string }[];
}

/** More lines than a person reads before a decision. */
const MOST_LINES = 2000;
const MOST_IN_LINE = 2000;
const MOST_NAMED = 12;

const STATUSES = ["added", "deleted", "modified"] as const;

/** Read the answer to `_cantrip/changes`. Lines beyond a limit are counted, not kept. */
export function changedFiles(value: unknown): ChangedFile[] {
  let room = MOST_LINES;
  return rows(value, "files").map((given) => {
    let left = 0;
    const hunks = rows(given, "hunks").flatMap((hunk): ChangedHunk[] => {
      const all = Array.isArray(hunk.lines) ? hunk.lines.filter((line): line is string => typeof line === "string") : [];
      const lines = all.slice(0, room).map((line) => line.slice(0, MOST_IN_LINE));
      room -= lines.length;
      left += all.length - lines.length;
      const [, before = "1", after = "1"] = /^@@ -(\d+)\S* \+(\d+)/.exec(text(hunk, "header")) ?? [];
      // A hunk without its lines cannot be decided about.
      return lines.length < all.length ? [] : [{ number: Number(hunk.number), oldStart: Number(before), newStart: Number(after), lines }];
    });
    return {
      path: text(given, "path"),
      uri: text(given, "uri"),
      status: STATUSES.find((each) => each === given.status) ?? "modified",
      added: Number(given.added) || 0,
      removed: Number(given.removed) || 0,
      version: text(given, "version"),
      hunks,
      left,
      perhapsYours: given.perhapsYours === true,
    };
  });
}

/** Read the answer to a restore. */
export function restoreResult(value: unknown): RestoreResult {
  const reasons = (name: string): { path: string; reason: string }[] => rows(value, name).map((each) => ({ path: text(each, "path"), reason: text(each, "reason") }));
  return {
    restored: rows(value, "restored").map((each) => ({ path: text(each, "path"), action: text(each, "action") })),
    conflicts: reasons("conflicts"),
    left: reasons("left"),
  };
}

/** Several results as one. */
export function joined(results: readonly RestoreResult[]): RestoreResult {
  return { restored: results.flatMap((each) => each.restored), conflicts: results.flatMap((each) => each.conflicts), left: results.flatMap((each) => each.left) };
}

/** What a restore would do, for the dialog before it. */
export function plannedWords(plan: RestoreResult): string {
  const words = [
    list(`${count(plan.restored.length, "file")} will be restored:`, plan.restored.map(({ path, action }) => path + actionWords(action))),
    list("You changed these too, or perhaps did, so you are asked about them next:", plan.conflicts.map(named)),
    list("These cannot be restored:", plan.left.map(named)),
    plan.restored.length > 0 || plan.conflicts.length > 0 ? "What you changed yourself is kept or merged. The present files are kept too: Redo brings them back." : "",
  ];
  return words.filter(Boolean).join("\n\n");
}

const PERHAPS = "perhaps by you";

/** The question about files that the user changed too, or perhaps changed, as a title and a text. */
export function conflictWords({ restored, conflicts }: RestoreResult): readonly [title: string, text: string] {
  if (conflicts.every((each) => each.reason.includes(PERHAPS))) {
    const what = conflicts.length === 1 ? (conflicts[0]?.path ?? "") : count(conflicts.length, "file");
    return [`Restore ${what} too?`, `${list("Nobody knows whether a command of Cantrip changed these, or you, while it ran:", conflicts.map(({ path }) => path))}\n\nOverwrite: the earlier version comes back, and Redo brings the present one back. Keep Mine: they stay as they are.`];
  }
  const title = `Overwrite what you changed in ${conflicts.length === 1 ? (conflicts[0]?.path ?? "") : count(conflicts.length, "file")}?`;
  const others = restored.length > 0 ? ` ${count(restored.length, "other file")} ${restored.length === 1 ? "is" : "are"} restored either way, except if you cancel.` : "";
  return [title, `${list("You changed the same lines as Cantrip, or a file that it added or deleted:", conflicts.map(named))}\n\nOverwrite: your version is kept, and Redo brings it back. Keep Mine: it stays as it is.${others}`];
}

/** What a restore did, as a title and a text. */
export function doneWords(result: RestoreResult): readonly [title: string, text: string] {
  const title = result.restored.length > 0 ? `${count(result.restored.length, "file")} restored` : result.conflicts.length > 0 ? "No file was restored" : "The files are already like that";
  const words = [
    result.restored.map(({ path, action }) => path + actionWords(action)).slice(0, MOST_NAMED).join(", ") + (result.restored.length > MOST_NAMED ? ", …" : ""),
    list("Left as they are, because you changed them too, or perhaps did:", result.conflicts.map(named)),
    list("Not restored:", result.left.map(named)),
  ];
  return [title, words.filter(Boolean).join("\n")];
}

function actionWords(action: string): string {
  return { deleted: " (deleted)", merged: " (merged with your changes)" }[action] ?? "";
}

function named(each: { readonly path: string; readonly reason: string }): string {
  return each.reason ? `${each.path}: ${each.reason}` : each.path;
}

function list(title: string, names: readonly string[]): string {
  if (names.length === 0) return "";
  const more = names.length > MOST_NAMED ? [`… and ${names.length - MOST_NAMED} more`] : [];
  return [title, ...names.slice(0, MOST_NAMED).map((name) => `• ${name}`), ...more].join("\n");
}

function count(number: number, what: string): string {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}

function rows(value: unknown, name: string): Record<string, unknown>[] {
  const found = (value as Record<string, unknown> | null | undefined)?.[name];
  return Array.isArray(found) ? found.filter((each): each is Record<string, unknown> => each !== null && typeof each === "object") : [];
}

function text(value: Record<string, unknown>, name: string): string {
  const found = value[name];
  return typeof found === "string" ? found : "";
}
