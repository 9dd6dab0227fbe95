import assert from "node:assert/strict";
import { existsSync, mkdtempSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { install } from "../src/environment/install";

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

test("without a Python it says where to get one", async () => {
  const empty = join(folder, "empty");
  mkdirSync(empty);
  writeFileSync(join(empty, "readme"), "");
  const done = await install(wanted("x", { env: { PATH: empty, HOME: empty } }), () => undefined);
  // A Python in the user's own folder of programs counts, too.
  if (!done.ok) assert.match(done.why ?? "", /python\.org|could not be/);
});

test("a cancelled set-up says nothing", async () => {
  const stop = new AbortController();
  stop.abort();
  const done = await install(wanted("x", { signal: stop.signal }), () => undefined);
  assert.equal(done.ok, false);
  assert.equal(existsSync(join(folder, "venv")), false);
});
