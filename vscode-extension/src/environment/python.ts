/** The interpreter that is selected in the Python extension, if that extension is installed and active. */
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

/** The path of the interpreter; undefined without the extension or a selection. */
export function selectedInterpreter(): string | undefined {
  const path = api()?.environments?.getActiveEnvironmentPath(vscode.workspace.workspaceFolders?.[0]?.uri).path;
  // Without a selection, the path is only the word.
  return path !== undefined && /[\\/]/.test(path) ? path : undefined;
}

/** Activate the Python extension if it is installed, and call back when its selection changes. */
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
      () => undefined, // the extension reports its own error
    );
  }
  return new vscode.Disposable(() => {
    for (const part of parts) part.dispose();
  });
}
