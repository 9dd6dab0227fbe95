/** The hook `vscode:uninstall`: the editor runs it in node after the extension was uninstalled, before it deletes this folder. */
import { dirname } from "node:path";
import { removeMade } from "./environment/madefolders";

void removeMade(dirname(__dirname));
