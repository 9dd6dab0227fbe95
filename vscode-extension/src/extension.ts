/** The entry point of the extension: makes its parts and connects them. */
import * as vscode from "vscode";
import { CastCommand } from "./cast";
import { activateChat } from "./chat";
import { Environment } from "./environment/environment";
import { Setup } from "./environment/setup";
import { KnowledgeTree } from "./knowledge/tree";
import { Comparisons } from "./loom/comparison";
import { LoomCommands } from "./loom/commands";
import { LoomEditor } from "./loom/editor";
import { LoomTree } from "./loom/tree";
import { newRecipeCommand } from "./recipes";
import { Server } from "./server/server";
import { showStatus } from "./server/status";

export function activate(context: vscode.ExtensionContext): void {
  const environment = new Environment(context);
  const server = new Server(environment);
  const editor = new LoomEditor(environment);
  const setup = new Setup(environment);
  const comparisons = new Comparisons(environment, server);
  const looms = new LoomCommands(environment, server, editor, comparisons);
  context.subscriptions.push(
    environment,
    setup,
    server,
    editor,
    comparisons,
    looms,
    new CastCommand(environment, server, looms),
    new LoomTree(server, (message) => {
      environment.output.warn(message);
    }),
    showStatus(environment, server),
    newRecipeCommand(),
  );
  context.subscriptions.push(new KnowledgeTree(server, activateChat(context, environment, setup, (compared) => { comparisons.show(compared); })));
  void server.start();
}
