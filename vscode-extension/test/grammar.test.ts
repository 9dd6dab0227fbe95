/** The grammars as VS Code reads them: vscode-textmate over the real embedded grammars. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { before, test } from "node:test";
import * as oniguruma from "vscode-oniguruma";
import * as textmate from "vscode-textmate";

const root = join(__dirname, "..");
const require_ = createRequire(join(root, "package.json"));
const EMBEDDED: Record<string, string> = { "text.html.markdown": "markdown", "source.python": "python", "source.shell": "shellscript", "source.json": "json" };
let registry: textmate.Registry;

before(async () => {
  await oniguruma.loadWASM(readFileSync(require_.resolve("vscode-oniguruma/release/onig.wasm")).buffer);
  registry = new textmate.Registry({
    onigLib: Promise.resolve({
      createOnigScanner: (patterns) => new oniguruma.OnigScanner(patterns),
      createOnigString: (text) => new oniguruma.OnigString(text),
    }),
    loadGrammar: (scope) => {
      const own = /^source\.cantrip\.(\w+)$/.exec(scope)?.[1];
      const file = own !== undefined ? join(root, "languages", `cantrip-${own}.tmLanguage.json`) : undefined;
      const embedded = EMBEDDED[scope];
      const path = file ?? (embedded === undefined ? undefined : join(root, "node_modules/tm-grammars/grammars", `${embedded}.json`));
      return Promise.resolve(path === undefined ? null : textmate.parseRawGrammar(readFileSync(path, "utf8"), path));
    },
  });
});

/** The innermost scopes of the first place where a text stands. */
async function scopes(language: "yaml" | "loom", text: string, wanted: string): Promise<string> {
  const grammar = await registry.loadGrammar(`source.cantrip.${language}`);
  assert.ok(grammar !== null);
  let stack = textmate.INITIAL;
  for (const line of text.split("\n")) {
    const { tokens, ruleStack } = grammar.tokenizeLine(line, stack);
    stack = ruleStack;
    const at = line.indexOf(wanted);
    if (at < 0) continue;
    return tokens.find((token) => token.startIndex <= at && at < token.endIndex)?.scopes.join(" ") ?? "";
  }
  assert.fail(`${wanted} is not in the text`);
}

const YAML = `name: a # why
crystal: anthropic:claude
call:
  system_prompt: |
    You are **careful**.

    - One
  temperature: 0.2
circle:
  gates: [done, {name: read_file, root: "da\\\\ta"}]
  wards:
    - {max_turns: 10}
    - {bash_network: false}
crystals:
  responses:
    - code: |
        import os
      bash: |
        echo $HOME
    - content: |
        Some words
description: >-
  folded
  text
after: 1
`;

test("a recipe in YAML", async () => {
  const has = async (wanted: string, scope: RegExp) => { assert.match(await scopes("yaml", YAML, wanted), scope, wanted); };
  await has("name", /keyword\.other\.section/);
  await has("# why", /comment\.line/);
  await has("anthropic", /support\.type\.provider/);
  await has("careful", /meta\.embedded\.block\.markdown .*bold/);
  await has("temperature", /^source\.cantrip\.yaml entity\.name\.tag/);
  await has("0.2", /constant\.numeric/);
  await has("done", /string\.unquoted/);
  await has("root", /entity\.name\.tag/);
  await has("10", /constant\.numeric/);
  await has("false", /constant\.language/);
  await has("import", /meta\.embedded\.block\.python/);
  await has("echo $HOME", /meta\.embedded\.block\.shellscript/);
  await has("Some words", /meta\.embedded\.block\.markdown/);
  await has("folded", /string\.unquoted\.block/);
  await has("after", /^source\.cantrip\.yaml entity\.name\.tag/);
});

test("a loom", async () => {
  const line = '{"type":"cast","id":"c_1","intent":"hi"}\n{"type":"turn","id":"t_1"}';
  assert.match(await scopes("loom", line, "cast"), /keyword\.other\.record/);
  assert.match(await scopes("loom", line, "t_1"), /string\.quoted/);
});
