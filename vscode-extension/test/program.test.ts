import assert from "node:assert/strict";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { compareVersions, OLDEST, probe, run, commandLine, type Program } from "../src/environment/program";

const folder = mkdtempSync(join(tmpdir(), "cantrip-program-"));
after(() => {
  rmSync(folder, { recursive: true, force: true });
});

/** A program that is a shell script. */
function script(name: string, text: string, mode = 0o755): Program {
  const command = join(folder, name);
  writeFileSync(command, `#!/bin/sh\n${text}\n`);
  chmodSync(command, mode);
  return { command, args: [], origin: "the test" };
}

async function refusal(program: Program): Promise<string> {
  const answer = await probe(program, folder);
  assert.ok("why" in answer, "it was taken");
  return answer.why;
}

test("versions compare by their numbers", () => {
  assert.ok(compareVersions("0.10.0", "0.9.9") > 0);
  assert.ok(compareVersions("1.0", "1.0.1") < 0);
  assert.equal(compareVersions("2.0.0", "2.0"), 0);
  assert.ok(compareVersions("0.1.0.dev1", "0.1.0") >= 0);
});

test("a program that says its version is taken", async () => {
  const found = await probe(script("good", `echo "cantrip ${OLDEST}"`), folder);
  assert.ok("version" in found);
  assert.equal(found.version, OLDEST);
});

test("each way to fail says what it was and what to do", async () => {
  assert.match(await refusal({ command: join(folder, "nowhere"), args: [], origin: "PATH" }), /nowhere \(PATH\) does not exist/);
  assert.match(await refusal(script("locked", "echo", 0o644)), /not executable/);
  assert.match(await refusal(script("other", "echo incantation 7")), /another program/);
  assert.match(await refusal(script("old", "echo cantrip 0.0.9")), /0\.0\.9; this extension needs .*Set Up/);
  assert.match(await refusal(script("bare", "echo 'python3: No module named cantrip_acp' >&2; exit 1")), /a Python without the package/);
  assert.match(await refusal(script("broken", "echo first >&2; echo last word >&2; exit 7")), /failed with status 7: last word/);
});

test("nothing of the folder that a Python is started in is imported", async () => {
  const trap = join(folder, "trap");
  mkdirSync(trap);
  writeFileSync(join(trap, "cantrip_acp.py"), "print('cantrip 9.9.9')\n");
  const answer = await probe({ command: "python3", args: ["-m", "cantrip_acp"], origin: "PATH" }, trap);
  assert.ok(!("version" in answer) || answer.version !== "9.9.9");
});

test("a run can be stopped, and has a limit", async () => {
  const stop = new AbortController();
  const slow = script("slow", "exec sleep 60");
  setTimeout(() => {
    stop.abort();
  }, 50);
  const stopped = await run(slow, [], folder, process.env, stop.signal);
  assert.ok(stopped.error !== undefined);
  const late = await run(slow, [], folder, process.env, undefined, 100);
  assert.equal(late.error?.code, "ETIMEDOUT");
});

test("a program is spoken as one would type it", () => {
  assert.equal(commandLine({ command: "/a b/python", args: ["-m", "x"], origin: "" }, ["--version"]), '"/a b/python" -m x --version');
});
