import assert from "node:assert/strict";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, test } from "node:test";
import { candidates, expand, inside, search, which, type Places } from "../src/environment/search";

const folder = mkdtempSync(join(tmpdir(), "cantrip-search-"));
after(() => {
  rmSync(folder, { recursive: true, force: true });
});

function program(path: string, text = "echo cantrip 1.0.0"): string {
  const file = join(folder, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, `#!/bin/sh\n${text}\n`);
  chmodSync(file, 0o755);
  return file;
}

const work = join(folder, "work");
const venv = program("work/.venv/bin/cantrip");
const own = program("own/bin/python", 'shift 2; echo cantrip 1.2.3');
const onPath = program("bin/cantrip");
const uvx = program("bin/uvx");
const bare: Places = {
  path: "",
  python: "",
  folders: [work],
  trusted: true,
  own: join(folder, "own"),
  useUvx: false,
  installSource: "cantrip-acp",
  env: { PATH: join(folder, "bin") },
};
const origins = (places: Places) => candidates(places).map((each) => each.command);

test("the order in which Cantrip is looked for", () => {
  const python = join(folder, "elsewhere/python");
  // What pip put into the user's own folder comes last, on machines that have it.
  const found = origins({ ...bare, interpreter: python, useUvx: true });
  assert.deepEqual(found, [python, venv, own, onPath, uvx]);
});

test("a setting stands alone", () => {
  assert.deepEqual(origins({ ...bare, path: "/opt/cantrip", python: "/opt/python" }), ["/opt/cantrip"]);
  const [only, ...more] = candidates({ ...bare, python: "${workspaceFolder}/py" });
  assert.deepEqual(more, []);
  assert.deepEqual([only?.command, ...(only?.args ?? [])], [join(work, "py"), "-m", "cantrip_acp"]);
});

test("a workspace that is not trusted chooses no program", () => {
  const inWorkspace = join(work, ".venv/bin/python");
  const places: Places = { ...bare, trusted: false, interpreter: inWorkspace, env: { PATH: `${join(work, ".venv/bin")}:${join(folder, "bin")}` } };
  assert.deepEqual(origins(places), [own, onPath]);
});

test("relative entries of PATH lead nowhere", () => {
  const before = process.cwd();
  process.chdir(folder);
  try {
    const places = { trusted: true, env: { PATH: "bin:." } };
    const found = which("uvx", places);
    assert.ok(found === undefined || !found.startsWith(folder));
  } finally {
    process.chdir(before);
  }
});

test("the first that answers is taken, and each that does not is explained", async () => {
  const broken = program("broken/bin/python", "echo No module named cantrip_acp >&2; exit 1");
  const found = await search({ ...bare, interpreter: broken }, folder);
  assert.ok("version" in found);
  assert.equal(found.command, venv);
  const none = await search({ ...bare, python: broken }, folder);
  assert.ok(!("version" in none));
  assert.match(none[0]?.why ?? "", /without the package/);
});

test("uvx is given the source, and only where it was asked for", () => {
  const last = candidates({ ...bare, useUvx: true }).at(-1);
  assert.deepEqual(last?.args, ["--from", "cantrip-acp", "cantrip"]);
  assert.ok(!origins(bare).includes(uvx));
  assert.ok(!origins({ ...bare, useUvx: true, installSource: undefined }).includes(uvx));
});

test("paths are expanded", () => {
  assert.equal(expand("~/x", undefined), join(homedir(), "x"));
  assert.equal(expand("bin/cantrip", "/w"), "/w/bin/cantrip");
  assert.equal(expand("cantrip", "/w"), "cantrip");
  assert.ok(inside("/w", "/w/a"));
  assert.ok(!inside("/w", "/wider/a"));
  assert.ok(!inside("/w", "/w"));
});
