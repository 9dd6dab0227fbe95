/** The set-up if no Cantrip was found: one run at a time, whoever asks for it, and the other ways to get a Cantrip. */
import * as vscode from "vscode";
import { Signal } from "../acp/signal";
import { isFound, type Environment } from "./environment";
import { install } from "./install";
import { list } from "./madefolders";
import type { RejectedProgram } from "./program";
import { which } from "./search";

const INSTALL = "Set Up";
const OTHERS = "Other Ways…";
const AGAIN = "Try Again";
const CHOOSE = "Choose a Python…";
const UVX = "Use uvx";
const GUIDE = "Show the Guide";
const OUTPUT = "Show Output";

/** What the set-up does now, or why the last one failed; empty before the first one and after one that succeeded. */
export interface SetupState {
  readonly doing?: string;
  readonly problem?: string;
}

export class Setup implements vscode.Disposable {
  /** Fires when its state has changed. */
  readonly changed = new Signal<void>();
  state: SetupState = {};
  private readonly parts: vscode.Disposable[] = [];
  private asking: Promise<boolean> | undefined;
  private running: Promise<boolean> | undefined;
  private cancelling = new AbortController();

  constructor(private readonly environment: Environment) {
    // An earlier version of the extension may have made it.
    this.list();
    environment.setGuide((refused) => this.guide(refused));
    this.parts.push(
      // Why an earlier attempt failed is no longer true.
      environment.onDidChange(() => {
        if (this.running === undefined) this.set({});
      }),
      vscode.commands.registerCommand("cantrip.setup", () => this.command()),
      vscode.commands.registerCommand("cantrip.guide", () => showGuide(environment.context)),
    );
  }

  /** Install Cantrip. While it runs, all who ask get the result of the same run. True if there is a Cantrip then. */
  run(): Promise<boolean> {
    this.running ??= this.install().finally(() => {
      this.running = undefined;
    });
    return this.running;
  }

  /** End the installation that runs. It leaves nothing behind. */
  cancel(): void {
    this.cancelling.abort();
  }

  /** Ask for another way to get a Cantrip. True if one was taken. */
  async otherWays(): Promise<boolean> {
    const chosen = await vscode.window.showQuickPick([CHOOSE, ...(uvxIsThere(this.environment) ? [UVX] : []), GUIDE, OUTPUT], {
      title: "Set up Cantrip in another way",
    });
    return chosen !== undefined && this.act(chosen);
  }

  /** Ask the user what to do, with one question at a time. True if there may be a Cantrip then. */
  private guide(refused: readonly RejectedProgram[]): Promise<boolean> {
    this.asking ??= this.ask(refused).finally(() => {
      this.asking = undefined;
    });
    return this.asking;
  }

  private async command(): Promise<void> {
    let asked = await this.environment.find();
    if (!isFound(asked) && this.running === undefined) {
      this.environment.invalidate("asked for");
      asked = await this.environment.find();
    }
    if (!isFound(asked)) {
      // What a setting or an interpreter names does not work: the user has chosen that, and decides.
      if (vscode.workspace.isTrusted && asked.every((each) => each.old === true)) await this.installVisibly();
      else await this.guide(asked);
      return;
    }
    const chosen = await vscode.window.showInformationMessage(
      `Cantrip ${asked.version} is ready (${asked.origin}).`,
      CHOOSE,
      GUIDE,
    );
    if (chosen !== undefined) await this.act(chosen);
  }

  /** A modal question: a message would hide behind the bell, and the next click would show nothing. */
  private async ask(refused: readonly RejectedProgram[]): Promise<boolean> {
    if (!vscode.workspace.isTrusted) {
      const manage = "Manage Workspace Trust";
      const chosen = await vscode.window.showInformationMessage(
        "Cantrip is not installed outside this workspace, and a workspace that is not trusted chooses no program.",
        { modal: true, detail: "Recipes are highlighted, and not checked." },
        manage,
        GUIDE,
      );
      if (chosen === manage) await vscode.commands.executeCommand("workbench.trust.manage");
      else if (chosen !== undefined) await this.act(chosen);
      return false;
    }
    const why = (refused.find((each) => each.old === true) ?? refused[0])?.why;
    const [title, detail] =
      why === undefined
        ? ["Cantrip is not set up yet.", "It comes with this extension and is put into a Python environment of its own."]
        : ["Cantrip cannot be started.", why];
    const chosen = await vscode.window.showWarningMessage(title, { modal: true, detail }, INSTALL, OTHERS);
    return chosen !== undefined && this.act(chosen);
  }

  private async act(chosen: string): Promise<boolean> {
    switch (chosen) {
      case INSTALL:
      case AGAIN:
        return this.installVisibly();
      case OTHERS:
        return this.otherWays();
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

  /** Install with a progress message, for those who do not look at the chat. */
  private async installVisibly(): Promise<boolean> {
    const done = await vscode.window.withProgress(
      { location: vscode.ProgressLocation.Notification, title: "Setting up Cantrip", cancellable: true },
      async (progress, token) => {
        const show = (): void => {
          progress.report({ message: this.state.doing ?? "" });
        };
        const shown = this.changed.on(show);
        token.onCancellationRequested(() => {
          this.cancel();
        });
        try {
          const running = this.run();
          show();
          return await running;
        } finally {
          shown.dispose();
        }
      },
    );
    if (done || this.state.problem === undefined) return done;
    const chosen = await vscode.window.showErrorMessage(this.state.problem, AGAIN, OTHERS, OUTPUT);
    return chosen !== undefined && this.act(chosen);
  }

  private async install(): Promise<boolean> {
    const { environment } = this;
    this.cancelling = new AbortController();
    const say = (doing: string): void => {
      environment.output.info(doing);
      this.set({ doing });
    };
    try {
      this.set({ doing: "looking for Python 3.11 or later" });
      const done = await install(
        {
          folder: environment.managedVenv,
          source: vscode.workspace.getConfiguration("cantrip").get("installSource", "").trim(),
          wheels: environment.wheels,
          cwd: environment.safeCwd,
          env: environment.env(),
          signal: this.cancelling.signal,
        },
        say,
      );
      if (!done.ok) return this.fail(done.why);
      this.list();
      say("starting Cantrip");
      await this.leaveSettings();
      environment.invalidate("it was installed");
      const found = await environment.find();
      if (!isFound(found)) return this.fail(found[0]?.why ?? "Cantrip was installed and is not found. The output says more.");
      this.set({});
      return true;
    } catch (problem) {
      return this.fail(`The set-up failed: ${problem instanceof Error ? problem.message : String(problem)}`);
    }
  }

  /** Let the uninstallation know what this made. A folder of the extension that cannot be written is no reason to fail. */
  private list(): void {
    const { context, managedVenv, output } = this.environment;
    try {
      list(context.extensionPath, managedVenv);
    } catch (problem) {
      output.warn(`uninstalling will leave ${managedVenv}: ${String(problem)}`);
    }
  }

  /** `why` is undefined if the user cancelled. */
  private fail(why: string | undefined): false {
    if (why !== undefined) this.environment.output.error(why);
    this.set(why === undefined ? {} : { problem: why.split("\n")[0] ?? why });
    return false;
  }

  private set(state: SetupState): void {
    this.state = state;
    this.changed.fire();
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
