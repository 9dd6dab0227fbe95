/** The language status item: the Cantrip version that serves the file, or what to do if there is none. */
import * as vscode from "vscode";
import { isFound, type Environment } from "../environment/environment";
import type { Server } from "./server";

const SELECTOR: vscode.DocumentSelector = [
  { language: "cantrip" },
  { language: "cantrip-loom" },
];

export function showStatus(environment: Environment, server: Server): vscode.Disposable {
  const item = vscode.languages.createLanguageStatusItem("cantrip.status", SELECTOR);
  item.name = "Cantrip";
  let latest = 0;
  const draw = async (state: "off" | "starting" | "on") => {
    const mine = ++latest;
    item.busy = state === "starting";
    if (state === "starting") {
      item.text = "Cantrip";
      item.detail = "starting";
      item.severity = vscode.LanguageStatusSeverity.Information;
      delete item.command;
      return;
    }
    const asked = await environment.find();
    if (mine !== latest) return;
    if (!isFound(asked)) {
      item.text = "Cantrip is missing";
      item.detail = asked[0]?.why ?? "It was found in no environment and not on PATH.";
      item.severity = vscode.LanguageStatusSeverity.Warning;
      item.command = { title: "Set Up", command: "cantrip.setup" };
    } else if (state === "on") {
      item.text = `Cantrip ${asked.version}`;
      item.detail = asked.origin;
      item.severity = vscode.LanguageStatusSeverity.Information;
      item.command = { title: "Restart", command: "cantrip.restart" };
    } else {
      item.text = "Cantrip stopped";
      item.detail = "The language server does not run.";
      item.severity = vscode.LanguageStatusSeverity.Error;
      item.command = { title: "Show Output", command: "cantrip.showOutput" };
    }
  };
  return vscode.Disposable.from(
    item,
    server.onDidChange((state) => void draw(state)),
  );
}
