/** Commands for looms, from the tree, code lenses and the explorer. Each asks for missing values first. */
import { readFile } from "node:fs/promises";
import * as os from "node:os";
import * as vscode from "vscode";
import type { Environment } from "../environment/environment";
import { failure, type Server } from "../server/server";
import type { Comparisons } from "./comparison";
import { type LoomEditor, VIEW_TYPE } from "./editor";
import type { Node } from "./tree";
import { outcomeSummary, withTrust, type Outcome } from "../outcome";
import { FORMATS, preselected, recipeChoices, rewardOf, rewardProblem } from "./choices";

const RECIPES = "cantrip.looms.recipes";
const MOST_RECIPES = 200;

interface Target {
  readonly uri: vscode.Uri;
  readonly turn?: string;
}

export class LoomCommands implements vscode.Disposable {
  private readonly parts: vscode.Disposable[] = [];

  constructor(
    private readonly environment: Environment,
    private readonly server: Server,
    private readonly editor: LoomEditor,
    comparisons: Comparisons,
  ) {
    for (const name of ["fork", "reward", "replay", "export"] as const) {
      this.parts.push(vscode.commands.registerCommand(`cantrip.looms.${name}`, (node?: Node) => this.guarded(() => this.act(name, target(node)))));
    }
    this.parts.push(
      vscode.commands.registerCommand("cantrip.looms.open", (what?: Node | vscode.Uri) =>
        this.guarded(async () => {
          const meant = what instanceof vscode.Uri ? { uri: what } : (target(what) ?? opened());
          if (meant === undefined) throw new Error("Open a record (NAME.loom.jsonl) and try again.");
          await this.view(meant.uri, "turn" in meant ? meant.turn : undefined);
        }),
      ),
      vscode.commands.registerCommand("cantrip.looms.compare", (what?: Node | vscode.Uri) =>
        this.guarded(async () => {
          const meant = what instanceof vscode.Uri ? { uri: what } : (target(what) ?? opened());
          if (meant === undefined) throw new Error("Open a record (NAME.loom.jsonl) and try again.");
          await comparisons.choose(meant.uri);
        }),
      ),
      vscode.commands.registerCommand("cantrip.looms.openText", (node?: Node) =>
        this.guarded(async () => {
          const meant = target(node);
          if (meant !== undefined) await vscode.commands.executeCommand("vscode.openWith", meant.uri, "default");
        }),
      ),
      vscode.commands.registerCommand("cantrip.looms.copyId", async (node?: Node) => {
        const id = node?.kind === "cast" ? node.cast.id : node?.kind === "turn" ? node.turn.id : node?.kind === "session" ? node.loom.name : "";
        if (id !== "") await vscode.env.clipboard.writeText(id);
      }),
    );
  }

  /** Show a loom in the viewer. */
  async view(uri: vscode.Uri, turn?: string): Promise<void> {
    await this.editor.show(uri, turn);
  }

  /** Run a server command (`cantrip.loom.…`) from a code lens. */
  async run(command: string, args: unknown[]): Promise<unknown> {
    const given = (args[0] ?? {}) as { uri?: string; turn?: string };
    if (given.uri === undefined) return this.server.execute(command, args);
    const meant: Target = { uri: vscode.Uri.parse(given.uri), ...(given.turn === undefined ? {} : { turn: given.turn }) };
    const name = command.slice("cantrip.loom.".length);
    if (name === "view") return this.view(meant.uri, meant.turn);
    if (name === "fork" || name === "reward" || name === "replay" || name === "export") return this.act(name, meant);
    return this.server.execute(command, args);
  }

  private async act(name: "fork" | "reward" | "replay" | "export", meant: Target | undefined): Promise<unknown> {
    if (meant === undefined) throw new Error("Choose a run or a turn in the tree of records.");
    if ((name === "fork" || name === "replay") && !vscode.workspace.isTrusted) {
      throw new Error("Nothing is run in a workspace that you do not trust.");
    }
    switch (name) {
      case "fork":
        return this.fork(meant);
      case "reward":
        return this.reward(meant);
      case "replay":
        return this.replay(meant);
      case "export":
        return this.export(meant);
    }
  }

