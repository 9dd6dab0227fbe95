import { type ChangedFile, joined, type RestoreResult } from "../acp/changes";
import type { FileChoice, Session } from "../acp/session";
import { fileURLToPath } from "node:url";
import { Signal } from "../acp/signal";

const PAUSE_MS = 400;

/** `force`: also files that the user changed too. `dryRun`: only say what would be done. */
export interface RestoreOptions {
  readonly force?: boolean;
  readonly dryRun?: boolean;
}

/** The files of a conversation that the agent changed and the user has not kept. The agent decides nothing: it is asked again after each change. */
export class Review {
  readonly changed = new Signal<void>();
  /** The paths of files that are not as they were when the changes were read before. */
  readonly written = new Signal<readonly string[]>();
  files: readonly ChangedFile[] = [];
  /** The session whose last restore can be taken back. */
  private undone: Session | undefined;
  private timer: NodeJS.Timeout | undefined;
  private latest: Promise<void> | undefined;

  constructor(private readonly session: () => Session | undefined) {}

  /** Whether the last restore can be taken back. */
  get canRedo(): boolean {
    return this.undone !== undefined;
  }

  /** Read the changes soon. Several calls of the agent are read once. */
  refreshSoon(): void {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      void this.refresh();
    }, PAUSE_MS);
  }

  /** A file was saved in the editor. If it is listed, its list entry is outdated. */
  saved(path: string): void {
    if (this.files.some((file) => fileURLToPath(file.uri) === path)) this.refreshSoon();
  }

  /** Read the changes. One that a later one overtakes ends with it, so that whoever waited for it sees the list. */
  refresh(): Promise<void> {
    // A session without checkpoints, or an agent that ended, has no changes to show.
    const found = this.session()?.changedFiles().catch(() => undefined) ?? Promise.resolve(undefined);
    const own: Promise<void> = found.then((files) => {
      if (this.latest !== own) return this.latest;
      this.take(files ?? []);
      return undefined;
    });
    this.latest = own;
    return own;
  }

  private take(files: readonly ChangedFile[]): void {
    const versions = new Map(this.files.map((file) => [file.uri, file.version]));
    for (const { uri, version } of files) if (versions.get(uri) === version) versions.delete(uri);
    else versions.set(uri, version);
    this.files = files;
    this.changed.fire();
    if (versions.size > 0) this.written.fire([...versions.keys()].map((uri) => fileURLToPath(uri)));
  }

  /** The agent continues, so an earlier restore cannot be taken back any more. */
  continued(): void {
    this.setUndone(undefined);
  }

  async keep(choice: FileChoice): Promise<void> {
    try {
      await this.session()?.keepChanges(choice);
    } finally {
      await this.refresh();
    }
  }

  /** Undo a file or a hunk (there is no dry run of that), or everything that was not kept if no file is named. */
  async undo(choice: FileChoice, how: RestoreOptions = {}): Promise<RestoreResult> {
    return this.restored(this.session(), how, (session) => session.restoreFiles("undo", { ...choice, ...(choice.path === undefined ? { since: "start" } : {}), ...how }));
  }

  /** Restore the files as they were after a turn. */
  async restore(turn: string | 0, how: RestoreOptions): Promise<RestoreResult> {
    return this.restored(this.session(), how, (session) => session.restoreFiles("restore", { turn, ...how }));
  }

  /** Take the last restore back. It can be taken back later if everything of it was left as it is. */
  async redo(how: RestoreOptions = {}): Promise<RestoreResult> {
    const { undone } = this;
    try {
      const result = await this.restored(undone, how, (session) => session.restoreFiles("redo", how));
      if (how.dryRun !== true && (result.restored.length > 0 || result.conflicts.length === 0)) this.setUndone(undefined);
      return result;
    } catch (problem) {
      this.setUndone(undefined);
      throw problem;
    }
  }

  /** What was restored in another conversation can be taken back in this one, which continues it. */
  continues(other: Review): void {
    this.setUndone(other.undone);
  }

  dispose(): void {
    clearTimeout(this.timer);
  }

  private async restored(session: Session | undefined, how: RestoreOptions, run: (session: Session) => Promise<RestoreResult>): Promise<RestoreResult> {
    if (session === undefined) return joined([]);
    if (how.dryRun === true) return run(session);
    try {
      const result = await run(session);
      if (result.restored.length > 0) this.setUndone(session);
      return result;
    } finally {
      await this.refresh();
    }
  }

  private setUndone(session: Session | undefined): void {
    if (this.undone === session) return;
    this.undone = session;
    this.changed.fire();
  }
}
