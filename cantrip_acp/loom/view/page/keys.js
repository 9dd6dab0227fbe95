// The keys, each with what it does; the page's help is this list.

import { button, h } from "./dom.js";

export const KEYS = [
  ["↓ or j", "next row", ["ArrowDown", "j"], "next"],
  ["↑ or k", "row before", ["ArrowUp", "k"], "before"],
  ["→", "open a row, or go into it", ["ArrowRight", "l"], "into"],
  ["←", "close a row, or go to the one that holds it", ["ArrowLeft", "h"], "out"],
  ["Page Down, Page Up", "a page on, a page back", ["PageDown"], "pageOn"],
  ["", "", ["PageUp"], "pageBack"],
  ["Home, End", "first row, last row", ["Home"], "first"],
  ["", "", ["End"], "last"],
  ["Enter", "read the turn (Esc: back to the list)", ["Enter"], "read"],
  ["/", "search", ["/"], "search"],
  ["e, E", "next error, error before", ["e"], "nextError"],
  ["", "", ["E"], "errorBefore"],
  ["r, R", "next reward, reward before", ["r"], "nextReward"],
  ["", "", ["R"], "rewardBefore"],
  ["w", "give a reward", ["w"], "giveReward"],
  ["c", "compare this thread with another", ["c"], "compare"],
  ["x", "copy a command that forks this turn", ["x"], "copyFork"],
  ["y", "copy a link to this turn", ["y"], "copyLink"],
  ["f", "follow what is being written", ["f"], "follow"],
  ["[ and ]", "close all casts, open all", ["["], "closeAll"],
  ["", "", ["]"], "openAll"],
  ["t", "light or dark", ["t"], "theme"],
  ["?", "these keys", ["?"], "help"],
  ["Esc", "close, leave the search, back to the list", ["Escape"], "leave"],
];

/** What a key asks for; null where it is typed into something, or has a meaning of its own there. */
export function wish(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return null;
  const typed = event.target.closest?.("input, textarea, select, [contenteditable]");
  const found = KEYS.find(([, , keys]) => keys.includes(event.key))?.[3] ?? null;
  if (typed) return event.key === "Escape" ? "leave" : null;
  const pressed = event.target.closest?.("button, summary, a");
  if (pressed && ["Enter", " "].includes(event.key)) return null;
  // A text that can be scrolled scrolls.
  const scrolled = event.target.closest?.(".details, .compared-turns, dialog");
  if (scrolled && (/^Arrow|^Page|^Home|^End/.test(event.key) || event.key === "Enter")) return null;
  return found;
}

export function helpDialog(searching) {
  const dialog = h("dialog", { class: "help", "aria-labelledby": "help-title" });
  dialog.append(
    h("header", {}, h("h2", { id: "help-title" }, "Keys"), button("Close", "close", () => dialog.close())),
    h("dl", {}, KEYS.filter(([keys]) => keys).map(([keys, does]) => h("div", {}, h("dt", {}, h("kbd", {}, keys)), h("dd", {}, does)))),
    h("h3", {}, "Search"),
    h("p", {}, searching),
  );
  return dialog;
}