  private async fork(meant: Target): Promise<void> {
    const intent = await vscode.window.showInputBox({
      title: "Fork: go on from this turn",
      prompt: "What should be done from here? What was done before stays as it is.",
      placeHolder: "Say it louder.",
      ignoreFocusOut: true,
      validateInput: (text) => (text.trim() === "" ? "Enter what should be done." : undefined),
    });
    if (intent === undefined) return;
    const recipe = await this.recipe("Fork with which recipe?", meant.uri);
    if (recipe === undefined) return;
    await this.used(meant.uri.fsPath, recipe);
    const ended = await withTrust(this.server, "Fork", () =>
      this.server.execute<Outcome>("cantrip.loom.fork", [{ ...named(meant), intent, recipe }], "Forking"),
    );
    if (ended === undefined) return;
    const words = outcomeSummary("The fork", ended);
    this.environment.output.info(words);
    const show = ended.terminated ? vscode.window.showInformationMessage : vscode.window.showWarningMessage;
    void show(words, "Open Record").then((chosen) => (chosen === undefined ? undefined : this.view(meant.uri)));
  }

  private async reward(meant: Target): Promise<void> {
    const picked = await vscode.window.showQuickPick(
      [
        { label: "$(thumbsup) Good", description: "1", value: "1" },
        { label: "$(thumbsdown) Bad", description: "0", value: "0" },
        { label: "$(edit) A number…", description: "", value: "" },
      ],
      { title: "Reward", placeHolder: "How good was it? The last reward counts; all are kept.", ignoreFocusOut: true },
    );
    if (picked === undefined) return;
    const prompt = { title: "Reward", prompt: "A number, such as 0.5 or -1", ignoreFocusOut: true, validateInput: rewardProblem };
    const value = picked.value !== "" ? picked.value : await vscode.window.showInputBox(prompt);
    if (value === undefined) return;
    const note = await vscode.window.showInputBox({ title: "Reward", prompt: "Why? (may stay empty)", ignoreFocusOut: true });
    if (note === undefined) return;
    await this.server.execute("cantrip.loom.reward", [{ ...named(meant), reward: rewardOf(value), note: note.trim() }]);
    vscode.window.setStatusBarMessage(`Reward ${value.trim()} is in the record.`, 5_000);
  }

  private async replay(meant: Target): Promise<void> {
    const how = await vscode.window.showQuickPick(
      [
        { label: "With recorded results", detail: "Commands and code run in a copy of the files. Every other call answers what it answered then.", recordedGates: true },
        { label: "Run again in a copy", detail: "Commands, code and file calls run in a copy of the files. Your files stay as they are.", recordedGates: false },
      ],
      { title: "Replay: run this again with what the model said then" },
    );
    if (how === undefined) return;
    const recipe = await this.recipe("Replay with which recipe?", meant.uri);
    if (recipe === undefined) return;
    const { recordedGates } = how;
    // The server shows the result itself.
    await withTrust(this.server, "Replay", () =>
      this.server.execute("cantrip.loom.replay", [{ ...named(meant), recipe, recordedGates }], "Replaying"),
    );
  }

