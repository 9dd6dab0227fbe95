/** The user's Cantrip program: searched once, and again after a change. All parts that start it get it from here. */
import * as vscode from "vscode";
import { ownPackage, withExtra } from "./install";
import { search, type Places } from "./search";
import { commandLine, type FoundProgram, type RejectedProgram } from "./program";
import { selectedInterpreter, whenInterpreterChanges } from "./python";

/** The result of a search: a program, or the reasons why there is none. */
export type SearchResult = FoundProgram | readonly RejectedProgram[];

/** Whether the search found a program. */
export function isFound(asked: SearchResult): asked is FoundProgram {
  return "version" in asked;
}

/** Settings that change the program or its environment variables. */
const WATCHED_SETTINGS = [
  "cantrip.path",
  "cantrip.python",
  "cantrip.useUvx",
  "cantrip.stateDir",
  "cantrip.env",
  "cantrip.installSource",
];

export class Environment implements vscode.Disposable {
  /** The log of the extension. */
  readonly output = vscode.window.createOutputChannel("Cantrip", { log: true });
  /** The folder of the virtual environment that the guided setup makes. */
  readonly managedVenv: string;
  private readonly changed = new vscode.EventEmitter<void>();
  /** Fires when another program may be found. Parts that run one restart it. */
  readonly onDidChange = this.changed.event;
  private asking: Promise<SearchResult> | undefined;
  private runSetupGuide: (refused: readonly RejectedProgram[]) => Promise<boolean> = () => Promise.resolve(false);
  private readonly parts: vscode.Disposable[] = [];

  constructor(readonly context: vscode.ExtensionContext) {
    this.managedVenv = vscode.Uri.joinPath(context.globalStorageUri, "venv").fsPath;
    this.parts.push(
      this.output,
      this.changed,
      vscode.workspace.onDidChangeConfiguration((event) => {
        if (WATCHED_SETTINGS.some((name) => event.affectsConfiguration(name))) this.invalidate("a setting changed");
      }),
      vscode.workspace.onDidGrantWorkspaceTrust(() => {
        this.invalidate("the workspace is trusted now");
      }),
      vscode.workspace.onDidChangeWorkspaceFolders(() => {
        this.invalidate("the folders of the workspace changed");
      }),
      whenInterpreterChanges(() => {
        this.invalidate("another interpreter was selected");
      }),
    );
  }

  /** Find the program without asking the user. The result is kept until something changes. */
  find(): Promise<SearchResult> {
    this.asking ??= this.look();
    return this.asking;
  }

  /** Find the program, and run the guided setup if there is none; undefined if the user cancels. */
  async need(): Promise<FoundProgram | undefined> {
    const asked = await this.find();
    if (isFound(asked)) return asked;
    if (!(await this.runSetupGuide(asked))) return undefined;
    const again = await this.find();
    return isFound(again) ? again : undefined;
  }

  /** Set the function that runs the guided setup. It gets the reasons, and returns whether an action was done. */
  setGuide(guide: (refused: readonly RejectedProgram[]) => Promise<boolean>): void {
    this.runSetupGuide = guide;
  }

  /** Forget the result of the search and notify all listeners. */
  invalidate(why: string): void {
    this.output.info(`looking for cantrip again: ${why}`);
    this.asking = undefined;
    this.changed.fire();
  }

  /** The environment variables of each process: the user's, those of the setting `cantrip.env`, and the state folder. */
  env(): NodeJS.ProcessEnv {
    const settings = vscode.workspace.getConfiguration("cantrip");
    const stateDir = settings.get("stateDir", "").trim();
    return {
      ...process.env,
      ...settings.get<Record<string, string>>("env", {}),
      ...(stateDir === "" ? {} : { CANTRIP_STATE_DIR: stateDir }),
      // Modules of the workspace must not be imported instead of those of the package.
      PYTHONSAFEPATH: "1",
      PYTHONUTF8: "1",
    };
  }

  /** A folder outside every workspace, for programs that need no workspace. */
  get safeCwd(): string {
    return this.context.extensionPath;
  }

  /** The folder of the wheels that come with the extension. */
  get wheels(): string {
    return vscode.Uri.joinPath(this.context.extensionUri, "dist", "wheels").fsPath;
  }

  places(): Places {
    const settings = vscode.workspace.getConfiguration("cantrip");
    const interpreter = selectedInterpreter();
    return {
      path: settings.get("path", ""),
      python: settings.get("python", ""),
      ...(interpreter === undefined ? {} : { interpreter }),
      folders: (vscode.workspace.workspaceFolders ?? [])
        .filter((folder) => folder.uri.scheme === "file")
        .map((folder) => folder.uri.fsPath),
      trusted: vscode.workspace.isTrusted,
      own: this.managedVenv,
      useUvx: settings.get("useUvx", false),
      installSource: withExtra(settings.get("installSource", "").trim()) || ownPackage(this.wheels),
      env: this.env(),
    };
  }

  private async look(): Promise<SearchResult> {
    const asked = await search(this.places(), this.safeCwd);
    if (isFound(asked)) this.output.info(`cantrip ${asked.version}: ${commandLine(asked)} (${asked.origin})`);
    else for (const each of asked) this.output.warn(each.why);
    if (!isFound(asked) && asked.length === 0)
      this.output.warn("cantrip was found nowhere: no setting, no environment, not on PATH");
    await vscode.commands.executeCommand("setContext", "cantrip.missing", !isFound(asked));
    await vscode.commands.executeCommand("setContext", "cantrip.ready", isFound(asked));
    return asked;
  }

  dispose(): void {
    for (const part of this.parts) part.dispose();
  }
}
