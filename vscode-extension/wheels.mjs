// Python wheels that are packed into the extension, so that its first run needs no package index.
//
//   node wheels.mjs                 builds the package's own wheel into dist/wheels/ and puts those of wheels/ beside it (WHEELS=own: it alone)
//   node wheels.mjs --dependencies  fetches all that the package and its extra "editor" need into wheels/, for this platform (PYTHONS="3.11 3.12")
//
// It takes the Python of the checkout's .venv, else $PYTHON, else python3.
import { execFileSync } from "node:child_process";
import { copyFile, mkdir, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { existsSync } from "node:fs";
import { createHash } from "node:crypto";
import { join } from "node:path";

const KEPT = "wheels";
const PACKED = join("dist", "wheels");
const VERSIONS = (process.env.PYTHONS ?? "3.11 3.12 3.13 3.14").split(/\s+/);
const venv = join("..", ".venv", process.platform === "win32" ? "Scripts/python.exe" : "bin/python");
const python = existsSync(venv) ? venv : process.env.PYTHON || "python3";

function run(...args) {
    return execFileSync(python, args, { stdio: ["ignore", "pipe", "pipe"], encoding: "utf8" });
}

/** The package's own wheel; without an index where hatchling is installed. */
function own(to) {
    let isolated = [];
    try {
        run("-c", "import hatchling");
        isolated = ["--no-build-isolation"];
    } catch {
        console.error("wheels: hatchling is not installed; pip fetches it");
    }
    run("-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", ...isolated, "--wheel-dir", to, "..");
}

async function wheelsIn(folder) {
    return existsSync(folder) ? (await readdir(folder)).filter((name) => name.endsWith(".whl")) : [];
}

if (process.argv.includes("--dependencies")) {
    const stamp = join(KEPT, "stamp");
    const wanted = createHash("sha256")
        .update(await readFile("../pyproject.toml"))
        .update(VERSIONS.join(" "))
        .update(process.platform + process.arch)
        .digest("hex");
    if (existsSync(stamp) && (await readFile(stamp, "utf8")) === wanted) process.exit(0);
    await rm(KEPT, { recursive: true, force: true });
    await mkdir(KEPT, { recursive: true });
    const built = join("dist", "own");
    await rm(built, { recursive: true, force: true });
    own(built);
    const [wheel] = await wheelsIn(built);
    for (const version of VERSIONS) {
        try {
            // pip itself too: some Pythons come without it.
            run("-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:", "--python-version", version, "--dest", KEPT, "pip", `${join(built, wheel)}[editor]`);
        } catch (problem) {
            console.error(`wheels: not all of them exist for Python ${version} here; its users need a package index\n${String(problem.stderr).trim().split("\n").at(-1)}`);
        }
    }
    await rm(built, { recursive: true, force: true });
    for (const name of await wheelsIn(KEPT)) if (name.startsWith("cantrip_acp-")) await rm(join(KEPT, name));
    await writeFile(stamp, wanted);
} else {
    await rm(PACKED, { recursive: true, force: true });
    await mkdir(PACKED, { recursive: true });
    own(PACKED);
    const others = process.env.WHEELS === "own" ? [] : await wheelsIn(KEPT);
    for (const name of others) await copyFile(join(KEPT, name), join(PACKED, name));
}

let size = 0;
const shown = process.argv.includes("--dependencies") ? KEPT : PACKED;
const names = await wheelsIn(shown);
for (const name of names) size += (await stat(join(shown, name))).size;
console.error(`wheels: ${names.length} in ${shown}, ${(size / 1e6).toFixed(1)} MB`);
