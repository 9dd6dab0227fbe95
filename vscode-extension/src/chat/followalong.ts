import type * as acp from "@agentclientprotocol/sdk/unstable";
import * as vscode from "vscode";
import { reveal } from "./links";

const PAUSE_MS = 250;

/** Shows the files that the agent works on, if the user wants that. The focus does not change. */
export class FollowAlong implements vscode.Disposable {
  private next: { path: string; line: number | undefined } | undefined;
  private timer: NodeJS.Timeout | undefined;
  private last = "";

  onUpdate(update: acp.SessionUpdate): void {
    if (update.sessionUpdate !== "tool_call" && update.sessionUpdate !== "tool_call_update") return;
    const at = update.locations?.[0];
    if (at === undefined || !vscode.workspace.getConfiguration("cantrip").get<boolean>("chat.followAlong", false)) return;
    this.next = { path: at.path, line: at.line ?? undefined };
    if (this.timer !== undefined) return;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      const { next } = this;
      const key = `${next?.path ?? ""}:${next?.line ?? ""}`;
      if (next === undefined || key === this.last) return;
      this.last = key;
      void reveal(next.path, next.line, true);
    }, PAUSE_MS);
  }

  dispose(): void {
    clearTimeout(this.timer);
  }
}
