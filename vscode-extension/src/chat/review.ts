import { type ChangedFile, joined, type RestoreResult } from "../acp/changes";
import type { FileChoice, Session } from "../acp/session";
import { Signal } from "../acp/signal";

const PAUSE_MS = 400;

/** The files of a conversation that the agent changed and the user has not kept. The agent decides nothing: it is asked again after each change. */
export class Review {
  readonly changed = new Signal<void>();
  files: readonly ChangedFile[] = [];
  /** The session whose last restore can be taken back. */
  private undone: Session | undefined;
  private timer: NodeJS.Timeout | undefined;
  private asked = 0;

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

  async refresh(): Promise<void> {
    this.asked += 1;
    const { asked } = this;
    // A session without checkpoints, or an agent that ended, has no changes to show.
    const files = (await this.session()?.changedFiles().catch(() => undefined)) ?? [];
    if (asked !== this.asked) return;
    this.files = files;
    this.changed.fire();
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

  /** Undo a file or a hunk, or everything that was not kept if no file is named. */
  async undo(choice: FileChoice, force = false): Promise<RestoreResult> {
    return this.restored(this.session(), (session) => session.restoreFiles("undo", { ...choice, ...(choice.path === undefined ? { since: "start" } : {}), force }));
  }

  /** Restore the files as they were after a turn. With `dryRun` only says what that would do. */
  async restore(turn: string | 0, how: { readonly force?: boolean; readonly dryRun?: boolean }): Promise<RestoreResult> {
    const session = this.session();
    if (how.dryRun === true) return (await session?.restoreFiles("restore", { turn, dryRun: true })) ?? joined([]);
    return this.restored(session, (each) => each.restoreFiles("restore", { turn, ...how }));
  }

  async redo(): Promise<RestoreResult> {
    const { undone } = this;
    try {
      return await this.restored(undone, (session) => session.restoreFiles("redo"));
    } finally {
      this.setUndone(undefined);
    }
  }

  /** What was restored in another conversation can be taken back in this one, which continues it. */
  continues(other: Review): void {
    this.setUndone(other.undone);
  }

  dispose(): void {
    clearTimeout(this.timer);
  }

  private async restored(session: Session | undefined, run: (session: Session) => Promise<RestoreResult>): Promise<RestoreResult> {
    if (session === undefined) return joined([]);
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
