import type * as acp from "@agentclientprotocol/sdk/unstable";
import * as vscode from "vscode";
import type { Agent } from "../acp/agent";

type Method = acp.AuthMethod;

/** Ask the user for a key, in a terminal if the agent supports it. True if the request can be repeated. */
export async function signIn(agent: Agent, program: () => Promise<{ command: string; args: readonly string[]; env?: Readonly<Record<string, string>> | undefined }>): Promise<boolean> {
  const { about } = await agent.connection();
  const methods: readonly Method[] = about.authMethods ?? [];
  if (methods.length === 0) return false;
  const picked = await vscode.window.showQuickPick(
    // Methods that ask for the key themselves come first.
    [...methods].sort((a, b) => Number(kindOf(b) === "terminal") - Number(kindOf(a) === "terminal")).map((method) => ({ label: method.name, detail: method.description ?? "", method })),
    { title: "Cantrip needs a key for the model", placeHolder: "How do you want to give it?", ignoreFocusOut: true, matchOnDetail: true },
  );
  if (picked === undefined) return false;
  const { method } = picked;
  if (kindOf(method) === "terminal" && !(await atTerminal(method, await program()))) return false;
  // The agent reads its environment only at its start.
  await agent.stop();
  try {
    await agent.authenticate(method.id);
    return true;
  } catch (problem) {
    const words = problem instanceof Error ? problem.message : String(problem);
    void vscode.window.showWarningMessage(`There is still no key: ${words}`);
    return false;
  }
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
