import type * as acp from "@agentclientprotocol/sdk/unstable";
import * as vscode from "vscode";

type Fields = Record<string, string | number | boolean | string[]>;

/** Forms of the agent (ACP, Elicitation): asks for one field after the other with the editor's pickers and inputs. */
export class Forms {
  private readonly pages = new Map<string, vscode.CancellationTokenSource>();

  async show(request: acp.CreateElicitationRequest, signal: AbortSignal): Promise<acp.CreateElicitationResponse> {
    const source = new vscode.CancellationTokenSource();
    signal.addEventListener("abort", () => source.cancel(), { once: true });
    try {
      if (request.mode === "url") return await this.visit(request, source);
      if (request.mode !== "form") return { action: "decline" };
      const schema = (request as { requestedSchema?: acp.ElicitationSchema }).requestedSchema;
      const properties = Object.entries(schema?.properties ?? {});
      const content: Fields = {};
      for (const [index, [name, field]] of properties.entries()) {
        const required = schema?.required?.includes(name) ?? false;
        const step = properties.length > 1 ? ` (${index + 1} of ${properties.length})` : "";
        const answer = await ask(request.message, `${(field as { title?: string | null }).title ?? name}${step}`, field as Field, required, source.token);
        if (answer === undefined) return { action: "cancel" };
        if (answer !== null) content[name] = answer;
      }
      return { action: "accept", content };
    } finally {
      source.dispose();
    }
  }

  complete(id: string): void {
    this.pages.get(id)?.cancel();
  }

  private async visit(request: { url?: unknown; message: string; elicitationId?: unknown }, source: vscode.CancellationTokenSource): Promise<acp.CreateElicitationResponse> {
    const url = typeof request.url === "string" ? request.url : "";
    if (!/^https?:\/\//i.test(url)) return { action: "decline" };
    const open = "Open the page";
    const id = typeof request.elicitationId === "string" ? request.elicitationId : "";
    this.pages.set(id, source);
    try {
      // The whole address is shown, because the user's trust depends on it.
      const chosen = await vscode.window.showInformationMessage(request.message, { modal: true, detail: url }, open);
      if (chosen !== open) return { action: "decline" };
      return (await vscode.env.openExternal(vscode.Uri.parse(url, true))) ? { action: "accept" } : { action: "cancel" };
    } finally {
      this.pages.delete(id);
    }
  }
}

interface Field {
  readonly type: string;
  readonly description?: string | null;
  readonly default?: string | number | boolean | readonly string[] | null;
  readonly enum?: readonly string[] | null;
  readonly oneOf?: readonly { const: string; title: string }[] | null;
  readonly minLength?: number | null;
  readonly maxLength?: number | null;
  readonly pattern?: string | null;
  readonly minimum?: number | null;
  readonly maximum?: number | null;
  readonly items?: { readonly enum?: readonly string[]; readonly anyOf?: readonly { const: string; title: string }[]; readonly oneOf?: readonly { const: string; title: string }[] };
}

/** The answer for one field; null if it was left out, undefined if the user cancelled. */
async function ask(message: string, title: string, field: Field, required: boolean, token: vscode.CancellationToken): Promise<string | number | boolean | string[] | null | undefined> {
  const choices = field.oneOf?.map((each) => ({ label: each.title, value: each.const })) ?? field.enum?.map((each) => ({ label: each, value: each }));
  const settings = { title: message, placeHolder: field.description ?? title, ignoreFocusOut: true };
  if (field.type === "boolean") {
    const chosen = await vscode.window.showQuickPick([{ label: "Yes", value: true }, { label: "No", value: false }], { ...settings, placeHolder: title }, token);
    return chosen?.value;
  }
  if (field.type === "array") {
    const offered = field.items?.anyOf ?? field.items?.oneOf ?? field.items?.enum?.map((each) => ({ const: each, title: each })) ?? [];
    const chosen = await vscode.window.showQuickPick(offered.map((each) => ({ label: each.title, value: each.const })), { ...settings, canPickMany: true }, token);
    return chosen?.map((each) => each.value);
  }
  if (choices) {
    const chosen = await vscode.window.showQuickPick(choices, settings, token);
    return chosen?.value;
  }
  const given = await vscode.window.showInputBox(
    {
      title: message,
      prompt: field.description ?? title,
      value: field.default === undefined || field.default === null ? "" : String(field.default),
      ignoreFocusOut: true,
      validateInput: (text) => validationError(text, field, required),
    },
    token,
  );
  if (given === undefined) return undefined;
  if (given === "" && !required) return null;
  return field.type === "number" || field.type === "integer" ? Number(given) : given;
}

function validationError(text: string, field: Field, required: boolean): string | undefined {
  if (text === "") return required ? "Enter an answer." : undefined;
  if (field.type === "number" || field.type === "integer") {
    const value = Number(text);
    if (!Number.isFinite(value) || (field.type === "integer" && !Number.isInteger(value))) return field.type === "integer" ? "Enter a whole number." : "Enter a number.";
    if (field.minimum != null && value < field.minimum) return `At least ${field.minimum}.`;
    if (field.maximum != null && value > field.maximum) return `At most ${field.maximum}.`;
    return undefined;
  }
  if (field.minLength != null && text.length < field.minLength) return `At least ${field.minLength} characters.`;
  if (field.maxLength != null && text.length > field.maxLength) return `At most ${field.maxLength} characters.`;
  return undefined;
}
