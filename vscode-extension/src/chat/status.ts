import * as vscode from "vscode";
import type { ChatService } from "./service";

/** The command that shows the conversation in which the agent asks. */
export const SHOW_QUESTION = "cantrip.chat.showQuestion";

/** The status bar item while the agent works or waits for the user. */
export class Status implements vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem("cantrip.chat.status", vscode.StatusBarAlignment.Left, 10);
  private readonly parts: { dispose(): void }[];

  constructor(private readonly service: ChatService) {
    this.item.name = "Cantrip Chat";
    const show = (): void => { this.show(); };
    this.parts = [service.busyChanged.on(show), service.permissions.asked.on(show), service.permissions.settled.on(show), service.forms.asked.on(show), service.forms.settled.on(show)];
  }

  dispose(): void {
    for (const part of this.parts) part.dispose();
    this.item.dispose();
  }

  private show(): void {
    const busy = this.service.busy;
    const waiting = this.service.waiting.length;
    void vscode.commands.executeCommand("setContext", "cantrip.chat.busy", busy.length > 0);
    if (busy.length === 0) {
      this.item.hide();
      return;
    }
    this.item.text = waiting > 0 ? "$(bell-dot) Cantrip asks" : "$(loading~spin) Cantrip is working";
    this.item.command = waiting > 0 ? SHOW_QUESTION : "cantrip.chat.focus";
    this.item.tooltip = waiting > 0 ? "Cantrip waits for your answer. Click to see the question." : "Cantrip is working. Click to see the conversation.";
    this.item.backgroundColor = waiting > 0 ? new vscode.ThemeColor("statusBarItem.warningBackground") : undefined;
    this.item.show();
  }
}
