/** The tree of looms: sessions, their casts, the turns of each cast, and the children of each turn. It follows running casts. */
import * as vscode from "vscode";
import type { Server } from "../server/server";
import type { CastData, LoomData, Page, TurnData } from "./data";
import * as words from "./labels";

const PAGE = 100;
const SOON_MS = 120;
const FRESH_MS = 20_000;

interface Place {
  readonly uri: string;
  readonly parent: Node | undefined;
}
export interface SessionNode extends Place {
  readonly kind: "session";
  readonly loom: LoomData;
}
export interface CastNode extends Place {
  readonly kind: "cast";
  readonly cast: CastData;
}
export interface TurnNode extends Place {
  readonly kind: "turn";
  readonly turn: TurnData;
}
interface MoreNode extends Place {
  readonly kind: "more";
  readonly left: number;
}
export type Node = SessionNode | CastNode | TurnNode | MoreNode;

/** A key of a node that stays the same when its label changes. */
function key(node: Node | undefined): string {
  switch (node?.kind) {
    case undefined:
      return "";
    case "session":
      return node.uri;
    case "cast":
      return `${node.uri}#${node.cast.id}`;
    case "turn":
      return `${node.uri}#${node.turn.id}`;
    case "more":
      return `${key(node.parent)}#more`;
  }
}

