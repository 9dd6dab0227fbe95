import assert from "node:assert/strict";
import { describe, it } from "node:test";
import type { ToolItem } from "../../src/chat/items";
import { questionText, changeText, subject } from "../../src/chat/questions";
import { diffHunks } from "../../src/chat/hunks";

const call = (more: Partial<ToolItem>): ToolItem => ({ type: "tool", id: "i1", callId: "c1", title: "x", kind: "execute", status: "pending", parts: [], locations: [], ...more });
const command = (text: string): ToolItem => call({ program: { text, language: "bash", left: 0 } });

describe("a question in the editor's own chat", () => {
  it("shows a command whole, with what cannot be seen spelled out", () => {
    const text = `ls -la src tests${" ".repeat(60)}; rm -rf \u202esecret\necho \`date\` \`\`\` # ${"x".repeat(5000)}; rm last`;
    const shown = subject(command(text));
    assert.equal(questionText(command(text)), "Run this command?");
    assert.match(shown, /⟨60 spaces⟩; rm -rf ⟨U\+202E⟩secret/);
    assert.match(shown, /^```` echo `date` ``` # x{5000}; rm last ````$/m);
    assert.match(shown, /They are marked\./);
  });

  it("is no code block, whose long lines would be cut off at its edge", () => {
    assert.equal(subject(command("ls\n\nrm x")), "` ls `  \n  \n` rm x `");
  });

  it("shows every line of a change, and breaks those that are long", () => {
    const after = `${Array.from({ length: 200 }, (_, n) => `line ${n}`).join("\n")}\n${"y".repeat(100)}; rm\u200b last\n`;
    const part = diffHunks("/p/a.sh", "a.sh", null, after);
    const shown = changeText(part);
    for (let n = 0; n < 200; n += 1) assert.ok(shown.includes(`+line ${n}\n`), `line ${n}`);
    assert.match(shown, /^\+y{72}\n\+↪ y{28}; rm⟨U\+200B⟩ last$/m);
    assert.equal(questionText(call({ kind: "edit", parts: [part] })), "Create this file?");
  });

  it("counts what it leaves out of a change", () => {
    const after = Array.from({ length: 3100 }, (_, n) => `line ${n}`).join("\n");
    assert.match(changeText(diffHunks("/p/a", "a", null, after)), /Not all of it is shown here: 100 more lines\./);
  });

  it("asks about a host of the network by the program and the host", () => {
    const item = call({ kind: "fetch", name: "bash_network", title: "`npm install` wants npm.example:443" });
    assert.equal(questionText(item), "Let the command reach this host?");
    assert.match(subject(item), /npm install` wants npm\.example:443/);
  });

  it("names a call without a program by its title and its arguments", () => {
    assert.equal(subject(call({ kind: "fetch", title: "Fetch *x*", input: '{"url": "a"}' })), '` Fetch *x* `\n\n` {"url": "a"} `');
  });
});
