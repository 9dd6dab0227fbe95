// What a terminal would show of a text: colours become classes, all other sequences go, nothing gets overwritten.

import { h, visible } from "./dom.js";

// Strings (titles, links, clipboards: OSC, DCS, SOS, PM, APC), then CSI, then the short ones. A string never runs over a line.
const SEQUENCE = /(?:\u001b[\]PX^_]|[\u0090\u0098\u009d-\u009f])[^\n\u0007\u001b\u009c]{0,4096}(?:\u0007|\u001b\\|\u009c)?|(?:\u001b\[|\u009b)([0-?]*)([ -/]*)([@-~])?|\u001b[ -/]*[0-~]?/g;
const MOST_NODES = 20_000;

/** A text's nodes. */
export function ansi(text) {
  const lines = text.replace(/\r\n/g, "\n").replace(/\r(?!\n)/g, "\n");
  const nodes = [];
  let style = fresh();
  let at = 0;
  const push = (piece) => {
    if (!piece) return;
    const seen = visible(piece);
    nodes.push(...(plainStyle(style) ? seen : [painted(style, seen)]));
  };
  for (const match of lines.matchAll(SEQUENCE)) {
    push(lines.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[3] === "m" && !match[2]) style = next(style, match[1]);
    if (nodes.length > MOST_NODES) break;
  }
  push(nodes.length > MOST_NODES ? lines.slice(at).replace(SEQUENCE, "") : lines.slice(at));
  return nodes;
}

/** The text with an escape code where its style changes: `[character, parameters of the code]` pairs, as the record has them. */
export function coded(text, styles) {
  if (!Array.isArray(styles)) return text;
  // The record counts characters, and JavaScript counts a pair of surrogates as two.
  const characters = Array.from(text);
  let out = "";
  let last = 0;
  for (const each of styles) {
    const [at, style] = Array.isArray(each) ? each : [];
    if (!(at >= last && at < characters.length) || !/^[0-9;]{0,100}$/.test(style)) continue;
    out += `${characters.slice(last, at).join("")}\u001b[0;${style}m`;
    last = at;
  }
  return out + characters.slice(last).join("");
}

const fresh = () => ({ front: null, back: null, bold: false, dim: false, italic: false, under: false, struck: false, turned: false });

function plainStyle(s) {
  return s.front === null && s.back === null && !(s.bold || s.dim || s.italic || s.under || s.struck || s.turned);
}

function painted(style, children) {
  const names = ["bold", "dim", "italic", "under", "struck", "turned"].filter((name) => style[name]).map((name) => `sgr-${name}`);
  const element = h("span", {}, children);
  for (const [side, value] of [["fg", style.front], ["bg", style.back]]) {
    if (value === null) continue;
    if (typeof value === "number") names.push(`sgr-${side}-${value}`);
    else element.style[side === "fg" ? "color" : "backgroundColor"] = `rgb(${value.join(",")})`;
  }
  // A ground of its own wants a text that is read on it, whatever the page's colours are.
  if (Array.isArray(style.back) && !Array.isArray(style.front)) {
    const [red, green, blue] = style.back;
    element.style.color = red * 0.299 + green * 0.587 + blue * 0.114 < 140 ? "#ffffff" : "#000000";
  }
  element.className = names.join(" ");
  return element;
}

function next(style, codes) {
  const given = codes.split(/[;:]/).map((code) => Number(code) || 0);
  let now = { ...style };
  for (let i = 0; i < given.length; i += 1) {
    const code = given[i];
    if (code === 0) now = fresh();
    else if (code === 1) now.bold = true;
    else if (code === 2) now.dim = true;
    else if (code === 3) now.italic = true;
    else if (code === 4) now.under = true;
    else if (code === 7) now.turned = true;
    else if (code === 9) now.struck = true;
    else if (code === 22) now.bold = now.dim = false;
    else if (code === 23) now.italic = false;
    else if (code === 24) now.under = false;
    else if (code === 27) now.turned = false;
    else if (code === 29) now.struck = false;
    else if (code >= 30 && code <= 37) now.front = code - 30;
    else if (code === 39) now.front = null;
    else if (code >= 40 && code <= 47) now.back = code - 40;
    else if (code === 49) now.back = null;
    else if (code >= 90 && code <= 97) now.front = code - 82;
    else if (code >= 100 && code <= 107) now.back = code - 92;
    else if (code === 38 || code === 48) {
      const colour = given[i + 1] === 5 ? indexed(given[i + 2]) : given[i + 1] === 2 ? given.slice(i + 2, i + 5).map(byte) : null;
      i += given[i + 1] === 5 ? 2 : given[i + 1] === 2 ? 4 : 0;
      if (colour !== null) now[code === 38 ? "front" : "back"] = colour;
    }
  }
  return now;
}

const byte = (n) => Math.max(0, Math.min(255, n | 0));

function indexed(n) {
  if (!(n >= 0 && n <= 255)) return null;
  if (n < 16) return n;
  if (n >= 232) return Array(3).fill(8 + (n - 232) * 10);
  const level = (v) => (v ? 55 + v * 40 : 0);
  return [level(Math.floor((n - 16) / 36)), level(Math.floor((n - 16) / 6) % 6), level((n - 16) % 6)];
}
