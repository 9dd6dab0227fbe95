// Elements from data. Text only ever becomes text: nothing here, and nothing built on it, makes markup of a string.

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  cast: "M5 3l6 5-6 5",
  call: "M3 3h10v10H3zM6 6h4M6 9h4",
  code: "M6 4L2 8l4 4M10 4l4 4-4 4",
  calls: "M9 2L4 9h4l-1 5 5-7H8z",
  text: "M3 4h10M3 8h10M3 12h6",
  fold: "M3 3h10M3 13h10M8 5v6M5.5 8.5L8 11l2.5-2.5",
  open: "M6 4l4 4-4 4",
  copy: "M5 5h8v8H5zM3 11V3h8",
  link: "M7 9l2-2M6 6L4 8a2.8 2.8 0 004 4l2-2M10 10l2-2a2.8 2.8 0 00-4-4L6 6",
  fork: "M5 3v10M5 9c0-3 6-2 6-6",
  compare: "M3 3h4v10H3zM9 3h4v10H9z",
  close: "M4 4l8 8M12 4l-8 8",
  back: "M10 3L5 8l5 5",
  search: "M7 2.5a4.5 4.5 0 100 9 4.5 4.5 0 000-9zM10.5 10.5L14 14",
  theme: "M8 2a6 6 0 100 12V2zM8 2a6 6 0 010 12",
  help: "M6 6a2 2 0 113 1.700c-.7.5-1 .8-1 1.8M8 12v.5",
  up: "M4 10l4-4 4 4",
  down: "M4 6l4 4 4-4",
  star: "M8 2l1.8 3.9 4.2.5-3.1 2.9.8 4.2L8 11.400l-3.7 2.1.8-4.2L2 6.400l4.2-.500z",
};

/** An element: h("p", {class: "x", onclick: f}, "text", child, [more]). */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name in PROPERTIES) element[PROPERTIES[name]] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const PROPERTIES = { class: "className", value: "value", checked: "checked", disabled: "disabled" };

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of [["viewBox", "0 0 16 16"], ["class", `icon icon-${name}`], ["aria-hidden", "true"]])
    svg.setAttribute(key, value);
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

export function button(label, symbol, onclick, props = {}) {
  const name = plain(label);
  return h("button", { type: "button", title: name, "aria-label": name, onclick, ...props }, symbol ? icon(symbol) : name);
}

// What is not seen, or makes other text read otherwise than it is: shown by its number.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/** A text's nodes, with a mark in the place of each control and invisible character. */
export function visible(text) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (match.index > at) nodes.push(document.createTextNode(text.slice(at, match.index)));
    const number = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    nodes.push(h("span", { class: "unseen", title: "a character that is not seen" }, `U+${number}`));
    at = match.index + match[0].length;
    if (nodes.length > 4000) break;
  }
  // What is left after thousands of marks gets them as plain text.
  if (at < text.length) nodes.push(document.createTextNode(plain(text.slice(at))));
  return nodes;
}

/** The same as one string, for lines of a list. */
export function plain(text) {
  return text.replace(UNSEEN, (c) => `\u27e8${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
}

export function debounce(act, ms) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...args), ms);
  };
}
