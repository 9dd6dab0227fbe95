/** The tree of what sessions know: what every session reads, what the chat's next query contains, and where more is found. */
import * as vscode from "vscode";
import type { ChatService } from "../chat/service";
import { failure, type Server } from "../server/server";
import {
  type ChunkData,
  chunkDescription,
  type QueryData,
  queryDescription,
  readsDescription,
  type RowData,
  rowDescription,
  type TreeData,
} from "./data";

const PAGE = 100;
const SOON_MS = 400;
/** Documents of this scheme are the texts of chunks that are in no file. */
const SCHEME = "cantrip-knowledge";

interface GroupNode {
  readonly kind: "reads" | "query" | "finds";
  readonly folder: vscode.Uri;
  readonly tree: TreeData;
  readonly query?: QueryData;
}
interface FolderNode {
  readonly kind: "folder";
  readonly folder: vscode.Uri;
  readonly name: string;
}
interface ChunkNode {
  readonly kind: "chunk";
  readonly folder: vscode.Uri;
  readonly chunk: ChunkData;
  /** The path of ids that leads here: one chunk can be on several scopes. */
  readonly path: string;
}
interface RowNode {
  readonly kind: "row";
  readonly folder: vscode.Uri;
  readonly row: RowData;
}
interface MoreNode {
  readonly kind: "more";
  readonly folder: vscode.Uri;
  readonly parent: ChunkNode;
  readonly left: number;
}
type Node = GroupNode | FolderNode | ChunkNode | RowNode | MoreNode;

