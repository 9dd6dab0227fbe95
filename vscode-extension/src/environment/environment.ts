/** The user's Cantrip: found once, found again when something changes, and asked for by all that starts it. */
import * as vscode from "vscode";
import { PACKAGE } from "./install";
import { search, type Places } from "./search";
import { commandLine, type FoundProgram, type RejectedProgram } from "./program";
import { selectedInterpreter, whenInterpreterChanges } from "./python";

/** What `Environment.ask` ended with: a program, or why there is none. */
export type SearchResult = FoundProgram | readonly RejectedProgram[];

/** Whether `asked` is a program. */
export function isFound(asked: SearchResult): asked is FoundProgram {
  return "version" in asked;
}

/** Settings whose change means another program or another environment of it. */
const WATCHED_SETTINGS = [
  "cantrip.path",
  "cantrip.python",
  "cantrip.useUvx",
  "cantrip.stateDir",
  "cantrip.env",
  "cantrip.installSource",
];

export class Environment implements vscode.Disposable {
  /** Log of what was looked for and started; everything of this extension writes here. */
  readonly output = vscode.window.createOutputChannel("Cantrip", { log: true });
  /** The folder of the environment that the guided set-up makes. */
  readonly managedVenv: string;
  private readonly changed = new vscode.EventEmitter<void>();
  /** Another program may be found now: whoever runs one starts it again. */
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

  /** The program, without a word to the user where there is none. Looked for once until something changes. */
  find(): Promise<SearchResult> {
    this.asking ??= this.look();
    return this.asking;
  }

  /** The program, with the guided set-up where there is none; undefined where the user let it be. */
  async need(): Promise<FoundProgram | undefined> {
    const asked = await this.find();
    if (isFound(asked)) return asked;
    if (!(await this.runSetupGuide(asked))) return undefined;
    const again = await this.find();
    return isFound(again) ? again : undefined;
  }

  /** Who leads the user through the set-up: called with why nothing was found, true where something was done. */
  setGuide(guide: (refused: readonly RejectedProgram[]) => Promise<boolean>): void {
    this.runSetupGuide = guide;
  }

  /** Look again; tells everybody. */
  invalidate(why: string): void {
    this.output.info(`looking for cantrip again: ${why}`);
    this.asking = undefined;
    this.changed.fire();
  }

  /** The environment of every process that is started: the user's, the setting `cantrip.env`, the state folder. */
  env(): NodeJS.ProcessEnv {
    const settings = vscode.workspace.getConfiguration("cantrip");
    const stateDir = settings.get("stateDir", "").trim();
    return {
      ...process.env,
      ...settings.get<Record<string, string>>("env", {}),
      ...(stateDir === "" ? {} : { CANTRIP_STATE_DIR: stateDir }),
      // A workspace's modules are never imported in place of the package's.
      PYTHONSAFEPATH: "1",
      PYTHONUTF8: "1",
    };
  }

  /** A folder that is nobody's workspace: where programs are started that need none. */
  get safeCwd(): string {
    return this.context.extensionPath;
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
      installSource: settings.get("installSource", "").trim() || PACKAGE,
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
