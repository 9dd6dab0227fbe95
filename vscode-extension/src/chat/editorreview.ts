/** The review in the editor: the lines that the agent changed are marked in the text, each change with Keep and Undo. */
import { createHash } from "node:crypto";
import * as vscode from "vscode";
import type { ChangedFile } from "../acp/changes";
import { words } from "../acp/errors";
import type { FileChoice } from "../acp/session";
import { beyond, type HunkMark, mapped, marksOf, moved } from "./hunkmarks";
import type { Review } from "./review";

/** The context key with the resources that have changes to review. */
const FILES = "cantrip.review.files";
const MOST_SHOWN = 40;

/** A changed file of a conversation, and where its hunks are in the open text. */
interface Reviewed {
  readonly review: Review;
  readonly file: ChangedFile;
  marks: HunkMark[];
}

/** The hunk that a lens is about. */
interface Named {
  readonly key: string;
  readonly path: string;
  readonly hunk: number;
  readonly lines: string;
}

type Direction = "next" | "previous";

/** What the panel does for the review in the text, as for the list above the input. */
interface ReviewActions {
  readonly openDiff: (review: Review, path: string) => Promise<void>;
  /** Undo a choice; ask about what the user changed too, and say in the conversation what was left. */
  readonly undo: (review: Review, choice: FileChoice) => Promise<void>;
}

/**
 * Shows `Review.files` in the text editors. All that it knows comes from there, so a change that is kept or undone anywhere
 * vanishes here too. While the user types, only the marks of that text move.
 */
export class EditorReview implements vscode.CodeLensProvider, vscode.Disposable {
  private readonly lensesChanged = new vscode.EventEmitter<void>();
  readonly onDidChangeCodeLenses = this.lensesChanged.event;
  private files = new Map<string, Reviewed[]>();
  private readonly added = vscode.window.createTextEditorDecorationType({
    isWholeLine: true,
    backgroundColor: new vscode.ThemeColor("diffEditor.insertedLineBackground"),
    borderWidth: "0 0 0 3px",
    borderStyle: "solid",
    borderColor: new vscode.ThemeColor("editorGutter.addedBackground"),
    overviewRulerColor: new vscode.ThemeColor("editorOverviewRuler.addedForeground"),
    overviewRulerLane: vscode.OverviewRulerLane.Left,
  });
  private readonly removed = vscode.window.createTextEditorDecorationType({
    isWholeLine: true,
    borderWidth: "2px 0 0 0",
    borderStyle: "dashed",
    borderColor: new vscode.ThemeColor("editorGutter.deletedBackground"),
    overviewRulerColor: new vscode.ThemeColor("editorOverviewRuler.deletedForeground"),
    overviewRulerLane: vscode.OverviewRulerLane.Left,
  });
  private readonly parts: vscode.Disposable[];
  private asked = 0;

  constructor(
    private readonly reviews: () => readonly Review[],
    private readonly actions: ReviewActions,
  ) {
    this.parts = [
      vscode.languages.registerCodeLensProvider({ scheme: "file" }, this),
      vscode.window.onDidChangeVisibleTextEditors(() => { this.decorate(); }),
      vscode.workspace.onDidChangeTextDocument((event) => { this.follow(event); }),
      vscode.workspace.onDidOpenTextDocument((document) => { if (this.files.has(document.uri.toString())) void this.refresh(); }),
      this.command("keepHunk", (given) => this.keep(given, true)),
      this.command("undoHunk", (given) => this.undo(given, true)),
      this.command("keepFile", () => this.keep(undefined, false)),
      this.command("undoFile", () => this.undo(undefined, false)),
      this.command("showHunk", async (given) => {
        const found = this.chosen(given);
        if (found !== undefined) await this.actions.openDiff(found.reviewed.review, found.reviewed.file.path);
      }),
      this.command("next", () => this.go("next")),
      this.command("previous", () => this.go("previous")),
      this.lensesChanged,
      this.added,
      this.removed,
    ];
  }

  /** The changes of a conversation, or the conversations, are other ones. */
  async refresh(): Promise<void> {
    this.asked += 1;
    const { asked } = this;
    const files = new Map<string, Reviewed[]>();
    for (const review of new Set(this.reviews())) {
      for (const file of review.files) {
        const key = vscode.Uri.parse(file.uri).toString();
        files.set(key, [...(files.get(key) ?? []), { review, file, marks: marksOf(file.hunks) }]);
      }
    }
    for (const document of vscode.workspace.textDocuments) {
      const found = files.get(document.uri.toString());
      if (found === undefined || !document.isDirty) continue;
      // The agent compares what is on the disk.
      const disk = await vscode.workspace.fs.readFile(document.uri).then((data) => new TextDecoder().decode(data), () => undefined);
      if (disk === undefined) continue;
      const [from, to] = [lines(disk), lines(document.getText())];
      for (const each of found) each.marks = mapped(each.marks, from, to);
    }
    if (asked !== this.asked) return;
    this.files = files;
    const paths = [...files.keys()].map((key) => vscode.Uri.parse(key).path);
    // An empty list would count as true in the condition of a key.
    void vscode.commands.executeCommand("setContext", FILES, paths.length > 0 ? paths : undefined);
    this.decorate();
    this.lensesChanged.fire();
  }

