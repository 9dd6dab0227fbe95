/** The interpreter that the Python extension has selected, where that extension is installed and already at work. */
import * as vscode from "vscode";

interface PythonApi {
  readonly environments?: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { readonly path: string };
    readonly onDidChangeActiveEnvironmentPath?: vscode.Event<unknown>;
  };
}

const ID = "ms-python.python";

function api(): PythonApi | undefined {
  const extension = vscode.extensions.getExtension<PythonApi>(ID);
  return extension?.isActive === true ? extension.exports : undefined;
}

/** Its path; undefined where there is no such extension or nothing is selected. */
export function selectedInterpreter(): string | undefined {
  const path = api()?.environments?.getActiveEnvironmentPath(vscode.workspace.workspaceFolders?.[0]?.uri).path;
  // Where nothing is selected it is the bare word.
  return path !== undefined && /[\\/]/.test(path) ? path : undefined;
}

/** Starts the Python extension where there is one, and says when its choice changes. */
export function whenInterpreterChanges(changed: () => void): vscode.Disposable {
  const parts: vscode.Disposable[] = [];
  const extension = vscode.extensions.getExtension<PythonApi>(ID);
  if (extension !== undefined) {
    void Promise.resolve(extension.activate()).then(
      () => {
        const event = api()?.environments?.onDidChangeActiveEnvironmentPath;
        if (event !== undefined) parts.push(event(changed));
        if (selectedInterpreter() !== undefined) changed();
      },
      () => undefined, // it says itself why it does not start
    );
  }
  return new vscode.Disposable(() => {
    for (const part of parts) part.dispose();
  });
}
