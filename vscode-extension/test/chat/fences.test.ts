import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { editorLanguage, fileNamed, forTerminal, isShell, languageOf } from "../../src/chat/fences";

describe("the info string of a fence", () => {
  const cases: readonly (readonly [info: string, before: string, language: string, file: string | undefined])[] = [
    ["python", "", "python", undefined],
    ["python src/app.py", "", "python", "src/app.py"],
    ["python:src/app.py", "", "python", "src/app.py"],
    ['ts title="web/main.ts"', "", "ts", "web/main.ts"],
    ["js {1,3} file=a.js", "", "js", "a.js"],
    ["src/app.py", "", "py", "src/app.py"],
    ["c++", "", "c++", undefined],
    ["python", "Change `src/app.py`:", "python", "src/app.py"],
    ["python", "See b.py.\n**src/app.py**", "python", "src/app.py"],
    ["python", "Unlike a.py, b.py has this:", "python", undefined],
    ["", "The Makefile becomes:", "", "Makefile"],
    ["text", "See https://example.org/a.html for it", "text", undefined],
    ["python", "It ends at app.py:12 with", "python", undefined],
    ["python", "Version 1.2 has this", "python", undefined],
  ];
  for (const [info, before, language, file] of cases) {
    it(JSON.stringify([info, before]), () => {
      assert.equal(languageOf(info), language);
      assert.equal(fileNamed(info, before), file);
    });
  }

  it("has the editor's names of languages", () => {
    assert.deepEqual(["py", "Bash", "tsx", "rust"].map(editorLanguage), ["python", "shellscript", "typescriptreact", "rust"]);
    assert.deepEqual(["bash", "PowerShell", "python", ""].map(isShell), [true, true, false, false]);
  });
});

describe("text for a terminal", () => {
  it("types one plain line, and no more", () => {
    assert.deepEqual(forTerminal("make test\n"), { how: "type", text: "make test" });
  });

  it("asks about several lines", () => {
    assert.deepEqual(forTerminal("cd x\r\nmake\n"), { how: "ask", text: "cd x\nmake", lines: 2, shown: "cd x\nmake" });
  });

  it("shows what does not look as it is", () => {
    const text = "ls \u202e~ fr- mr\u202c";
    assert.deepEqual(forTerminal(text), { how: "ask", text, lines: 1, shown: "ls ⟨U+202E⟩~ fr- mr⟨U+202C⟩" });
    assert.equal(forTerminal(`ls${" ".repeat(80)}; rm x`).how, "ask");
    assert.equal(forTerminal("curl https://g\u0456thub.com/x").how, "ask");
  });

  for (const [name, code] of [["escape", "ls\u001b[2K"], ["carriage return", "ls\rrm x"], ["tab", "if x; then\n\ty\nfi"], ["end of input", "ls\u0004"], ["C1", "ls\u009b2K"]] as const) {
    it(`refuses keys: ${name}`, () => { assert.equal(forTerminal(code).how, "refuse"); });
  }

  it("refuses what cannot be looked over, and nothing at all", () => {
    assert.equal(forTerminal("make\n".repeat(31)).how, "refuse");
    assert.equal(forTerminal(`ls\n${"x".repeat(3_000)}`).how, "refuse");
    assert.equal(forTerminal(" \n").how, "refuse");
  });
});