  provideCodeLenses(document: vscode.TextDocument): vscode.CodeLens[] {
    return (this.files.get(document.uri.toString()) ?? []).flatMap((reviewed) =>
      reviewed.marks.flatMap((mark) => {
        const [first] = mark.runs;
        if (first === undefined) return [];
        const range = lineRange(document, first.line);
        const given: Named = { key: document.uri.toString(), path: reviewed.file.path, hunk: mark.number, lines: changedLines(reviewed.file, mark.number) };
        const gone = mark.runs.reduce((sum, run) => sum + run.removed.length, 0);
        const made = mark.runs.reduce((sum, run) => sum + run.count, 0);
        const lens = (title: string, name: string, tooltip: string): vscode.CodeLens => new vscode.CodeLens(range, { title, tooltip, command: `cantrip.review.${name}`, arguments: [given] });
        return [
          lens("$(check) Keep", "keepHunk", "Keep this change of Cantrip"),
          lens("$(discard) Undo", "undoHunk", "Undo this change of Cantrip"),
          lens(`+${made} −${gone}`, "showHunk", "Show the change in the diff editor"),
        ];
      }),
    );
  }

  dispose(): void {
    for (const part of this.parts) part.dispose();
  }

  private command(name: string, work: (given: unknown) => Promise<void>): vscode.Disposable {
    return vscode.commands.registerCommand(`cantrip.review.${name}`, async (given: unknown) => {
      try {
        await work(given);
      } catch (problem) {
        void vscode.window.showErrorMessage(`Cantrip: ${words(problem)}`);
      }
    });
  }

  /** Move the marks of a text that is edited. */
  private follow({ document, contentChanges }: vscode.TextDocumentChangeEvent): void {
    const found = this.files.get(document.uri.toString());
    if (found === undefined || contentChanges.length === 0) return;
    for (const { range, text } of contentChanges) {
      const edit = { first: range.start.line, last: range.end.line, count: lines(text).length, atStart: range.isEmpty && range.start.character === 0 && text.endsWith("\n") };
      for (const each of found) each.marks = moved(each.marks, edit);
    }
    this.lensesChanged.fire();
    this.decorate();
  }

  private decorate(): void {
    for (const editor of vscode.window.visibleTextEditors) {
      const { document } = editor;
      const runs = (this.files.get(document.uri.toString()) ?? []).flatMap(({ marks }) => marks.flatMap((mark) => mark.runs));
      editor.setDecorations(this.added, runs.filter((run) => run.count > 0).map((run) => ({ range: new vscode.Range(lineRange(document, run.line).start, lineRange(document, run.line + run.count - 1).end), hoverMessage: removedText(run.removed, document.languageId) })));
      editor.setDecorations(this.removed, runs.filter((run) => run.removed.length > 0).map((run) => ({ range: lineRange(document, run.line), ...(run.count > 0 ? {} : { hoverMessage: removedText(run.removed, document.languageId) }) })));
    }
  }

  /** What a lens names, or the change at the cursor. */
  private chosen(given: unknown): { reviewed: Reviewed; hunk: number; version: string } | undefined {
    const named = given as Partial<Named> | undefined;
    if (named?.key !== undefined && named.hunk !== undefined) {
      const { key, hunk, lines } = named;
      for (const reviewed of this.files.get(key) ?? []) {
        if (reviewed.file.path !== named.path) continue;
        // The editor draws its lenses later than the changes are known, and other hunks may have gone meanwhile.
        const same = reviewed.file.hunks.filter(({ number }) => changedLines(reviewed.file, number) === lines);
        const found = same.find(({ number }) => number === hunk) ?? (same.length === 1 ? same[0] : undefined);
        if (found !== undefined) return { reviewed, hunk: found.number, version: reviewed.file.version };
      }
      return undefined;
    }
    const editor = vscode.window.activeTextEditor;
    const line = editor?.selection.active.line ?? 0;
    for (const reviewed of this.files.get(editor?.document.uri.toString() ?? "") ?? []) {
      const mark = reviewed.marks.find(({ runs }) => runs.some((run) => line >= run.line && line < run.line + Math.max(1, run.count)));
      if (mark !== undefined) return { reviewed, hunk: mark.number, version: reviewed.file.version };
    }
    return undefined;
  }

