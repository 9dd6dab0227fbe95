// Texts as people read them: prose with its code set apart, data spread out, programs with their words told apart.
// All of it makes elements of text; a link is shown, never made.

import { h, visible } from "./dom.js";

/** A small part of Markdown: headings, lists, emphasis, code. */
export function prose(text) {
  const out = [];
  const fence = /^(```+|~~~+)([^\n`]*)\n([\s\S]*?)(?:\n\1[ \t]*(?=\n|$)|$(?![\s\S]))/gm;
  let at = 0;
  for (const match of text.matchAll(fence)) {
    out.push(...blocks(text.slice(at, match.index)));
    out.push(program(match[3], match[2].trim()));
    at = match.index + match[0].length;
  }
  out.push(...blocks(text.slice(at)));
  return h("div", { class: "prose" }, out);
}

function blocks(text) {
  const out = [];
  for (const part of text.split(/\n{2,}/)) {
    const lines = part.replace(/^\n+|\s+$/g, "").split("\n");
    if (lines.length === 1 && lines[0] === "") continue;
    const heading = /^(#{1,4}) +(.*)$/.exec(lines[0]);
    if (heading) {
      out.push(h("p", { class: `heading level-${heading[1].length}` }, inline(heading[2])));
      lines.shift();
    }
    let list = null;
    for (const line of lines) {
      const item = /^\s*(?:[-*+]|\d{1,4}[.)]) +(.*)$/.exec(line);
      if (item) {
        if (list === null) out.push((list = h("ul", { class: /^\s*\d/.test(line) ? "numbered" : "" })));
        list.append(h("li", {}, inline(item[1])));
      } else if (list !== null && /^\s+\S/.test(line)) list.lastChild.append("\n", ...inline(line.trim()));
      else {
        list = null;
        const before = out.at(-1);
        if (before?.open && before.tagName === "P") before.append("\n", ...inline(line));
        else {
          const paragraph = h("p", {}, inline(line));
          paragraph.open = true;
          out.push(paragraph);
        }
      }
    }
    if (out.at(-1)) out.at(-1).open = false;
  }
  return out;
}

function inline(text) {
  const out = [];
  let at = 0;
  for (const match of text.matchAll(/`([^`\n]{1,2000})`|\*\*([^*\n]{1,2000})\*\*/g)) {
    out.push(...visible(text.slice(at, match.index)));
    out.push(match[1] !== undefined ? h("code", {}, visible(match[1])) : h("strong", {}, visible(match[2])));
    at = match.index + match[0].length;
  }
  out.push(...visible(text.slice(at)));
  return out;
}

const LONGEST_MARKED = 60_000;
const PYTHON = /(?<comment>#[^\n]*)|(?<string>[rbfRBF]{0,2}(?:"""[\s\S]*?"""|'''[\s\S]*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))|(?<number>\b\d[\d_.eEx]*\b)|(?<keyword>\b(?:and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|None|nonlocal|not|or|pass|raise|return|True|False|try|while|with|yield|match|case)\b)/g;
const SHELL = /(?<comment>(?<=^|\s)#[^\n]*)|(?<string>"(?:\\[\s\S]|[^"\\])*"|'[^']*')|(?<number>\$\{?\w+\}?)|(?<keyword>\b(?:if|then|else|elif|fi|for|while|do|done|case|esac|in|function|return|export|local|cd|echo|exit|set)\b)/gm;
const JSON_WORDS = /(?<keyword>"(?:\\.|[^"\\])*"(?=\s*:))|(?<string>"(?:\\.|[^"\\])*")|(?<number>-?\b\d[\d.eE+-]*\b)|(?<comment>\b(?:true|false|null)\b)/g;

const LANGUAGES = { python: PYTHON, py: PYTHON, bash: SHELL, sh: SHELL, shell: SHELL, json: JSON_WORDS };

/** A program or command; long ones stay unmarked. */
export function program(text, language = "") {
  const pattern = text.length <= LONGEST_MARKED ? LANGUAGES[language.toLowerCase()] : undefined;
  return h("pre", { class: "code", tabindex: "0", "aria-label": language || "text" }, pattern ? marked(text, pattern) : visible(text));
}

function marked(text, pattern) {
  const out = [];
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > at) out.push(...visible(text.slice(at, match.index)));
    const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
    out.push(h("span", { class: `word-${kind}` }, visible(match[0])));
    at = match.index + match[0].length;
  }
  out.push(...visible(text.slice(at)));
  return out;
}

/** Data, spread out; texts in it that are data themselves (arguments, say) are spread out too. */
export function data(value) {
  const parsed = typeof value === "string" ? decoded(value) : value;
  if (typeof parsed === "string") return null;
  return program(JSON.stringify(parsed, null, 2), "json");
}

/** JSON text as data where it is a list or a mapping; else the text. */
export function decoded(text) {
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
