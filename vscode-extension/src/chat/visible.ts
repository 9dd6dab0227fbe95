/** Text for decisions of the user: characters that are invisible or misleading are replaced by their descriptions. Uses no editor and no page. */

/** A misleading character, or several of them. */
export interface Mark {
  /** The replacement, such as `U+202E` or `60 spaces`. */
  readonly shown: string;
  /** The reason. */
  readonly why: string;
}

/** Unchanged text, or a mark for misleading characters. */
export type Piece = string | Mark;

const NAMES: Readonly<Record<number, string>> = {
  0x00: "null character",
  0x07: "bell",
  0x08: "backspace",
  0x09: "tab",
  0x0b: "vertical tab",
  0x0c: "form feed",
  0x0d: "carriage return",
  0x1b: "escape: it could control a terminal",
  0x7f: "delete",
  0xa0: "no-break space",
  0xad: "soft hyphen",
  0x200b: "zero-width space",
  0x200c: "zero-width non-joiner",
  0x200d: "zero-width joiner",
  0x200e: "left-to-right mark",
  0x200f: "right-to-left mark",
  0x202a: "left-to-right embedding",
  0x202b: "right-to-left embedding",
  0x202c: "end of a change of direction",
  0x202d: "left-to-right override",
  0x202e: "right-to-left override",
  0x2066: "left-to-right isolate",
  0x2067: "right-to-left isolate",
  0x2068: "first strong isolate",
  0x2069: "end of an isolate",
  0x2800: "empty Braille pattern",
  0x3164: "Hangul filler",
  0xfeff: "byte order mark",
};

// Control, format, private and unassigned characters; characters without a shape; unusual spaces; separators.
const UNSEEN = String.raw`(?!\n)[\p{C}\p{Zl}\p{Zp}\p{DI}\u2800]|(?! )\p{Zs}`;
// A combining sign changes an ASCII character; three signs on one character hide it.
const PILED = String.raw`(?<=[\x00-\x7f])\p{M}|(?<=\p{M}\p{M})\p{M}`;
// Signs that look like signs of a shell, and letters that look like ASCII letters.
const ALIKE_SIGNS = String.raw`[\u02d0\u037e\u2010-\u2015\u201a\u2024\u2032\u2035\u2039\u203a\u2044\u2212\u2215\u2216\u2223\u2236\u29f5\u29f8\ua789\uff01-\uff5e]`;
const ALIKE_LETTERS = "аеорсухіјѕһԁԛԝѵӏАВЕКМНОРСТХУІЈЅԌԚԜѴΑΒΕΖΗΙΚΜΝΟΡΤΥΧοορνικα";

const CODE = new RegExp(`(${UNSEEN}|${PILED})|( {16,})|(\\n(?:[ \\t]*\\n){3,})`, "gu");
const COMMAND = new RegExp(`(${UNSEEN}|${PILED}|${ALIKE_SIGNS})|( {4,})|(\\n(?:[ \\t]*\\n){2,})`, "gu");
const WORD = /[\p{L}\p{N}_]+/gu;
const MOST_INDENT = 24;

/**
 * `text` in pieces, with marks for what a person would miss. In a command, groups of spaces and letters of other scripts
 * that look like Latin letters are also marked; in a program or a file, only characters that are unusual in code.
 */
export function pieces(text: string, kind: "command" | "code" = "code"): Piece[] {
  const made: Piece[] = [];
  let at = 0;
  for (const match of text.matchAll(kind === "command" ? COMMAND : CODE)) {
    const [found] = match;
    if (isHarmless(text, match.index, found)) continue;
    push(made, text.slice(at, match.index), kind);
    at = match.index + found.length;
    if (match[2] !== undefined) {
      made.push({ shown: `${found.length} spaces`, why: `${found.length} spaces in a row` });
    } else if (match[3] !== undefined) {
      const lines = found.split("\n").length - 2;
      made.push("\n", { shown: `${lines} empty lines`, why: `${lines} empty lines in a row` }, "\n");
    } else {
      made.push(characterName(found));
    }
  }
  push(made, text.slice(at), kind);
  return made;
}

/** Whether a text has misleading characters. */
export function isMarked(found: readonly Piece[]): boolean {
  return found.some((each) => typeof each !== "string");
}

/** The text with its marks as text, for places that show only text. */
export function describeCharacter(text: string, kind: "command" | "code" = "code"): string {
  return pieces(text, kind).map((each) => (typeof each === "string" ? each : `⟨${each.shown}⟩`)).join("");
}

function isHarmless(text: string, at: number, found: string): boolean {
  const start = text.lastIndexOf("\n", at - 1) + 1;
  const first = text.slice(start, at).trim() === "";
  // An indentation.
  if (found === "\t") return first;
  if (found.startsWith(" ")) return first && found.length <= MOST_INDENT && /\S/.test(text.charAt(at + found.length));
  // Emoji, and the selectors that change how they are drawn.
  if (found === "\ufe0f" || found === "\u200d") return /\p{Extended_Pictographic}\ufe0f?$/u.test(text.slice(0, at));
  // The count of lines at the end of a title, such as `(+3 −1)`: no shell takes that for an option.
  if (found === "\u2212") return /\(\+\d+ $/.test(text.slice(0, at)) && /^\d+\)(?: \([^()]*\))?$/.test(text.slice(at + 1));
  return false;
}

function characterName(found: string): Mark {
  const code = found.codePointAt(0) ?? 0;
  const shown = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  if (NAMES[code] !== undefined) return { shown, why: NAMES[code] };
  if (/\p{M}/u.test(found)) return { shown, why: "a sign that stands on the character before it" };
  if (new RegExp(ALIKE_SIGNS, "u").test(found)) return { shown: `${found} ${shown}`, why: "it looks like another character" };
  if (/\p{Zs}/u.test(found)) return { shown, why: "a space of another width" };
  return { shown, why: "a character that cannot be seen" };
}

/** Plain text. In a command, letters that look like others are marked. */
function push(made: Piece[], text: string, kind: "command" | "code"): void {
  if (text === "") return;
  if (kind === "code" || !/\P{ASCII}/u.test(text)) {
    made.push(text);
    return;
  }
  let at = 0;
  for (const { 0: word, index } of text.matchAll(WORD)) {
    if (!misleading(word)) continue;
    made.push(...(index > at ? [text.slice(at, index)] : []));
    for (const letter of word) {
      const last = made.at(-1);
      if (/[\p{Script=Latin}\p{N}_]/u.test(letter)) {
        if (typeof last === "string") made[made.length - 1] = last + letter;
        else made.push(letter);
      } else {
        made.push({ shown: `${letter} U+${(letter.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`, why: "a letter of another script" });
      }
    }
    at = index + word.length;
  }
  if (at < text.length) made.push(text.slice(at));
}

/** Whether a word mixes scripts, or has only letters that look like Latin letters. */
function misleading(word: string): boolean {
  const others = Array.from(word).filter((letter) => /\p{L}/u.test(letter) && !/\p{Script=Latin}/u.test(letter));
  if (others.length === 0) return false;
  return /[A-Za-z]/.test(word) || others.every((letter) => ALIKE_LETTERS.includes(letter));
}
