/** Casts from the editor: asks for the recipe and the intent, and shows the result. The server runs the cast. */
import * as vscode from "vscode";
import type { Environment } from "./environment/environment";
import { failure, type Server } from "./server/server";
import type { LoomCommands } from "./loom/commands";
import { outcomeSummary, withTrust, type Outcome } from "./outcome";

interface CastTarget {
  readonly uri: string;
  readonly intent?: string;
  readonly loom?: string;
}

const MEMORY = "cantrip.intents";
const REMEMBERED = 20;

export class CastCommand implements vscode.Disposable {
  private readonly parts: vscode.Disposable[] = [];

  constructor(
    private readonly environment: Environment,
    private readonly server: Server,
    private readonly looms: LoomCommands,
  ) {
    server.askedBy((command, args) => this.run(command, args));
    this.parts.push(
      vscode.commands.registerCommand("cantrip.castHere", (uri?: vscode.Uri) => this.here("cantrip.cast", uri)),
      vscode.commands.registerCommand("cantrip.castHereWith", (uri?: vscode.Uri) => this.here("cantrip.castWith", uri)),
      vscode.commands.registerCommand("cantrip.trustFolder", (uri?: vscode.Uri) => this.here("cantrip.trust", uri)),
    );
  }

  /** Run a server command from a code lens or the command palette. Shows its own errors. */
  async run(command: string, args: unknown[]): Promise<unknown> {
    try {
      const about = (args[0] ?? {}) as CastTarget;
      switch (command) {
        case "cantrip.cast":
        case "cantrip.castWith":
          return await this.cast(command, about);
        case "cantrip.trust":
          return await this.trust(about);
        case "cantrip.openLoom":
          return await this.openLoom(about);
        default:
          if (command.startsWith("cantrip.loom.")) return await this.looms.run(command, args);
          return await this.server.execute(command, args);
      }
    } catch (error) {
      await this.showMessage(error);
      return undefined;
    }
  }

  private async here(command: string, uri: vscode.Uri | undefined): Promise<void> {
    const meant = uri ?? vscode.window.activeTextEditor?.document.uri;
    if (meant === undefined || !/\.cantrip\.ya?ml$/.test(meant.path)) {
      void vscode.window.showInformationMessage("Open a recipe (NAME.cantrip.yaml) and try again.");
      return;
    }
    if (!(await this.ready())) return;
    await this.run(command, [{ uri: meant.toString() }]);
  }

  private async ready(): Promise<boolean> {
    if (this.server.running) return true;
    if ((await this.environment.need()) === undefined) return false;
    await this.server.start();
    return this.server.running;
  }

  private async cast(command: string, about: CastTarget): Promise<Outcome | undefined> {
    if (!vscode.workspace.isTrusted) {
      const manage = "Manage Workspace Trust";
      const chosen = await vscode.window.showWarningMessage("Recipes do not run in a workspace that you do not trust.", manage);
      if (chosen === manage) await vscode.commands.executeCommand("workbench.trust.manage");
      return undefined;
    }
    let given = about;
    if (command === "cantrip.castWith" && about.intent === undefined) {
      const intent = await this.ask(about.uri);
      if (intent === undefined) return undefined;
      given = { ...about, intent };
    }
    const name = vscode.Uri.parse(about.uri).path.split("/").at(-1)?.replace(/\.cantrip\.\w+$/, "") ?? "recipe";
    let outcome: Outcome | undefined;
    try {
      outcome = await withTrust(this.server, "Cast", () => this.server.execute<Outcome>("cantrip.cast", [given], `Casting ${name}`));
    } catch (error) {
      if (failure(error).error === "IntentRequired" && given.intent === undefined) return this.cast("cantrip.castWith", about);
      throw error;
    }
    if (outcome === undefined) return undefined;
    if (given.intent !== undefined) await this.remember(about.uri, given.intent);
    if (outcome.loom !== null) await this.looms.used(vscode.Uri.file(outcome.loom).fsPath, vscode.Uri.parse(about.uri).fsPath);
    void this.tell(name, outcome);
    return outcome;
  }

  /** Ask for the intent: an earlier one, or a new text. */
  private async ask(uri: string): Promise<string | undefined> {
    const before = this.remembered()[uri] ?? [];
    const pick = vscode.window.createQuickPick();
    pick.title = "Run with…";
    pick.placeholder = "What should be done? For example: Say hello.";
    pick.ignoreFocusOut = true;
    const items = before.map((label) => ({ label, iconPath: new vscode.ThemeIcon("history") }));
    pick.items = items;
    return new Promise((resolve) => {
      pick.onDidChangeValue((value) => {
        // The typed text comes first, so that Enter casts it.
        pick.items = value.trim() === "" ? items : [{ label: value, alwaysShow: true }, ...items.filter((item) => item.label !== value)];
      });
      pick.onDidAccept(() => {
        const intent = (pick.selectedItems[0]?.label ?? pick.value).trim();
        if (intent === "") return;
        resolve(intent);
        pick.hide();
      });
      pick.onDidHide(() => {
        resolve(undefined);
        pick.dispose();
      });
      pick.show();
    });
  }

  private remembered(): Record<string, string[]> {
    return this.environment.context.workspaceState.get<Record<string, string[]>>(MEMORY, {});
  }

  private async remember(uri: string, intent: string): Promise<void> {
    const all = this.remembered();
    const mine = [intent, ...(all[uri] ?? []).filter((each) => each !== intent)].slice(0, REMEMBERED);
    await this.environment.context.workspaceState.update(MEMORY, { ...all, [uri]: mine });
  }

  private async tell(name: string, outcome: Outcome): Promise<void> {
    const message = outcomeSummary(name, outcome);
    this.environment.output.info(message);
    const actions = outcome.loom === null ? [] : ["Open Record"];
    const show = outcome.terminated ? vscode.window.showInformationMessage : vscode.window.showWarningMessage;
    const chosen = await show(message, ...actions);
    if (chosen !== undefined && outcome.loom !== null) await this.looms.view(vscode.Uri.file(outcome.loom));
  }

  private async trust(about: CastTarget): Promise<unknown> {
    const name = vscode.Uri.parse(about.uri).path.split("/").at(-1) ?? "this recipe";
    const chosen = await vscode.window.showWarningMessage(
      `Trust ${name}? A recipe that came with a workspace may then use keys, the network and files as it asks to, until it changes. Read it first.`,
      { modal: true },
      "Trust",
    );
    if (chosen === undefined) return undefined;
    const said = await this.server.execute<unknown>("cantrip.trust", [about]);
    void vscode.window.showInformationMessage(`${name} is trusted as it is now.`);
    return said;
  }

  private async openLoom(about: CastTarget): Promise<unknown> {
    if (about.loom !== undefined) {
      const uri = about.loom.startsWith("file:") ? vscode.Uri.parse(about.loom) : vscode.Uri.file(about.loom);
      return this.looms.view(uri);
    }
    return this.server.execute("cantrip.openLoom", [about]);
  }

  private async showMessage(error: unknown): Promise<void> {
    const why = failure(error);
    if (why.error === "Cancelled") return;
    this.environment.output.error(why.message);
    const chosen = await vscode.window.showErrorMessage(why.message, "Show Output");
    if (chosen !== undefined) this.environment.output.show(true);
  }

  dispose(): void {
    for (const part of this.parts) part.dispose();
  }
}
