// Builds the extension: `node esbuild.mjs [--production] [--watch]` into dist/, `--tests` the unit tests into dist-test/.
import { copyFile, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
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

/**
 * Kinds of diagrams that are not drawn (media/chat/diagram.ts has those that are), with what they alone need, and Mermaid's own
 * formulas. That is half of it.
 */
const without = {
    name: "without",
    setup({ onResolve, onLoad }) {
        const unused =
            /(?:^|\/)(?:(?:abnf|architecture|block|c4|cynefin|ebnf|info|ishikawa|peg|railroad|sankey|swimlanes|venn|wardley)Diagram|c4Diagram|kanban-definition|swimlanes|cose-bilkent|diagram)-[A-Z0-9]+\.mjs$|^(?:cytoscape.*|katex)$/;
        onResolve({ filter: unused }, ({ path, importer }) => (/[\\/]mermaid[\\/]/.test(importer) ? { path, namespace: "without" } : undefined));
        onLoad({ filter: /.*/, namespace: "without" }, () => ({ contents: "export default undefined; export const diagram = undefined, render = undefined" }));
    },
};

/** The styles of formulas with their fonts in one format, which every editor reads. */
async function copyKatex(to) {
    const from = "node_modules/katex/dist";
    const styles = await readFile(join(from, "katex.min.css"), "utf8");
    await writeFile(join(to, "katex.css"), styles.replace(/,url\(fonts\/[\w-]+\.(?:woff|ttf)\) format\("\w+"\)/g, ""));
    for (const name of await readdir(join(from, "fonts"))) {
        if (name.endsWith(".woff2")) await copyFile(join(from, "fonts", name), join(to, "fonts", name));
    }
}

/** The licences of the packages that are in the bundles, and of those whose files are copied. */
async function writeNotices(built, to) {
    const folders = new Set(["node_modules/@vscode/codicons", "node_modules/katex"]);
    for (const { outputs } of built) {
        for (const { inputs } of Object.values(outputs)) {
            for (const [path, { bytesInOutput }] of Object.entries(inputs)) {
                const folder = /^(?:.*\/)?node_modules\/(?:@[^/]+\/)?[^/]+/.exec(path)?.[0];
                if (folder !== undefined && bytesInOutput > 0) folders.add(folder);
            }
        }
    }
    const notices = [];
    for (const folder of [...folders].sort()) {
        const { name, version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
        const files = (await readdir(folder)).filter((each) => /^(?:licen[cs]e|notice)/i.test(each));
        const texts = await Promise.all(files.map((each) => readFile(join(folder, each), "utf8")));
        notices.push([`${name} ${version} (${typeof license === "string" ? license : "see below"})`, ...texts.map((each) => each.trim())].join("\n\n"));
    }
    await writeFile(to, `This extension contains these packages.\n\n${notices.join(`\n\n${"-".repeat(80)}\n\n`)}\n`);
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
    // What the page loads when an answer first has a diagram or a formula. Its parts are modules, which load each other.
    const drawing = {
        ...page,
        entryPoints: { mermaid: "media/chat/mermaid.ts", katex: "media/chat/katex.ts" },
        outdir: "dist/chat/drawing",
        format: "esm",
        splitting: true,
        plugins: [without],
    };
    await mkdir("dist/chat/drawing/fonts", { recursive: true });
    await copyKatex("dist/chat/drawing");
    await copyFile("media/chat/chat.css", "dist/chat/chat.css");
    for (const name of ["codicon.css", "codicon.ttf"]) {
        await copyFile(`node_modules/@vscode/codicons/dist/${name}`, `dist/chat/${name}`);
    }
    const built = [];
    for (const each of [options, page, drawing]) {
        if (asked.has("--watch")) await (await context(each)).watch();
        else built.push((await build({ ...each, metafile: true })).metafile);
    }
    await writeNotices(built, "dist/notices.txt");
}
