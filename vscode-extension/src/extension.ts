/** Where the editor begins: makes the parts, and hands each what it needs. */
import * as vscode from "vscode";
import { activateChat } from "./chat";
import { Environment } from "./environment/environment";
import { Setup } from "./environment/setup";

export function activate(context: vscode.ExtensionContext): void {
  const environment = new Environment(context);
  context.subscriptions.push(environment, new Setup(environment));
  activateChat(context, environment);
}
