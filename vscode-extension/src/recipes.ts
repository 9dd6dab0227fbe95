/** The command for a new recipe: creates a file that can be cast, in `.cantrip/` of the workspace. */
import * as vscode from "vscode";

const TEXT = (name: string) => `name: ${name}
description: Says hello.
call:
  system_prompt: |
    You are a friendly greeter.
circle:
  medium: conversation
  gates: [done]
  wards:
    - {max_turns: 5}
# intent: Say hello.
`;

export function newRecipeCommand(): vscode.Disposable {
  return vscode.commands.registerCommand("cantrip.newRecipe", async () => {
    const folders = vscode.workspace.workspaceFolders ?? [];
    const folder = folders.length > 1 ? await vscode.window.showWorkspaceFolderPick() : folders[0];
    if (folder === undefined) {
      const open = "Open a Folder";
      const chosen = await vscode.window.showInformationMessage("A recipe is a file in a folder. Open a folder first.", open);
      if (chosen === open) await vscode.commands.executeCommand("vscode.openFolder");
      return;
    }
    const name = await vscode.window.showInputBox({
      title: "New Recipe",
      prompt: "Its name",
      value: "greeter",
      validateInput: (text) =>
        /^[A-Za-z0-9][\w.-]*$/.test(text.trim()) ? undefined : "Letters, digits, dots and dashes, a letter or digit first.",
    });
    if (name === undefined) return;
    const file = vscode.Uri.joinPath(folder.uri, ".cantrip", `${name.trim()}.cantrip.yaml`);
    try {
      await vscode.workspace.fs.stat(file);
    } catch {
      await vscode.workspace.fs.writeFile(file, new TextEncoder().encode(TEXT(name.trim())));
    }
    await vscode.window.showTextDocument(file);
  });
}
