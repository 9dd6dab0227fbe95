import { randomUUID } from "node:crypto";
import * as vscode from "vscode";
import type { Wanted } from "./conversation";
import { type ChatPanel, TAB, UNTITLED } from "./panel";
import type { ChatService } from "./service";

const TABS = "cantrip.chat.tabs";

/** A chat with the service that chooses its conversation. */
export type Chat = readonly [panel: ChatPanel, service: ChatService];

/** What a tab shows. */
interface Kept {
  readonly tab: string;
  /** Empty if it has no session yet. */
  readonly session: string;
  readonly title: string;
}

/**
 * The chats in editor tabs. The workspace keeps which session each shows, because what the editor keeps of its tabs may be older: in
 * a browser it saves them from time to time, and when the window closes only if there is time. So a tab may come back with an
 * earlier title and state, or not at all.
 */
export class ChatTabs implements vscode.WebviewPanelSerializer, vscode.Disposable {
  private readonly open = new Map<string, Chat>();
  private readonly parts: vscode.Disposable[];
  /** For tabs that come back without their state. */
  private readonly unknown: Kept[];

  constructor(
    private readonly memory: vscode.Memento,
    private readonly icon: vscode.Uri,
    private readonly make: (session: Wanted | undefined) => Chat,
  ) {
    const labels = vscode.window.tabGroups.all.flatMap((group) => group.tabs).filter(isChat).map((tab) => tab.label);
    const missing = this.kept.filter(({ title }) => {
      const at = labels.indexOf(title || UNTITLED);
      if (at >= 0) labels.splice(at, 1);
      return at < 0;
    });
    // As many as there are tabs with an earlier title came back. A tab that was opened later may not be known to the editor.
    this.unknown = missing.slice(0, labels.length);
    for (const kept of missing.slice(labels.length)) this.create(kept, true);
    this.parts = [
      vscode.window.registerWebviewPanelSerializer(TAB, this),
      // One that was closed before it was shown has no page yet.
      vscode.window.tabGroups.onDidChangeTabs(({ closed }) => {
        for (const tab of closed.filter(isChat)) this.forget(this.kept.find((each) => !this.open.has(each.tab) && (each.title || UNTITLED) === tab.label)?.tab);
      }),
    ];
  }

  get all(): readonly Chat[] {
    return [...this.open.values()];
  }

  /** Open a tab: a new one, or one that the editor has forgotten. */
  create(kept?: Kept, preserveFocus = false): void {
    const panel = vscode.window.createWebviewPanel(TAB, kept?.title || UNTITLED, { viewColumn: vscode.ViewColumn.Active, preserveFocus }, { retainContextWhenHidden: true });
    this.add(panel, kept ?? { tab: randomUUID(), session: "", title: "" });
  }

  deserializeWebviewPanel(panel: vscode.WebviewPanel, state: { tab?: unknown; session?: unknown } | undefined): Promise<void> {
    const closed = this.kept.filter(({ tab }) => !this.open.has(tab));
    const text = (value: unknown): string => (typeof value === "string" ? value : "");
    // A page that was not loaded yet when the window closed has kept nothing: its tab has only a title.
    const titled = (): Kept | undefined => closed.find(({ title }) => title !== "" && title === panel.title);
    const known = closed.find((each) => each.tab === state?.tab) ?? (text(state?.session) === "" ? (titled() ?? this.unknown.shift()) : undefined);
    this.add(panel, known ?? { tab: text(state?.tab) || randomUUID(), session: text(state?.session), title: panel.title === UNTITLED ? "" : panel.title });
    return Promise.resolve();
  }

  dispose(): void {
    for (const each of this.parts) each.dispose();
  }

  private add(panel: vscode.WebviewPanel, { tab, session, title }: Kept): void {
    const chat = this.make(session === "" ? undefined : { id: session, title: title || undefined });
    this.open.set(tab, chat);
    panel.iconPath = this.icon;
    // The editor may have kept an earlier title, and a tab that is not shown yet has no page that changes it.
    if (title !== "") panel.title = title;
    panel.onDidDispose(() => {
      this.open.delete(tab);
      this.forget(tab);
      for (const part of chat) part.dispose();
    });
    chat[0].shown.on((state) => { this.keep({ tab, session: state.session, title: state.title }); });
    chat[0].attach(panel, tab);
  }

  private get kept(): readonly Kept[] {
    return this.memory.get<readonly Kept[]>(TABS, []);
  }

  private keep(now: Kept): void {
    const all = this.kept;
    const old = all.find((each) => each.tab === now.tab);
    if (old?.session === now.session && old.title === now.title) return;
    void this.memory.update(TABS, old === undefined ? [...all, now] : all.map((each) => (each === old ? now : each)));
  }

  private forget(tab: string | undefined): void {
    if (tab !== undefined) void this.memory.update(TABS, this.kept.filter((each) => each.tab !== tab));
  }
}

function isChat({ input }: vscode.Tab): boolean {
  // The editor adds a prefix to the type.
  return input instanceof vscode.TabInputWebview && input.viewType.endsWith(TAB);
}
