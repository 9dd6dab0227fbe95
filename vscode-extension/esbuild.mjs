// Builds the extension: `node esbuild.mjs [--production] [--watch]` into dist/, `--tests` the unit tests into dist-test/.
import { copyFile, mkdir, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { build, context } from "esbuild";

const asked = new Set(process.argv.slice(2));
const shared = {
    bundle: true,
    platform: "node",
    target: "node20",
    format: "cjs",
    sourcemap: !asked.has("--production"),
    sourcesContent: false,
    logLevel: "warning",
};

async function find(folder) {
    const found = [];
    for (const entry of await readdir(folder, { withFileTypes: true })) {
        if (entry.isDirectory()) found.push(...(await find(join(folder, entry.name))));
        else if (entry.name.endsWith(".test.ts")) found.push(join(folder, entry.name));
    }
    return found;
}

if (asked.has("--tests")) {
    await rm("dist-test", { recursive: true, force: true });
    await build({
        ...shared,
        entryPoints: await find("test"),
        outdir: "dist-test",
        outbase: "test",
        packages: "external",
        sourcemap: "inline",
    });
} else {
    await rm("dist", { recursive: true, force: true });
    await mkdir("dist");
    // The one schema that the Python package has: yaml-language-server reads it from the extension.
    await copyFile("../cantrip_acp/recipes/cantrip.schema.json", "dist/cantrip.schema.json");
    const options = {
        ...shared,
        // The hook of the uninstallation runs where there is no editor.
        entryPoints: { extension: "src/extension.ts", uninstall: "src/uninstall.ts" },
        outdir: "dist",
        external: ["vscode"],
        minify: asked.has("--production"),
        // The language client's packages have ES modules beside CommonJS; the first bundle smaller.
        mainFields: ["module", "main"],
        conditions: ["node"],
    };
    // The chat panel's page: all that it loads lies in dist/chat/.
    const page = {
        ...shared,
        entryPoints: { chat: "media/chat/main.ts" },
        outdir: "dist/chat",
        platform: "browser",
        target: "chrome120",
        format: "iife",
        minify: asked.has("--production"),
    };
    await mkdir("dist/chat");
    await copyFile("media/chat/chat.css", "dist/chat/chat.css");
    for (const name of ["codicon.css", "codicon.ttf"]) {
        await copyFile(`node_modules/@vscode/codicons/dist/${name}`, `dist/chat/${name}`);
    }
    for (const each of [options, page]) {
        if (asked.has("--watch")) await (await context(each)).watch();
        else await build(each);
    }
}
