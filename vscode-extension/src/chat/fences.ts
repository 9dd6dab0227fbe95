/** What a fenced code block says about itself. Uses no editor and no page. */
import { pieces } from "./visible";

const SHELLS = new Set(["bash", "sh", "shell", "zsh", "fish", "shellscript", "powershell", "pwsh", "ps1", "bat", "cmd"]);
/** Names of languages in fences that differ from the editor's. */
const LANGUAGES: Readonly<Record<string, string>> = {
  bash: "shellscript",
  "c++": "cpp",
  cs: "csharp",
  docker: "dockerfile",
  fish: "shellscript",
  golang: "go",
  js: "javascript",
  jsx: "javascriptreact",
  md: "markdown",
  ps1: "powershell",
  pwsh: "powershell",
  py: "python",
  python3: "python",
  rb: "ruby",
  rs: "rust",
  sh: "shellscript",
  shell: "shellscript",
  ts: "typescript",
  tsx: "typescriptreact",
  yml: "yaml",
  zsh: "shellscript",
};
/** The most that can be looked over in a dialog. */
const MOST_LINES = 30;
const MOST_CHARACTERS = 2_000;

// A path with a folder or a suffix, or a file that is known by its name.
const FILE = String.raw`(?:[\w@.+-]+\/)*(?:[\w@+-][\w@.+-]*\.[A-Za-z]\w{0,9}|\.[A-Za-z][\w.-]*|Makefile|Dockerfile|Justfile|Rakefile|Gemfile|LICENSE)`;
const WHOLE = new RegExp(`^(?:\\./)?(${FILE})$`);
const IN_INFO = new RegExp(`(?:^|[\\s:={(,])["']?(?:(?:title|file|filename|path)=)?["']?(?:\\./)?(${FILE})["']?(?=$|[\\s,})])`, "i");
const IN_LINE = new RegExp(`(?<![\\w/.:@~-])(?:\\./)?(${FILE})(?![\\w/]|\\.\\w|:\\d)`, "g");

/** The language of a fence's info string, such as `python` of `python:src/app.py`. Empty if it names only a file. */
export function languageOf(info: string): string {
  const first = info.trim().split(/[\s:{,]/)[0] ?? "";
  return WHOLE.test(first) && /[./]/.test(first) ? first.slice(first.lastIndexOf(".") + 1).toLowerCase() : first;
}

/** The file that a code block is for: the one in its info string, or else the only one in the line before it. */
export function fileNamed(info: string, before = ""): string | undefined {
  const named = IN_INFO.exec(info)?.[1];
  if (named !== undefined && /[./]/.test(named)) return named;
  const line = before.trim().split("\n").at(-1) ?? "";
  const found = new Set(Array.from(line.matchAll(IN_LINE), (match) => match[1]));
  return found.size === 1 ? [...found][0] : undefined;
}

export function isShell(language: string): boolean {
  return SHELLS.has(language.toLowerCase());
}

/** The editor's name of a language. */
export function editorLanguage(language: string): string {
  const name = language.toLowerCase();
  return LANGUAGES[name] ?? name;
}

/**
 * How text may be put into a terminal. `type`: one plain line, which waits there for Enter. `ask`: it must be seen and
 * confirmed first, because a line end would run what is before it, or because it does not look as it is. `refuse`: never.
 */
export type ForTerminal =
  | { readonly how: "type"; readonly text: string }
  | { readonly how: "ask"; readonly text: string; readonly shown: string; readonly lines: number }
  | { readonly how: "refuse"; readonly why: string };

export function forTerminal(code: string): ForTerminal {
  const text = code.replace(/\r\n/g, "\n").replace(/\n+$/, "");
  if (text.trim() === "") return { how: "refuse", why: "There is nothing to run." };
  // A terminal takes these as keys: an escape moves the cursor, a tab completes, a carriage return is Enter.
  // eslint-disable-next-line no-control-regex -- these are what is looked for
  const key = /(?!\n)[\u0000-\u001f\u007f-\u009f]/.exec(text)?.[0];
  if (key !== undefined) {
    const name = key === "\t" ? "a tab" : `U+${key.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    return { how: "refuse", why: `A terminal would take a character of this text as a key (${name}).` };
  }
  const found = pieces(text, "command");
  const lines = text.split("\n").length;
  if (lines === 1 && found.every((each) => typeof each === "string")) return { how: "type", text };
  if (lines > MOST_LINES || text.length > MOST_CHARACTERS) return { how: "refuse", why: `This is too long to look over in a dialog (${lines} lines).` };
  return { how: "ask", text, lines, shown: found.map((each) => (typeof each === "string" ? each : `⟨${each.shown}⟩`)).join("") };
}
