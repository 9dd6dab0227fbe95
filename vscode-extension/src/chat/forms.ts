import type * as acp from "@agentclientprotocol/sdk/unstable";
import { randomUUID } from "node:crypto";
import * as vscode from "vscode";
import { Signal } from "../acp/signal";
import { checked, type Content, type FormField, fieldsOf, oneLine, problemOf, typed, type Value, withoutMarks } from "./formfields";

/** A form of the agent that waits for the user's answer in the chat. */
export interface OpenForm {
  readonly id: string;
  readonly session: string;
  /** The call that asks, if the client knows it. */
  readonly call: string | undefined;
  readonly message: string;
  readonly fields: readonly FormField[];
}

/** How a form was closed: with the answer, skipped by the user, or by something else. */
export type FormResult = { readonly how: "answered"; readonly content: Content } | { readonly how: "skipped" | "closed" };

/**
 * Forms and pages of the agent (ACP, Elicitation). A form of a session that the chat shows is a card in its conversation. Any
 * other asks with the editor's inputs: one of the editor's own chat, whose messages have no fields, and one without a session.
 */
export class Forms {
  readonly asked = new Signal<OpenForm>();
  readonly settled = new Signal<{ readonly form: OpenForm; readonly result: FormResult }>();
  private readonly open = new Map<string, { readonly form: OpenForm; readonly settle: (result: FormResult) => void }>();
  private readonly pages = new Map<string, vscode.CancellationTokenSource>();

  constructor(private readonly hasChat: (session: string) => boolean) {}

  async show(request: acp.CreateElicitationRequest, signal: AbortSignal): Promise<acp.CreateElicitationResponse> {
    const { mode, message, requestedSchema, sessionId, toolCallId } = request as acp.CreateElicitationRequest & Readonly<Record<string, unknown>>;
    const fields = mode === "form" ? fieldsOf(requestedSchema) : undefined;
    if (fields !== undefined && typeof sessionId === "string" && this.hasChat(sessionId)) {
      return this.ask({ id: randomUUID(), session: sessionId, call: typeof toolCallId === "string" ? toolCallId : undefined, message, fields }, signal);
    }
    const source = new vscode.CancellationTokenSource();
    signal.addEventListener("abort", () => source.cancel(), { once: true });
    try {
      if (mode === "url") return await this.visit(request, source);
      return fields === undefined ? { action: "decline" } : await pick(message, fields, source.token);
    } finally {
      source.dispose();
    }
  }

  /** The agent says that what was to be done on a page is done. */
  complete(id: string): void {
    this.pages.get(id)?.cancel();
  }

  /** Answer a form. Returns false if it is not open, or if the answer does not fit it. */
  answer(id: string, given: Readonly<Record<string, unknown>>): boolean {
    const entry = this.open.get(id);
    const content = entry && checked(entry.form.fields, given);
    if (entry === undefined || content === undefined) return false;
    entry.settle({ how: "answered", content });
    return true;
  }

  skip(id: string): void {
    this.open.get(id)?.settle({ how: "skipped" });
  }

  cancel(session: string): void {
    for (const { form, settle } of [...this.open.values()]) if (form.session === session) settle({ how: "closed" });
  }

  of(session: string): OpenForm[] {
    return [...this.open.values()].flatMap(({ form }) => (form.session === session ? [form] : []));
  }

  private ask(form: OpenForm, signal: AbortSignal): Promise<acp.CreateElicitationResponse> {
    return new Promise((resolve) => {
      const settle = (result: FormResult): void => {
        if (!this.open.delete(form.id)) return;
        signal.removeEventListener("abort", taken);
        resolve(result.how === "answered" ? { action: "accept", content: mutable(result.content) } : { action: result.how === "skipped" ? "decline" : "cancel" });
        this.settled.fire({ form, result });
      };
      const taken = (): void => { settle({ how: "closed" }); };
      this.open.set(form.id, { form, settle });
      signal.addEventListener("abort", taken, { once: true });
      if (signal.aborted) return taken();
      this.asked.fire(form);
    });
  }

  private async visit(request: { url?: unknown; message: string; elicitationId?: unknown }, source: vscode.CancellationTokenSource): Promise<acp.CreateElicitationResponse> {
    const url = typeof request.url === "string" && URL.canParse(request.url) ? new URL(request.url) : undefined;
    if (url?.protocol !== "https:" && url?.protocol !== "http:") return { action: "decline" };
    const open = "Open the page";
    const id = typeof request.elicitationId === "string" ? request.elicitationId : "";
    this.pages.set(id, source);
    try {
      // The whole address is shown, because the user's trust depends on it; letters that look like others as their codes.
      const chosen = await vscode.window.showInformationMessage(request.message, { modal: true, detail: url.href }, open);
      if (chosen !== open) return { action: "decline" };
      return (await vscode.env.openExternal(vscode.Uri.parse(url.href, true))) ? { action: "accept" } : { action: "cancel" };
    } finally {
      this.pages.delete(id);
    }
  }
}

/** Ask for one field after the other with the editor's inputs. */
async function pick(message: string, fields: readonly FormField[], token: vscode.CancellationToken): Promise<acp.CreateElicitationResponse> {
  const given: Record<string, Value> = {};
  for (const [index, field] of fields.entries()) {
    const step = fields.length > 1 ? ` (${index + 1} of ${fields.length})` : "";
    const settings = { title: oneLine(withoutMarks(message)), ignoreFocusOut: true };
    const about = `${field.about || field.label}${step}`;
    const choices = field.kind === "boolean" ? [{ label: "Yes", value: "true" }, { label: "No", value: "false" }] : field.choices.map((each) => ({ label: withoutMarks(each.title), description: each.about, value: each.value }));
    let value: Value | undefined;
    if (field.kind === "choices") {
      value = (await vscode.window.showQuickPick(choices, { ...settings, placeHolder: about, canPickMany: true }, token))?.map((each) => each.value);
    } else if (field.kind === "choice" || field.kind === "boolean") {
      const chosen = (await vscode.window.showQuickPick(choices, { ...settings, placeHolder: about }, token))?.value;
      value = field.kind === "boolean" && chosen !== undefined ? chosen === "true" : chosen;
    } else {
      const words = await vscode.window.showInputBox(
        { ...settings, prompt: about, value: String(field.preset ?? ""), password: field.kind === "secret", validateInput: (now) => problemOf(field, typed(field, now)) || undefined },
        token,
      );
      if (words === undefined) return { action: "cancel" };
      given[field.name] = typed(field, words) ?? "";
      continue;
    }
    if (value === undefined) return { action: "cancel" };
    given[field.name] = value;
  }
  const content = checked(fields, given);
  return content === undefined ? { action: "cancel" } : { action: "accept", content: mutable(content) };
}

function mutable(content: Content): Record<string, string | number | boolean | string[]> {
  return Object.fromEntries(Object.entries(content).map(([name, value]) => [name, typeof value === "object" ? [...value] : value]));
}
