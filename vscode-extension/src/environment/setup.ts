/** The guided setup if no Cantrip was found: a message with actions, and the actions themselves. */
import * as vscode from "vscode";
import { isFound, type Environment } from "./environment";
import { install } from "./install";
import type { RejectedProgram } from "./program";
import { which } from "./search";

const INSTALL = "Set Up";
const UPDATE = "Update";
const CHOOSE = "Choose a Python…";
const UVX = "Use uvx";
const GUIDE = "Show the Guide";
const OUTPUT = "Show Output";

export class Setup implements vscode.Disposable {
  private readonly parts: vscode.Disposable[] = [];
  private open: Promise<boolean> | undefined;

  constructor(private readonly environment: Environment) {
    environment.setGuide((refused) => this.guide(refused));
    this.parts.push(
      vscode.commands.registerCommand("cantrip.setup", () => this.command()),
      vscode.commands.registerCommand("cantrip.guide", () => showGuide(environment.context)),
    );
  }

  /** Ask the user what to do, with one message at a time. True if an action may have solved the problem. */
  guide(refused: readonly RejectedProgram[]): Promise<boolean> {
    this.open ??= this.ask(refused).finally(() => {
      this.open = undefined;
    });
    return this.open;
  }

  private async command(): Promise<void> {
    this.environment.invalidate("asked for");
    const asked = await this.environment.find();
    if (!isFound(asked)) {
      await this.guide(asked);
      return;
    }
    const chosen = await vscode.window.showInformationMessage(
      `Cantrip ${asked.version} is ready (${asked.origin}).`,
      CHOOSE,
      GUIDE,
    );
    if (chosen !== undefined) await this.act(chosen);
  }

  private async ask(refused: readonly RejectedProgram[]): Promise<boolean> {
    if (!vscode.workspace.isTrusted) {
      const manage = "Manage Workspace Trust";
      const chosen = await vscode.window.showInformationMessage(
        "Cantrip is not installed outside this workspace, and a workspace that is not trusted chooses no program. Recipes are highlighted, and not checked.",
        manage,
        GUIDE,
      );
      if (chosen === manage) await vscode.commands.executeCommand("workbench.trust.manage");
      else if (chosen !== undefined) await this.act(chosen);
      return false;
    }
    const [first] = refused;
    const old = refused.find((each) => each.old === true);
    const why = old?.why ?? first?.why;
    const actions = [
      old === undefined ? INSTALL : UPDATE,
      CHOOSE,
      ...(uvxIsThere(this.environment) ? [UVX] : []),
      GUIDE,
    ];
    if (first !== undefined) actions.push(OUTPUT);
    const chosen = await vscode.window.showWarningMessage(
      why === undefined
        ? "Cantrip is not set up yet. It comes with this extension and is put into a Python environment of its own."
        : `Cantrip cannot be started: ${why}`,
      ...actions,
    );
    return chosen !== undefined && this.act(chosen);
  }

  private async act(chosen: string): Promise<boolean> {
    switch (chosen) {
      case INSTALL:
      case UPDATE:
        return this.install();
      case CHOOSE:
        return this.choose();
      case UVX:
        await vscode.workspace.getConfiguration("cantrip").update("useUvx", true, vscode.ConfigurationTarget.Global);
        this.environment.invalidate("uvx was chosen");
        return true;
      case OUTPUT:
        this.environment.output.show(true);
        return false;
      default:
        await showGuide(this.environment.context);
        return false;
    }
  }

  private async install(): Promise<boolean> {
    const done = await vscode.window.withProgress(
      { location: vscode.ProgressLocation.Notification, title: "Cantrip", cancellable: true },
      async (progress, token) => {
        const stop = new AbortController();
        token.onCancellationRequested(() => {
          stop.abort();
        });
        return install(
          {
            folder: this.environment.managedVenv,
            source: vscode.workspace.getConfiguration("cantrip").get("installSource", "").trim(),
            wheels: vscode.Uri.joinPath(this.environment.context.extensionUri, "dist", "wheels").fsPath,
            cwd: this.environment.safeCwd,
            env: this.environment.env(),
            signal: stop.signal,
          },
          (message) => {
            progress.report({ message });
            this.environment.output.info(message);
          },
        );
      },
    );
    if (done.ok) {
      await this.leaveSettings();
      this.environment.invalidate("it was installed");
      return true;
    }
    if (done.why === undefined) return false; // cancelled
    this.environment.output.error(done.why);
    const chosen = await vscode.window.showErrorMessage(done.why.split("\n")[0] ?? done.why, CHOOSE, GUIDE, OUTPUT);
    return chosen !== undefined && this.act(chosen);
  }

  /** A setting that names another program would take precedence. */
  private async leaveSettings(): Promise<void> {
    const settings = vscode.workspace.getConfiguration("cantrip");
    for (const name of ["path", "python"]) {
      if (settings.get<string>(name, "") === "") continue;
      const held = settings.inspect<string>(name);
      const target =
        held?.workspaceValue !== undefined ? vscode.ConfigurationTarget.Workspace : vscode.ConfigurationTarget.Global;
      await settings.update(name, undefined, target);
    }
  }

  private async choose(): Promise<boolean> {
    const picked = await vscode.window.showOpenDialog({
      title: "A Python (3.11 or later) with cantrip-acp, or the program cantrip",
      openLabel: "Use This",
      canSelectMany: false,
    });
    const file = picked?.[0]?.fsPath;
    if (file === undefined) return false;
    const name = /python[\d.]*(\.exe)?$/i.test(file) ? "python" : "path";
    const settings = vscode.workspace.getConfiguration("cantrip");
    if (name === "python") await settings.update("path", undefined, vscode.ConfigurationTarget.Global);
    await settings.update(name, file, vscode.ConfigurationTarget.Global);
    this.environment.invalidate("a program was chosen");
    return true;
  }

  dispose(): void {
    for (const part of this.parts) part.dispose();
  }
}

function uvxIsThere(environment: Environment): boolean {
  const places = environment.places();
  return !places.useUvx && which("uvx", places) !== undefined;
}

/** Show the walkthrough, which begins with the installation. */
export async function showGuide(context: vscode.ExtensionContext): Promise<void> {
  await vscode.commands.executeCommand("workbench.action.openWalkthrough", `${context.extension.id}#start`, false);
}
