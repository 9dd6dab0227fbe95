import type * as acp from "@agentclientprotocol/sdk/unstable";
import * as vscode from "vscode";
import type { Agent } from "../acp/agent";
import { modelDetail, PROVIDERS } from "./state";

type Method = acp.AuthMethod;

/** A choice of the list: a way to give a key, or a model on this machine, which needs none. */
interface Way extends vscode.QuickPickItem {
  readonly method: Method;
  readonly crystal?: string;
}

/**
 * Ask the user for a key, in a terminal if the agent supports it, or for a model on this machine, which needs no key. True
 * if the request can be repeated.
 */
export async function signIn(agent: Agent, program: () => Promise<{ command: string; args: readonly string[]; env?: Readonly<Record<string, string>> | undefined }>): Promise<boolean> {
  const { about } = await agent.connection();
  const methods: readonly Method[] = about.authMethods ?? [];
  if (methods.length === 0) return false;
  const picked = await vscode.window.showQuickPick(
    ways(agent, methods),
    { title: "Cantrip needs a model", placeHolder: "Use a model of this machine, or give a key", ignoreFocusOut: true, matchOnDetail: true },
  );
  if (picked === undefined) return false;
  const { method, crystal } = picked;
  if (kindOf(method) === "terminal" && !(await atTerminal(method, await program()))) return false;
  // The agent reads its environment only at its start.
  await agent.stop();
  try {
    await agent.authenticate(method.id, crystal);
    return true;
  } catch (problem) {
    const words = problem instanceof Error ? problem.message : String(problem);
    void vscode.window.showWarningMessage(`There is still no model: ${words}`);
    return false;
  }
}

/** Models of this machine first, then ways to give a key, of which those that ask for it themselves come first. */
async function ways(agent: Agent, methods: readonly Method[]): Promise<Way[]> {
  const keys = [...methods].sort((a, b) => Number(kindOf(b) === "terminal") - Number(kindOf(a) === "terminal")).map((method): Way => ({ label: method.name, detail: method.description ?? "", method }));
  const models = await agent.localModels();
  if (models.length === 0) return keys;
  const local: Method = { id: "local", name: "A model of this machine" };
  const separator = (label: string): Way => ({ label, kind: vscode.QuickPickItemKind.Separator, method: local });
  return [
    separator("on this machine, without a key"),
    ...models.map((model): Way => ({ label: `$(device-desktop) ${model.name}`, description: PROVIDERS[model.provider] ?? model.provider, detail: modelDetail(model), method: local, crystal: model.crystal })),
    separator("with a key"),
    ...keys,
  ];
}

function kindOf(method: Method): string | undefined {
  return (method as { type?: string }).type;
}

/** Run the agent in a terminal with the arguments of the method. True if it succeeded. */
async function atTerminal(
  method: { name: string; args?: readonly string[] | undefined; env?: Record<string, string> | undefined },
  program: { command: string; args: readonly string[]; env?: Readonly<Record<string, string>> | undefined },
): Promise<boolean> {
  const terminal = vscode.window.createTerminal({
    name: method.name,
    shellPath: program.command,
    shellArgs: [...program.args, ...(method.args ?? [])],
    env: { ...program.env, ...method.env },
    iconPath: new vscode.ThemeIcon("key"),
  });
  terminal.show();
  return new Promise((resolve) => {
    const closed = vscode.window.onDidCloseTerminal((each) => {
      if (each !== terminal) return;
      closed.dispose();
      resolve((terminal.exitStatus?.code ?? 1) === 0);
    });
  });
}
