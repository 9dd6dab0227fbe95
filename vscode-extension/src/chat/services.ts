/** The list of a session's services: what goes on in the background, with its output and a way to stop it. */
import * as vscode from "vscode";
import type { Service, Session } from "../acp/session";

const STOP: vscode.QuickInputButton = { iconPath: new vscode.ThemeIcon("debug-stop"), tooltip: "Stop" };

interface Item extends vscode.QuickPickItem {
  readonly service: Service;
}

/** Let the user look at the services: choosing one opens what it printed last, its button stops it. */
export async function showServices(session: Session): Promise<void> {
  const services = await session.services();
  if (services.length === 0) {
    void vscode.window.showInformationMessage("This session has no services. The agent starts them: dev servers, watchers, databases, long builds.");
    return;
  }
  const pick = vscode.window.createQuickPick<Item>();
  pick.title = "Services";
  pick.placeholder = "Choose one to see what it printed last";
  pick.matchOnDescription = true;
  pick.items = services.map(itemOf);
  pick.onDidTriggerItemButton(({ item }) => {
    void session.stopService(item.service.id).then((left) => { pick.items = left.map(itemOf); });
  });
  pick.onDidAccept(() => {
    const [chosen] = pick.selectedItems;
    pick.hide();
    if (chosen !== undefined) void showOutput(session, chosen.service);
  });
  pick.onDidHide(() => { pick.dispose(); });
  pick.show();
}

function itemOf(service: Service): Item {
  return { label: service.id, description: service.command.replace(/\s+/gu, " "), detail: service.state, buttons: service.running ? [STOP] : [], service };
}

async function showOutput(session: Session, service: Service): Promise<void> {
  const output = await session.serviceOutput(service.id);
  const document = await vscode.workspace.openTextDocument({ language: "log", content: output === "" ? `${service.id} has printed nothing yet.\n` : `${output}\n` });
  await vscode.window.showTextDocument(document, { preview: true });
}
