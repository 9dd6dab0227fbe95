// What the extension's host makes of a replayed session: reads updates, a JSON object a line, and writes {ms, items}.
import { readFileSync } from "node:fs";
import { Transcript } from "../../vscode-extension/src/chat/transcript";

const updates = readFileSync(0, "utf8").split("\n").filter((line) => line !== "").map((line) => JSON.parse(line));
const begun = performance.now();
const transcript = new Transcript("/project");
transcript.replaying = true;
for (const update of updates) transcript.applyUpdate(update);
transcript.endReplay();
process.stdout.write(JSON.stringify({ ms: performance.now() - begun, items: transcript.items }));