  /** Do something with one hunk, or with the whole file in the active editor (for each conversation that changed it). */
  private async each(given: unknown, hunk: boolean, work: (review: Review, choice: FileChoice) => Promise<void>): Promise<void> {
    if (!hunk) {
      for (const [at, { review, file }] of [...(this.files.get(vscode.window.activeTextEditor?.document.uri.toString() ?? "") ?? [])].entries()) {
        // For the next conversation, the file is another one now.
        if (at > 0) await review.refresh();
        const now = at > 0 ? review.files.find(({ path }) => path === file.path) : file;
        if (now !== undefined) await work(review, { path: now.path, version: now.version });
      }
      return;
    }
    // The file may have been written since it was read: by another conversation, or a moment ago.
    await this.chosen(given)?.reviewed.review.refresh();
    await this.refresh();
    const found = this.chosen(given);
    if (found === undefined) {
      void vscode.window.showInformationMessage(given === undefined ? "There is no change of Cantrip at the cursor. “Next Change” goes to one." : "This change of Cantrip is not there any more.");
      return;
    }
    await work(found.reviewed.review, { path: found.reviewed.file.path, hunk: found.hunk, version: found.version });
  }

  private keep(given: unknown, hunk: boolean): Promise<void> {
    return this.each(given, hunk, (review, choice) => review.keep(choice));
  }

  private undo(given: unknown, hunk: boolean): Promise<void> {
    return this.each(given, hunk, (review, choice) => this.actions.undo(review, choice));
  }

  /** Go to the next or previous change, over all changed files in the order of the list. */
  private async go(direction: Direction): Promise<void> {
    const forward = direction === "next";
    const marked = [...this.files].filter(([, all]) => all.some(({ marks }) => marks.some(({ runs }) => runs.length > 0)));
    // A file that the agent or the user deleted has no text to go to.
    const there = await Promise.all(marked.map(([key]) => vscode.workspace.fs.stat(vscode.Uri.parse(key)).then(() => true, () => false)));
    const files = marked.filter((_, at) => there[at]);
    if (files.length === 0) {
      void vscode.window.showInformationMessage("There is no change of Cantrip to look at.");
      return;
    }
    const editor = vscode.window.activeTextEditor;
    const here = files.findIndex(([key]) => key === editor?.document.uri.toString());
    const line = here < 0 ? undefined : beyond(places(files[here]?.[1] ?? []), editor?.selection.active.line ?? 0, forward);
    if (line !== undefined && editor !== undefined) {
      reveal(editor, line);
      return;
    }
    const start = here < 0 ? (forward ? -1 : 0) : here;
    const [key, all] = files[(start + (forward ? 1 : -1) + files.length) % files.length] ?? files[0] ?? ["", []];
    const shown = await vscode.window.showTextDocument(vscode.Uri.parse(key), { preview: true });
    const own = places(this.files.get(key) ?? all);
    reveal(shown, (forward ? own[0] : own.at(-1)) ?? 0);
  }
}

/** What a hunk removes and adds, as a short text. */
function changedLines({ hunks }: ChangedFile, number: number): string {
  const lines = hunks.find((each) => each.number === number)?.lines.filter((line) => !line.startsWith(" ")) ?? [];
  return createHash("sha256").update(lines.join("\n")).digest("base64");
}

function places(all: readonly Reviewed[]): number[] {
  return [...new Set(all.flatMap(({ marks }) => marks.flatMap(({ runs }) => runs.map((run) => run.line))))].sort((a, b) => a - b);
}

function reveal(editor: vscode.TextEditor, line: number): void {
  const { start } = lineRange(editor.document, line);
  editor.selection = new vscode.Selection(start, start);
  editor.revealRange(new vscode.Range(start, start), vscode.TextEditorRevealType.InCenterIfOutsideViewport);
}

/** The range of a line; the last line if the text has become shorter. */
function lineRange(document: vscode.TextDocument, line: number): vscode.Range {
  return document.lineAt(Math.max(0, Math.min(line, document.lineCount - 1))).range;
}

function removedText(removed: readonly string[], language: string): vscode.MarkdownString | undefined {
  if (removed.length === 0) return undefined;
  const more = removed.length > MOST_SHOWN ? `\n… ${removed.length - MOST_SHOWN} more lines` : "";
  return new vscode.MarkdownString("Before Cantrip's change:").appendCodeblock(removed.slice(0, MOST_SHOWN).join("\n") + more, language);
}

function lines(text: string): string[] {
  return text.replace(/^\uFEFF/, "").split(/\r\n|\r|\n/);
}
