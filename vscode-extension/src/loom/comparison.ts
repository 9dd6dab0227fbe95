/** Editor tabs that show two looms side by side. */
import * as vscode from "vscode";
import type { Environment } from "../environment/environment";
import type { Server } from "../server/server";
import type { ForkData, LoomData, Page } from "./data";
import { ViewerFrame } from "./frame";
import { Viewer } from "./viewer";
import { comparisonTitle, forkChoice, recordChoice } from "./labels";

const TYPE = "cantrip.comparison";
const MOST = 500;
/** What the tabs show. The editor may not have kept the state of their pages when the window is loaded again. */
const KEPT = "cantrip.comparisons";

/** Two looms, each as a path or the id of a session, and the tab's title. */
export interface Compared {
  readonly left: string;
  readonly right: string;
  readonly title: string;
}

export class Comparisons implements vscode.WebviewPanelSerializer, vscode.Disposable {
  private readonly registration: vscode.Disposable;
  private readonly open = new Map<string, vscode.WebviewPanel>();

  constructor(
    private readonly environment: Environment,
    private readonly server: Server,
  ) {
    this.registration = vscode.window.registerWebviewPanelSerializer(TYPE, this);
  }

  /** Ask which loom to compare a loom with, and show both. Forks of its session come first. */
  async choose(uri: vscode.Uri): Promise<void> {
    const found = Promise.all([
      this.server.request<{ looms: ForkData[] }>("cantrip/loom/forks", { uri: uri.toString() }),
      this.server.request<Page & { looms: LoomData[] }>("cantrip/loom/list", { limit: MOST }),
    ]);
    const items = found.then(([forks, all]) => {
      const known = new Set([uri.toString(), ...forks.looms.map((each) => vscode.Uri.parse(each.uri).toString())]);
      const now = Date.now();
      const others = all.looms.filter((each) => !known.has(vscode.Uri.parse(each.uri).toString()));
      const separator = (label: string) => ({ label, kind: vscode.QuickPickItemKind.Separator, uri: "" });
      return [
        ...(forks.looms.length > 0 ? [separator("Forks of this session, by the first message that differs")] : []),
        ...forks.looms.map((each) => forkChoice(each, now)),
        ...(others.length > 0 ? [separator("Other records")] : []),
        ...others.map((each) => recordChoice(each, now)),
      ];
    });
    const picked = await vscode.window.showQuickPick(items, { title: "Compare with…", placeHolder: "The record that stands on the right", matchOnDescription: true, matchOnDetail: true });
    if (picked === undefined) return;
    const [, all] = await found;
    const own = all.looms.find((each) => vscode.Uri.parse(each.uri).toString() === uri.toString());
    this.show({ left: uri.fsPath, right: vscode.Uri.parse(picked.uri).fsPath, title: comparisonTitle(own?.title ?? "", picked.label) });
  }

  /** Show two looms side by side. */
  show(compared: Compared): void {
    const shown = this.open.get(key(compared));
    if (shown !== undefined) {
      shown.reveal();
      return;
    }
    this.fill(vscode.window.createWebviewPanel(TYPE, compared.title, vscode.ViewColumn.Active, { retainContextWhenHidden: true }), compared);
  }

  deserializeWebviewPanel(panel: vscode.WebviewPanel): Promise<void> {
    const kept = this.kept.find((each) => each.title === panel.title && !this.open.has(key(each)));
    if (kept === undefined) panel.dispose();
    else this.fill(panel, kept);
    return Promise.resolve();
  }

  dispose(): void {
    this.registration.dispose();
  }

  private get kept(): readonly Compared[] {
    return this.environment.context.workspaceState.get<readonly Compared[]>(KEPT, []);
  }

  private keep(all: readonly Compared[]): Thenable<void> {
    return this.environment.context.workspaceState.update(KEPT, all);
  }

  private fill(panel: vscode.WebviewPanel, compared: Compared): void {
    const { left, right } = compared;
    const cancelled = new vscode.CancellationTokenSource();
    this.open.set(key(compared), panel);
    void this.keep([...this.kept.filter((each) => key(each) !== key(compared)), compared]);
    const icon = (name: string) => vscode.Uri.joinPath(this.environment.context.extensionUri, "media", `loom-${name}.svg`);
    panel.iconPath = { light: icon("light"), dark: icon("dark") };
    panel.onDidDispose(() => {
      this.open.delete(key(compared));
      void this.keep(this.kept.filter((each) => key(each) !== key(compared)));
      cancelled.cancel();
    });
    const open = (): Promise<Viewer> => Viewer.open(this.environment, [left, right], cancelled.token);
    void new ViewerFrame(this.environment, panel, `${left} and ${right}`, open).start();
  }
}

const key = ({ left, right }: Compared): string => JSON.stringify([left, right]);
