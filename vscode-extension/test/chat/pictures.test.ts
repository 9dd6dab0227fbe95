import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, realpathSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { pictureData } from "../../src/chat/pictures";

const home = realpathSync(mkdtempSync(join(tmpdir(), "pictures-")));
const folder = join(home, "project");
mkdirSync(join(folder, "docs"), { recursive: true });
mkdirSync(join(home, "project-other"));
for (const name of ["project/docs/a picture.png", "project/docs/b.svg", "project/notes.txt", "project/.env.png", "secret.png", "project-other/c.png"]) writeFileSync(join(home, name), "data");
symlinkSync(join(home, "secret.png"), join(folder, "link.png"));
symlinkSync(home, join(folder, "out"));
symlinkSync(join(folder, "docs"), join(folder, "in"));
symlinkSync("/dev/zero", join(folder, "zero.png"));
writeFileSync(join(folder, "large.png"), Buffer.alloc(5_000_001));
execFileSync("mkfifo", [join(folder, "pipe.png")]);

const find = (href: string): Promise<string | undefined> => pictureData(href, folder, [folder]);

describe("pictures of the workspace", () => {
  for (const href of ["docs/a%20picture.png", "./docs/a%20picture.png?raw=1#x", "in/../docs/a%20picture.png", join(folder, "docs", "a picture.png").replace(" ", "%20")]) {
    it(`shows ${href.replace(home, "")}`, async () => { assert.equal(await find(href), "data:image/png;base64,ZGF0YQ=="); });
  }

  it("follows a link that stays inside, and takes an SVG as a picture", async () => {
    assert.equal(await find("in/b.svg"), "data:image/svg+xml;base64,ZGF0YQ==");
  });

  const refused = [
    "../secret.png",
    "docs/../../secret.png",
    "..%2Fsecret.png",
    "%2e%2e/secret.png",
    join(home, "secret.png"),
    "../project-other/c.png",
    "link.png",
    "out/secret.png",
    "zero.png",
    "pipe.png",
    "large.png",
    "notes.txt",
    "docs",
    "missing.png",
    "",
    "%00.png",
    "%zz.png",
    "https://example.invalid/a.png",
    "//example.invalid/a.png",
    `file://${folder}/docs/b.svg`,
    "data:image/png;base64,AA",
    "\\\\host\\share\\a.png",
  ];
  for (const href of refused) {
    it(`does not show ${JSON.stringify(href.replace(home, ""))}`, async () => { assert.equal(await find(href), undefined); });
  }
});
