// What the editor's own chat wants before it shows itself, and which Copilot brings elsewhere: somebody to ask by default, and a
// model. Neither of them does anything.
const vscode = require("vscode");

exports.activate = async (context) => {
  const about = { vendor: "cantrip-tests", name: "No Model", family: "none", version: "1", maxInputTokens: 1000, maxOutputTokens: 1000, isDefault: true, isUserSelectable: true };
  const model = {
    provideLanguageModelResponse: () => Promise.reject(new Error("this model says nothing")),
    provideTokenCount: () => Promise.resolve(1),
  };
  context.subscriptions.push(
    vscode.lm.registerChatModelProvider("cantrip-tests-none", model, about),
    vscode.chat.createChatParticipant("default.chat", () => Promise.resolve({})),
  );
  // The window's answer to this comes after it has heard of the participant.
  await vscode.commands.executeCommand("setContext", "cantrip-tests.chat", true);
  const sign = vscode.window.createStatusBarItem();
  sign.text = "Default chat is ready";
  sign.show();
  context.subscriptions.push(sign);
};