  private async export(meant: Target): Promise<void> {
    const format = await vscode.window.showQuickPick(
      FORMATS.map(([label, detail]) => ({ label, detail })),
      { title: "Export", placeHolder: "For which trainer or trace store?", matchOnDetail: true },
    );
    if (format === undefined) return;
    const name = meant.uri.path.split("/").at(-1)?.replace(/\.loom\.jsonl$/, "") ?? "loom";
    const start = vscode.workspace.workspaceFolders?.[0]?.uri ?? vscode.Uri.file(os.homedir());
    const to = await vscode.window.showSaveDialog({
      title: "Export to",
      defaultUri: vscode.Uri.joinPath(start, `${name}.${format.label}.jsonl`),
    });
    if (to === undefined) return;
    const about = await this.server.execute<{ rows: number; threads: number }>(
      "cantrip.loom.export",
      [{ ...named(meant), format: format.label, output: to.fsPath, hidden: true }],
      "Exporting",
    );
    const words = `Exported to ${to.fsPath} (${about.rows} of ${about.threads} threads)`;
    void vscode.window.showInformationMessage(words, "Open").then((chosen) => {
      if (chosen !== undefined) void vscode.commands.executeCommand("vscode.open", to);
    });
  }

  /** Remember the recipe that made a loom. It comes first when the user chooses a recipe. */
  async used(loom: string, recipe: string): Promise<void> {
    const memory = this.environment.context.workspaceState;
    const kept = Object.entries(memory.get<Record<string, string>>(RECIPES, {})).filter(([name]) => name !== loom);
    await memory.update(RECIPES, Object.fromEntries([...kept, [loom, recipe]].slice(-MOST_RECIPES)));
  }

  /** The recipe that made a loom, if it is known: from this window, or from the session file beside the loom. */
  private async recipeOf(loom: vscode.Uri): Promise<string | undefined> {
    const kept = this.environment.context.workspaceState.get<Record<string, string>>(RECIPES, {})[loom.fsPath];
    if (kept !== undefined) return kept;
    try {
      const note: unknown = JSON.parse(await readFile(loom.fsPath.replace(/\.loom\.jsonl$/, ".session.json"), "utf8"));
      const { recipe, started } = note as { recipe?: unknown; started?: unknown };
      const found = typeof recipe === "string" ? recipe : started;
      return typeof found === "string" ? found : undefined;
    } catch {
      return undefined; // Not a session, or a session file of another version.
    }
  }

  private async recipe(title: string, loom: vscode.Uri): Promise<string | undefined> {
    const files = await vscode.workspace.findFiles("**/*.cantrip.{yaml,yml}", "**/{node_modules,.venv,venv}/**", 200);
    const choices = recipeChoices(files.map((file) => [vscode.workspace.asRelativePath(file), file.fsPath]));
    const used = await this.recipeOf(loom);
    const picked = await vscode.window.showQuickPick(preselected(choices, used), { title, matchOnDescription: true, ignoreFocusOut: true });
    return picked?.recipe;
  }

  private async guarded(work: () => Promise<unknown>): Promise<void> {
    try {
      await work();
    } catch (error) {
      if (error instanceof vscode.CancellationError) return;
      const { message } = failure(error);
      this.environment.output.error(message);
      const chosen = await vscode.window.showErrorMessage(message, "Show Output");
      if (chosen !== undefined) this.environment.output.show(true);
    }
  }

  dispose(): void {
    for (const part of this.parts) part.dispose();
  }
}

/** A target as an argument of a server command. */
function named(meant: Target): { readonly uri: string; readonly turn?: string } {
  return { uri: meant.uri.toString(), ...(meant.turn === undefined ? {} : { turn: meant.turn }) };
}

function target(node: Node | undefined): Target | undefined {
  if (node === undefined) return undefined;
  const uri = vscode.Uri.parse(node.uri);
  if (node.kind === "turn") return { uri, turn: node.turn.id };
  if (node.kind === "cast" && node.cast.leaf !== null) return { uri, turn: node.cast.leaf };
  return { uri };
}

function opened(): Target | undefined {
  const input = vscode.window.tabGroups.activeTabGroup.activeTab?.input;
  const uri = input instanceof vscode.TabInputCustom && input.viewType === VIEW_TYPE ? input.uri : vscode.window.activeTextEditor?.document.uri;
  return uri?.path.endsWith(".loom.jsonl") === true ? { uri } : undefined;
}
