import assert from "node:assert/strict";
import { copyFileSync, existsSync, mkdtempSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { install, withExtra } from "../src/environment/install";
import { probe } from "../src/environment/program";
import { byPython, pythonOf } from "../src/environment/search";

const folder = mkdtempSync(join(tmpdir(), "cantrip-install-"));
after(() => {
  rmSync(folder, { recursive: true, force: true });
});

const wanted = (source: string, more: Partial<Parameters<typeof install>[0]> = {}) => ({
  folder: join(folder, "venv"),
  source,
  cwd: folder,
  env: { ...process.env, PIP_NO_INDEX: "1", PIP_NO_BUILD_ISOLATION: "1", UV_OFFLINE: "1", PIP_DISABLE_PIP_VERSION_CHECK: "1" },
  signal: new AbortController().signal,
  ...more,
});

test("what cannot be installed says so in one sentence, and leaves nothing behind", async () => {
  const said: string[] = [];
  const done = await install(wanted("a-package-that-nobody-has"), (message) => said.push(message));
  assert.equal(done.ok, false);
  const [first = ""] = (done.why ?? "").split("\n");
  // Where this machine's Python makes no environments, that is what is said.
  assert.match(first, /could not be (installed|created): /);
  assert.equal(existsSync(join(folder, "venv")), false);
  assert.equal(said[0], "looking for Python 3.11 or later");
});

test("the package that comes with the extension is installed without an index", { timeout: 240_000 }, async (context) => {
  const wheels = join(process.cwd(), "wheels");
  if (!existsSync(wheels)) {
    context.skip("the dependencies' wheels are not there (npm run wheels)");
    return;
  }
  const packed = join(folder, "packed");
  mkdirSync(packed);
  for (const name of readdirSync(wheels)) if (name.endsWith(".whl")) copyFileSync(join(wheels, name), join(packed, name));
  const own = join(process.cwd(), "dist", "wheels");
  const [wheel = ""] = existsSync(own) ? readdirSync(own).filter((name) => name.startsWith("cantrip_acp-")) : [];
  if (wheel === "") {
    context.skip("the package's wheel is not built (node wheels.mjs)");
    return;
  }
  copyFileSync(join(own, wheel), join(packed, wheel));
  const said: string[] = [];
  const env = { ...process.env, PIP_INDEX_URL: "http://127.0.0.1:9/", PIP_EXTRA_INDEX_URL: "", PIP_FIND_LINKS: "", UV_INDEX_URL: "http://127.0.0.1:9/", UV_OFFLINE: "1" };
  const done = await install(wanted("", { wheels: packed, env, folder: join(folder, "offline") }), (message) => said.push(message));
  assert.deepEqual(done, { ok: true });
  assert.equal(said.at(-1), "installing Cantrip from the extension");
  const answer = await probe(byPython(pythonOf(join(folder, "offline")), "test"), folder, env);
  assert.ok("version" in answer, JSON.stringify(answer));
});

test("without a Python it says where to get one", async () => {
  const empty = join(folder, "empty");
  mkdirSync(empty);
  writeFileSync(join(empty, "readme"), "");
  const done = await install(wanted("x", { env: { PATH: empty, HOME: empty } }), () => undefined);
  // A Python in the user's own folder of programs counts, too.
  if (!done.ok) assert.match(done.why ?? "", /python\.org|could not be/);
});

test("without a package in the extension nothing comes from an index", async () => {
  const done = await install(wanted("x", { source: "", wheels: join(folder, "no-wheels") }), () => undefined);
  assert.ok(!done.ok);
  assert.match(done.why ?? "", /cantrip\.installSource/);
  assert.equal(existsSync(join(folder, "venv")), false);
});

test("a cancelled set-up says nothing", async () => {
  const stop = new AbortController();
  stop.abort();
  const done = await install(wanted("x", { signal: stop.signal }), () => undefined);
  assert.equal(done.ok, false);
  assert.equal(existsSync(join(folder, "venv")), false);
});

test("the package is installed with what an editor needs, unless extras are named", () => {
  const given = ["cantrip-acp", "cantrip-acp==0.2", "/x/cantrip_acp-0.1.0-py3-none-any.whl", "cantrip-acp[lsp]", "git+https://example.org/x", "cantrip-acp-other"];
  assert.deepEqual(given.map(withExtra), [
    "cantrip-acp[editor]",
    "cantrip-acp[editor]==0.2",
    "/x/cantrip_acp-0.1.0-py3-none-any.whl[editor]",
    "cantrip-acp[lsp]",
    "git+https://example.org/x",
    "cantrip-acp-other",
  ]);
});