export class LoomTree implements vscode.TreeDataProvider<Node>, vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<Node | undefined>();
  readonly onDidChangeTreeData = this.changed.event;
  private readonly view: vscode.TreeView<Node>;
  private readonly parts: vscode.Disposable[] = [];
  /** The number of children shown, for nodes that show more than one page. */
  private readonly shown = new Map<string, number>();
  private readonly sessions = new Map<string, SessionNode>();
  private waiting: NodeJS.Timeout | undefined;
  private stale = new Set<string>();
  private all = false;

  constructor(
    private readonly server: Server,
    private readonly log: (message: string) => void,
  ) {
    this.view = vscode.window.createTreeView("cantrip.looms", { treeDataProvider: this, showCollapseAll: true });
    this.parts.push(
      this.view,
      this.changed,
      server.onDidChange((state) => {
        if (state !== "starting") this.refresh();
      }),
      server.onNotification(({ method, params }) => {
        if (method === "cantrip/loom/listChanged") this.soon();
        else this.soon((params as { uri: string }).uri);
      }),
      vscode.commands.registerCommand("cantrip.looms.refresh", () => {
        this.refresh();
      }),
      vscode.commands.registerCommand("cantrip.looms.more", (node: Node) => {
        const of = key(node.parent);
        this.shown.set(of, (this.shown.get(of) ?? PAGE) + PAGE);
        this.changed.fire(node.parent);
      }),
    );
  }

  refresh(): void {
    this.changed.fire(undefined);
  }

  /** Redraw a loom or the list soon. Changes are collected, because a running entity makes many of them each second. */
  private soon(uri?: string): void {
    if (uri === undefined) this.all = true;
    else this.stale.add(vscode.Uri.parse(uri).toString());
    this.waiting ??= setTimeout(() => {
      this.waiting = undefined;
      const [all, stale] = [this.all, this.stale];
      this.all = false;
      this.stale = new Set();
      const unknown = [...stale].some((each) => !this.sessions.has(each));
      if (all || unknown) this.refresh();
      else for (const each of stale) this.changed.fire(this.sessions.get(each));
    }, SOON_MS);
  }

  async getChildren(node?: Node): Promise<Node[]> {
    if (!this.server.running) return [];
    try {
      return await this.read(node);
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      this.log(`the looms' tree: ${why}`);
      if (node === undefined) this.view.message = why;
      return [];
    }
  }

  private async read(node: Node | undefined): Promise<Node[]> {
    const limit = this.shown.get(key(node)) ?? PAGE;
    if (node === undefined) {
      const page = await this.server.request<Page & { looms: LoomData[] }>("cantrip/loom/list", { limit });
      this.sessions.clear();
      const found = page.looms.map((loom): SessionNode => {
        const session: SessionNode = { kind: "session", uri: loom.uri, parent: undefined, loom };
        this.sessions.set(vscode.Uri.parse(loom.uri).toString(), session);
        return session;
      });
      delete this.view.message;
      return this.cut(found, page, node);
    }
    if (node.kind === "cast") {
      const page = await this.server.request<Page & { turns: TurnData[] }>("cantrip/loom/turns", { uri: node.uri, cast: node.cast.id, limit });
      const found = page.turns.map((turn): TurnNode => ({ kind: "turn", uri: node.uri, parent: node, turn }));
      return this.cut(found, page, node);
    }
    if (node.kind === "more") return [];
    const spawner = node.kind === "turn" ? { turn: node.turn.id } : {};
    const page = await this.server.request<Page & { casts: CastData[] }>("cantrip/loom/casts", { uri: node.uri, limit, ...spawner });
    const found = page.casts.map((cast): CastNode => ({ kind: "cast", uri: node.uri, parent: node, cast }));
    return this.cut(found, page, node);
  }

  private cut(found: Node[], page: Page, parent: Node | undefined): Node[] {
    const left = page.total - found.length;
    return left <= 0 ? found : [...found, { kind: "more", uri: parent?.uri ?? "", parent, left }];
  }

  getParent(node: Node): Node | undefined {
    return node.parent;
  }

  getTreeItem(node: Node): vscode.TreeItem {
    const item = this.item(node);
    item.id = key(node);
    item.contextValue = node.kind;
    return item;
  }

  private item(node: Node): vscode.TreeItem {
    const { Collapsed, Expanded, None } = vscode.TreeItemCollapsibleState;
    switch (node.kind) {
      case "session": {
        // A loom that is being written is open by default.
        const fresh = Date.now() - node.loom.modified < FRESH_MS;
        const item = new vscode.TreeItem(words.loomLabel(node.loom), fresh ? Expanded : Collapsed);
        item.description = words.loomDescription(node.loom, Date.now());
        item.iconPath = new vscode.ThemeIcon("comment-discussion");
        item.tooltip = vscode.Uri.parse(node.uri).fsPath;
        return item;
      }
      case "cast": {
        const item = new vscode.TreeItem(words.castLabel(node.cast), node.cast.state === "active" ? Expanded : Collapsed);
        item.description = words.castDescription(node.cast);
        item.iconPath = castIcon(node.cast);
        item.tooltip = plain(`${node.cast.intent}\n\n${node.cast.told}`.trim());
        return item;
      }
      case "turn": {
        const item = new vscode.TreeItem(words.turnLabel(node.turn), node.turn.children > 0 ? Collapsed : None);
        item.description = words.turnDescription(node.turn);
        item.iconPath = turnIcon(node.turn);
        item.tooltip = plain([node.turn.text, node.turn.said, words.turnFacts(node.turn)].filter((part) => part !== "").join("\n\n"));
        item.command = { title: "Open in the Viewer", command: "cantrip.looms.open", arguments: [node] };
        return item;
      }
      case "more": {
        const item = new vscode.TreeItem(`${node.left} more…`, None);
        item.command = { title: "Show More", command: "cantrip.looms.more", arguments: [node] };
        return item;
      }
    }
  }

  dispose(): void {
    if (this.waiting !== undefined) clearTimeout(this.waiting);
    for (const part of this.parts) part.dispose();
  }
}

/** The text of an entity as plain text, never as Markdown. */
function plain(text: string): vscode.MarkdownString {
  return new vscode.MarkdownString().appendText(text);
}

function castIcon(cast: CastData): vscode.ThemeIcon {
  if (cast.state === "active") return new vscode.ThemeIcon("loading~spin");
  if (cast.forkedFrom !== null) return new vscode.ThemeIcon("repo-forked", new vscode.ThemeColor("charts.purple"));
  if (cast.state === "terminated") return new vscode.ThemeIcon("pass", new vscode.ThemeColor("testing.iconPassed"));
  return new vscode.ThemeIcon("warning", new vscode.ThemeColor("list.warningForeground"));
}

const ICONS: Readonly<Record<string, string>> = { code: "code", calls: "tools", text: "comment", fold: "fold", call: "gear" };

function turnIcon(turn: TurnData): vscode.ThemeIcon {
  if (turn.failed) return new vscode.ThemeIcon("error", new vscode.ThemeColor("list.errorForeground"));
  if (turn.reward !== null) return new vscode.ThemeIcon("star-full", new vscode.ThemeColor("charts.yellow"));
  return new vscode.ThemeIcon(ICONS[turn.kind] ?? "circle-small");
}