export class KnowledgeTree implements vscode.TreeDataProvider<Node>, vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<Node | undefined>();
  readonly onDidChangeTreeData = this.changed.event;
  private readonly view: vscode.TreeView<Node>;
  private readonly parts: vscode.Disposable[] = [];
  /** The number of children shown, for scopes with more than one page. */
  private readonly shown = new Map<string, number>();
  private waiting: NodeJS.Timeout | undefined;

  constructor(
    private readonly server: Server,
    private readonly chat: ChatService,
  ) {
    this.view = vscode.window.createTreeView("cantrip.knowledge", { treeDataProvider: this, showCollapseAll: true });
    const command = (name: string, work: (node?: Node) => Promise<void>): vscode.Disposable =>
      vscode.commands.registerCommand(`cantrip.knowledge.${name}`, async (node?: Node) => {
        try {
          await work(node);
        } catch (error) {
          void vscode.window.showErrorMessage(`Cantrip: ${failure(error).message}`);
        }
      });
    this.parts.push(
      this.view,
      this.changed,
      vscode.workspace.registerTextDocumentContentProvider(SCHEME, this),
      server.onDidChange((state) => {
        if (state !== "starting") this.soon();
      }),
      // Sessions are recorded while they run, and documents are read again when they were saved.
      server.onNotification(() => { this.soon(); }),
      vscode.workspace.onDidSaveTextDocument((document) => {
        if (document.languageId === "markdown") this.soon();
      }),
      chat.onDidShowConversation.on(() => { this.soon(); }),
      chat.busyChanged.on(() => { this.soon(); }),
      this.view.onDidChangeVisibility(() => { this.soon(); }),
      command("refresh", () => {
        this.changed.fire(undefined);
        return Promise.resolve();
      }),
      command("open", (node) => this.open(node)),
      command("pin", (node) => this.pin(node, false)),
      command("unpin", (node) => this.pin(node, true)),
      command("remember", (node) => this.remember(node?.folder)),
      command("search", (node) => this.search(node?.folder)),
      command("copyId", async (node) => {
        const id = node?.kind === "chunk" ? node.chunk.id : node?.kind === "row" ? node.row.chunk : undefined;
        if (id !== undefined) await vscode.env.clipboard.writeText(id);
      }),
      command("more", (node) => {
        if (node?.kind === "more") {
          this.shown.set(node.parent.path, (this.shown.get(node.parent.path) ?? PAGE) + PAGE);
          this.changed.fire(node.parent);
        }
        return Promise.resolve();
      }),
    );
  }

  /** Read again soon, if the tree is visible. Changes are collected. */
  private soon(): void {
    if (!this.view.visible) return;
    this.waiting ??= setTimeout(() => {
      this.waiting = undefined;
      this.changed.fire(undefined);
    }, SOON_MS);
  }

  async getChildren(node?: Node): Promise<Node[]> {
    if (!this.server.running) return [];
    try {
      const found = await this.read(node);
      if (node === undefined) delete this.view.message;
      return found;
    } catch (error) {
      const { message } = failure(error);
      if (node === undefined) this.view.message = message;
      else void vscode.window.showErrorMessage(`Cantrip: ${message}`);
      return [];
    }
  }

  private async read(node: Node | undefined): Promise<Node[]> {
    if (node === undefined) {
      const folders = vscode.workspace.workspaceFolders ?? [];
      const [first] = folders;
      if (first === undefined) return [];
      if (folders.length === 1) return this.groups(first.uri);
      return folders.map((each): FolderNode => ({ kind: "folder", folder: each.uri, name: each.name }));
    }
    switch (node.kind) {
      case "folder":
        return this.groups(node.folder);
      case "reads":
      case "finds":
        return node.tree[node.kind].map((chunk) => chunkNode(node.folder, chunk, node.kind));
      case "query":
        return (node.query?.rows ?? []).map((row): RowNode => ({ kind: "row", folder: node.folder, row }));
      case "chunk":
        return this.inside(node);
      case "row":
      case "more":
        return [];
    }
  }

  private async groups(folder: vscode.Uri): Promise<Node[]> {
    const [tree, query] = await Promise.all([
      this.server.request<TreeData>("cantrip/substrate/tree", { uri: folder.toString() }),
      this.nextQuery(folder),
    ]);
    const groups: GroupNode[] = [{ kind: "reads", folder, tree }];
    if (query !== undefined) groups.push({ kind: "query", folder, tree, query });
    if (tree.finds.length > 0) groups.push({ kind: "finds", folder, tree });
    return groups;
  }

  /** What the next query of the chat contains, if its session works in this folder. */
  private async nextQuery(folder: vscode.Uri): Promise<QueryData | undefined> {
    const session = this.chat.shownSession;
    if (session?.workspaceLocation.cwd !== folder.fsPath) return undefined;
    try {
      return await session.nextQuery();
    } catch {
      // An agent of an earlier version, or one that has just ended: the rest of the tree does not need it.
      return undefined;
    }
  }

  private async inside(node: ChunkNode): Promise<Node[]> {
    if (node.chunk.placed !== undefined) return node.chunk.placed.map((chunk) => chunkNode(node.folder, chunk, node.path));
    const limit = this.shown.get(node.path) ?? PAGE;
    const page = await this.server.request<{ total: number; chunks: ChunkData[] }>("cantrip/substrate/scope", {
      uri: node.folder.toString(),
      id: node.chunk.id,
      limit,
    });
    const found: Node[] = page.chunks.map((chunk) => chunkNode(node.folder, chunk, node.path));
    const left = page.total - page.chunks.length;
    return left > 0 ? [...found, { kind: "more", folder: node.folder, parent: node, left }] : found;
  }

  getTreeItem(node: Node): vscode.TreeItem {
    const { Collapsed, Expanded, None } = vscode.TreeItemCollapsibleState;
    switch (node.kind) {
      case "folder":
        return new vscode.TreeItem(node.name, Expanded);
      case "reads": {
        const item = new vscode.TreeItem("Every session reads", Expanded);
        item.description = readsDescription(node.tree);
        item.tooltip = "What each session in this folder reads before your first prompt, and again before each query.";
        item.iconPath = new vscode.ThemeIcon("book");
        return item;
      }
      case "query": {
        const item = new vscode.TreeItem("Next query of the chat", Collapsed);
        item.description = node.query === undefined ? "" : queryDescription(node.query);
        item.tooltip = "What the model will read next, by source. Tokens are estimates; the price is without a prompt cache.";
        item.iconPath = new vscode.ThemeIcon("comment-discussion");
        return item;
      }
      case "finds": {
        const item = new vscode.TreeItem("Found when needed", Collapsed);
        item.tooltip = "What the agent can search with recall, and read with add_scope.";
        item.iconPath = new vscode.ThemeIcon("search");
        return item;
      }
      case "chunk": {
        const { chunk } = node;
        const item = new vscode.TreeItem(chunk.name, (chunk.placed?.length ?? chunk.count ?? 0) > 0 ? Collapsed : None);
        item.id = node.path;
        item.description = chunkDescription(chunk);
        item.tooltip = plain(`${chunk.name}\nsource: ${chunk.source}\n${chunk.id}`);
        item.contextValue = chunk.pinned === true ? "pinned" : "chunk";
        item.iconPath = new vscode.ThemeIcon(chunk.uri !== null ? "file" : chunk.placed !== undefined || (chunk.count ?? 0) > 0 ? "folder" : "note");
        if (item.collapsibleState === None) item.command = { title: "Open", command: "cantrip.knowledge.open", arguments: [node] };
        return item;
      }
      case "row": {
        const item = new vscode.TreeItem(node.row.what, None);
        item.description = rowDescription(node.row);
        item.tooltip = plain(`${node.row.what}\n${rowDescription(node.row)}`);
        item.contextValue = node.row.chunk === undefined ? "row" : "chunkRow";
        return item;
      }
      case "more": {
        const item = new vscode.TreeItem(`${node.left} more…`, None);
        item.command = { title: "Show More", command: "cantrip.knowledge.more", arguments: [node] };
        return item;
      }
    }
  }

  /** Open the file of a document, or the text of a chunk. */
  private async open(node?: Node): Promise<void> {
    if (node?.kind === "chunk") await this.show(node.folder, node.chunk);
  }

  private async show(folder: vscode.Uri, chunk: ChunkData): Promise<void> {
    const name = chunk.name.replace(/[/\\?#]/g, "-").slice(0, 80);
    const uri =
      chunk.uri !== null
        ? vscode.Uri.parse(chunk.uri)
        : vscode.Uri.from({ scheme: SCHEME, path: `/${name}.md`, query: JSON.stringify({ uri: folder.toString(), id: chunk.id }) });
    await vscode.window.showTextDocument(uri, { preview: true });
  }

  /** The text of a chunk, for a document that cannot be changed. */
  async provideTextDocumentContent(uri: vscode.Uri): Promise<string> {
    const chunk = await this.server.request<ChunkData>("cantrip/substrate/chunk", JSON.parse(uri.query) as object);
    return `${chunk.text ?? ""}\n`;
  }

  private async pin(node: Node | undefined, remove: boolean): Promise<void> {
    if (node?.kind !== "chunk") return;
    await this.server.execute("cantrip.substrate.pin", [{ uri: node.folder.toString(), scope: node.chunk.id, remove }]);
    this.changed.fire(undefined);
  }

  private async remember(folder = vscode.workspace.workspaceFolders?.[0]?.uri): Promise<void> {
    if (folder === undefined) throw new Error("Open a folder first. Facts belong to a folder, or to all of yours.");
    const text = await vscode.window.showInputBox({
      title: "Remember for later sessions",
      prompt: "A fact or a rule. Every session reads it from the next query on.",
      placeHolder: "Ports begin at 4000.",
      ignoreFocusOut: true,
      validateInput: (said) => (said.trim() === "" ? "Enter what to remember." : undefined),
    });
    if (text === undefined) return;
    const where = await vscode.window.showQuickPick(
      [
        { label: "In this folder", everywhere: false },
        { label: "In all folders", everywhere: true },
      ],
      { title: text },
    );
    if (where === undefined) return;
    await this.server.execute("cantrip.substrate.remember", [{ uri: folder.toString(), text, everywhere: where.everywhere }]);
    this.changed.fire(undefined);
  }

  /** Search as the gate `recall` does, and open what is chosen. */
  private async search(folder = vscode.workspace.workspaceFolders?.[0]?.uri): Promise<void> {
    if (folder === undefined) throw new Error("Open a folder first.");
    const query = await vscode.window.showInputBox({ title: "Search what sessions here can know", placeHolder: "ports" });
    if (query === undefined || query.trim() === "") return;
    const found = await this.server.request<{ chunks: ChunkData[] }>("cantrip/substrate/search", { uri: folder.toString(), query });
    if (found.chunks.length === 0) {
      void vscode.window.showInformationMessage(`Nothing was found for “${query}”.`);
      return;
    }
    const items = found.chunks.map((chunk) => ({ label: chunk.name, description: chunk.source, detail: chunk.text ?? "", chunk }));
    const chosen = await vscode.window.showQuickPick(items, { title: `Found for “${query}”`, matchOnDetail: true });
    if (chosen !== undefined) await this.show(folder, chosen.chunk);
  }

  dispose(): void {
    if (this.waiting !== undefined) clearTimeout(this.waiting);
    for (const part of this.parts) part.dispose();
  }
}

function chunkNode(folder: vscode.Uri, chunk: ChunkData, above: string): ChunkNode {
  return { kind: "chunk", folder, chunk, path: `${above}/${chunk.id}` };
}

/** Text from elsewhere as plain text, never as Markdown. */
function plain(text: string): vscode.MarkdownString {
  return new vscode.MarkdownString().appendText(text);
}
