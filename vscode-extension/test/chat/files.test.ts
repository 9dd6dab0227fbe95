import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import Module from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, test } from "node:test";

/** A document of an editor. It saves as VS Code does: not over a file that is no longer the one it has read. */
class Document {
    isDirty = false;
    isClosed = false;
    saves = 0;
    readonly uri: { scheme: string; fsPath: string };

    constructor(
        path: string,
        private shown: string,
        private known: Buffer,
        private readonly mark = "",
    ) {
        this.uri = { scheme: "file", fsPath: path };
    }

    getText(): string {
        return this.shown;
    }

    positionAt(at: number): number {
        return at;
    }

    type(text: string): void {
        this.shown = text;
        this.isDirty = true;
    }

    async save(): Promise<boolean> {
        this.saves += 1;
        if (!this.known.equals(await readFile(this.uri.fsPath))) return false;
        this.known = Buffer.from(this.mark + this.shown);
        await writeFile(this.uri.fsPath, this.known);
        this.isDirty = false;
        return true;
    }
}

class NoFile extends Error {
    readonly code = "FileNotFound";
}

const documents: Document[] = [];
/** As much of the editor as the module under test uses. */
const editor = {
    Uri: { file: (path: string) => ({ scheme: "file", fsPath: path }) },
    Range: Object,
    FileSystemError: NoFile,
    WorkspaceEdit: class {
        readonly edits: [{ fsPath: string }, string][] = [];
        replace(uri: { fsPath: string }, _: unknown, text: string): void {
            this.edits.push([uri, text]);
        }
    },
    workspace: {
        textDocuments: documents,
        applyEdit: (edit: { edits: [{ fsPath: string }, string][] }): Promise<boolean> => {
            for (const [uri, text] of edit.edits) documents.find((each) => each.uri.fsPath === uri.fsPath)?.type(text);
            return Promise.resolve(true);
        },
        fs: {
            readFile: (uri: { fsPath: string }): Promise<Uint8Array> =>
                readFile(uri.fsPath).catch(() => {
                    throw new NoFile(`no ${uri.fsPath}`);
                }),
            writeFile: (uri: { fsPath: string }, bytes: Uint8Array): Promise<void> => writeFile(uri.fsPath, bytes),
        },
    },
};

const loader = Module as unknown as { _load: (name: string, ...more: unknown[]) => unknown };
const load = loader._load;
let files: typeof import("../../src/chat/files");
let folder = "";
let path = "";

before(async () => {
    loader._load = (name, ...more) => (name === "vscode" ? editor : load(name, ...more));
    files = await import("../../src/chat/files");
    folder = await mkdtemp(join(tmpdir(), "files-"));
});

after(async () => {
    loader._load = load;
    await rm(folder, { recursive: true });
});

beforeEach(() => {
    documents.length = 0;
    path = join(folder, "a.txt");
});

async function open(bytes: string | Buffer, shown: string, mark = ""): Promise<Document> {
    await writeFile(path, bytes);
    const document = new Document(path, shown, Buffer.from(bytes), mark);
    documents.push(document);
    return document;
}

const write = (content: string) => new files.EditorFiles().write({ sessionId: "s", path, content });
const read = async (more: object = {}) => (await new files.EditorFiles().read({ sessionId: "s", path, ...more })).content;

test("a file that is newer than what the editor shows is read and written on the disk", async () => {
    const document = await open("old\n", "old\n");
    // A command changed it, and the editor has not noticed yet.
    await writeFile(path, "newer\n");
    assert.equal(await read(), "newer\n");
    await write("newest\n");
    assert.equal(await readFile(path, "utf8"), "newest\n");
    assert.equal(document.saves, 0);
    assert.equal(document.isDirty, false);
});

test("unsaved changes over a file that is newer are not lost, and the write says so", async () => {
    const document = await open("old\n", "old\n");
    document.type("mine\n");
    await writeFile(path, "newer\n");
    assert.equal(await read(), "mine\n");
    await assert.rejects(write("theirs\n"), /could not be saved/);
    assert.equal(await readFile(path, "utf8"), "newer\n");
});

for (const [name, bytes, shown, mark] of [
    ["LF", "a\nb\n", "a\nb\n", ""],
    ["CRLF", "a\r\nb\r\n", "a\r\nb\r\n", ""],
    ["CRLF and LF, which the editor shows as one of them", "a\r\nb\n", "a\r\nb\r\n", ""],
    ["a byte order mark, which the editor does not show", "\ufeffa\n", "a\n", "\ufeff"],
    ["nothing", "", "", ""],
] as const) {
    test(`what the editor shows is written through it: ${name}`, async () => {
        const document = await open(bytes, shown, mark);
        await write(`${mark}new\n`);
        assert.equal(document.saves, 1);
        assert.equal(await readFile(path, "utf8"), `${mark}new\n`);
    });
}

test("an editor that knows another encoding is used", async () => {
    const document = await open(Buffer.from("caf\xe9\n", "latin1"), "café\n");
    assert.equal(await read(), "café\n");
    await write("café!\n");
    assert.equal(document.saves, 1);
});

test("a file that is not open keeps its mark, and one in another encoding is not touched", async () => {
    await writeFile(path, "\ufeffa\n");
    assert.equal(await read(), "a\n");
    await write("b\n");
    assert.equal(await readFile(path, "utf8"), "\ufeffb\n");
    for (const bytes of [Buffer.from("caf\xe9\n", "latin1"), Buffer.from("\ufeffé\n", "utf16le")]) {
        await writeFile(path, bytes);
        await assert.rejects(read(), /not text in UTF-8/);
        await assert.rejects(write("b\n"), /not text in UTF-8/);
        assert.deepEqual(await readFile(path), bytes);
    }
    path = join(folder, "missing.txt");
    await assert.rejects(read(), /There is no file/);
    await write("new\n");
    assert.equal(await readFile(path, "utf8"), "new\n");
});

test("lines of a file", async () => {
    await writeFile(path, "1\n2\r\n3");
    assert.equal(await read({ line: 2, limit: 1 }), "2\r\n");
    assert.equal(await read({ line: 3 }), "3");
    assert.equal(await read({ line: 9 }), "");
});

test("the bytes of a text keep the mark of the file", () => {
    const bytes = (text: string) => [...new TextEncoder().encode(text)];
    const encoded = (text: string, old: string) => [...files.encoded(text, new TextEncoder().encode(old))];
    assert.deepEqual(encoded("a", ""), bytes("a"));
    assert.deepEqual(encoded("é", "a"), bytes("é"));
    assert.deepEqual(encoded("a", "\ufeffold"), bytes("\ufeffa"));
    assert.deepEqual(encoded("\ufeffa", "\ufeffold"), bytes("\ufeffa"));
    assert.deepEqual(encoded("\ufeffa", "old"), bytes("\ufeffa"));
    assert.deepEqual(encoded("", "\ufeff"), bytes("\ufeff"));
    assert.throws(() => files.encoded("a", Uint8Array.of(0x63, 0xe9)), /change its encoding/);
    assert.throws(() => files.encoded("a", Uint8Array.of(0xff, 0xfe, 0x61, 0)), /change its encoding/);
});
