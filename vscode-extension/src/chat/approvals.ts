import type * as acp from "@agentclientprotocol/sdk/unstable";
import * as vscode from "vscode";
import type { Diffs } from "./diffs";
import type { Permissions } from "./permissions";

/** Sets the context key for diff resources with an open question, which shows the buttons of the diff editor. */
const ASKED = "cantrip.chat.askedChanges";

/** Permission questions in the diff editor: its title has Allow and Reject while the question is open. */
export class Approvals implements vscode.Disposable {
  /** Open questions by the resource of the diff editor. */
  private readonly asked = new Map<string, string>();
  private readonly parts: { dispose(): void }[];

  constructor(
    private readonly permissions: Permissions,
    private readonly diffs: Diffs,
  ) {
    this.parts = [
      permissions.settled.on(({ pending }) => {
        for (const [resource, question] of this.asked) if (question === pending.id) this.asked.delete(resource);
        this.tell();
      }),
      vscode.commands.registerCommand("cantrip.chat.allowChange", (uri?: unknown) => { this.answer(uri, "allow_once"); }),
      vscode.commands.registerCommand("cantrip.chat.rejectChange", (uri?: unknown) => { this.answer(uri, "reject_once"); }),
    ];
  }

  /** Show a change, with its question if one is open. */
  async show(diff: acp.Diff, question?: string): Promise<void> {
    await this.diffs.open(diff.path, diff.oldText ?? null, diff.newText, (resource) => {
      if (question === undefined || !this.permissions.hasPending(question)) return;
      this.asked.set(resource.toString(), question);
      this.tell();
    });
  }

  /** Show the output of a command in an editor. */
  showOutput(title: string, text: string): Promise<void> {
    return this.diffs.openOutput(title, text);
  }

  dispose(): void {
    for (const part of this.parts) part.dispose();
  }

  private answer(uri: unknown, kind: acp.PermissionOptionKind): void {
    const input = vscode.window.tabGroups.activeTabGroup.activeTab?.input;
    const resource = uri instanceof vscode.Uri ? uri : input instanceof vscode.TabInputTextDiff ? input.modified : undefined;
    const question = this.asked.get(resource?.toString() ?? "");
    if (question !== undefined && this.permissions.answerKind(question, kind)) return;
    void vscode.window.showInformationMessage("There is no question open for this change. Open the change from the question in the Cantrip chat.");
  }

  private tell(): void {
    void vscode.commands.executeCommand("setContext", ASKED, [...this.asked.keys()]);
  }
}
