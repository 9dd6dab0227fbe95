// Two threads side by side: what they share, then turn by turn, with what differs between the two that are chosen.

import { changes } from "./diff.js";
import { button, h, icon, plain, visible } from "./dom.js";
import { count, money, span } from "./format.js";
import { VirtualList } from "./list.js";
import { CALL, ERROR } from "./columns.js";

const PAIR = 34;
const MOST_THREADS = 500;

export class Compare {
  /** `view` gives columns, source, labels (number → row) and want(numbers) for those that are missing. */
  constructor(view, close) {
    this.view = view;
    this.element = h("section", { class: "compare", hidden: true, "aria-label": "two threads side by side" });
    this.close = close;
    this.threads = [-1, -1];
    this.chosen = 0;
  }

  /** Open with two threads that end at these turns; without a second, the leaf of the first and the thread written last that is another. */
  open(left, right = -1) {
    const { columns } = this.view;
    const leaves = columns.leaves();
    const first = right >= 0 ? left : columns.leafOf(left);
    const second = right >= 0 ? right : (leaves.filter((leaf) => leaf !== first).at(-1) ?? first);
    this.threads = [first, second];
    this.leaves = [...new Set([...leaves.slice(-MOST_THREADS), first, second])].sort((a, b) => a - b);
    this.element.hidden = false;
    this.build();
    this.list.frame.focus();
  }

  build() {
    const frame = h("div", { class: "pairs", tabindex: "0", role: "listbox", "aria-label": "turns of both threads" });
    this.pane = h("div", { class: "compared-turns", tabindex: "0" });
    this.element.replaceChildren(
      h("header", {}, icon("compare"), h("h2", {}, "Side by side"), this.picker(0), this.picker(1), button("Close (Esc)", "close", () => this.close())),
      frame,
      this.pane,
    );
    this.list = new VirtualList(frame, PAIR, (place, element) => this.draw(place, element));
    frame.addEventListener("click", (event) => {
      const row = event.target.closest("[data-place]");
      if (row) this.choose(Number(row.dataset.place));
    });
    frame.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      this.choose(Math.max(0, Math.min(this.pairs.length - 1, this.chosen + step)));
    });
    this.fill();
  }

  picker(side) {
    const { columns, labels } = this.view;
    const select = h(
      "select",
      { "aria-label": side ? "right thread" : "left thread", onchange: () => {
        this.threads[side] = Number(select.value);
        this.fill();
      } },
      this.leaves.map((leaf) => {
        const intent = columns.casts[columns.cast[leaf]]?.start?.intent ?? labels.get(leaf)?.text ?? "";
        return h("option", { value: String(leaf) }, plain(`${leaf} · ${columns.reason[leaf] ?? "open"} · ${intent.slice(0, 60)}`));
      }),
    );
    select.value = String(this.threads[side]);
    return select;
  }

  fill() {
    const { columns } = this.view;
    const [left, right] = this.threads.map((leaf) => columns.path(leaf).filter((n) => columns.role[n] !== CALL));
    let shared = 0;
    while (shared < left.length && shared < right.length && left[shared] === right[shared]) shared += 1;
    this.pairs = [];
    for (let i = 0; i < Math.max(left.length, right.length); i += 1) this.pairs.push([left[i] ?? -1, right[i] ?? -1]);
    this.shared = shared;
    this.list.shown = (from, to) => this.view.want(this.pairs.slice(from, to).flat().filter((n) => n >= 0));
    this.list.resize(this.pairs.length);
    this.choose(Math.min(shared, this.pairs.length - 1));
  }

  redraw() {
    if (!this.element.hidden) this.list.redraw();
  }

  draw(place, element) {
    const [left, right] = this.pairs[place];
    element.className = `pair${place === this.chosen ? " selected" : ""}${left === right ? " shared" : ""}`;
    element.dataset.place = place;
    element.setAttribute("role", "option");
    element.setAttribute("aria-selected", place === this.chosen);
    element.replaceChildren(...(left === right ? [this.cell(left)] : [this.cell(left), this.cell(right)]));
  }

  cell(n) {
    if (n < 0) return h("span", { class: "none" }, "—");
    const { columns, labels } = this.view;
    const label = labels.get(n);
    return h(
      "span",
      { class: "one" },
      icon(label?.kind ?? "text"),
      h("span", { class: "seq" }, String(label?.seq ?? "")),
      h("span", { class: "label mono" }, plain(label?.said || label?.text || "…")),
      columns.has(n, ERROR) ? h("span", { class: "badge bad" }, "error") : null,
      columns.reason[n] ? h("span", { class: "badge" }, plain(columns.reason[n])) : null,
      h("span", { class: "cell took" }, span(columns.ms[n])),
    );
  }

  async choose(place) {
    this.chosen = place;
    this.list.redraw();
    this.list.reveal(place);
    const pair = this.pairs[place];
    if (!pair) return this.pane.replaceChildren(h("p", { class: "nothing" }, "These threads have no turns."));
    const [left, right] = await Promise.all(pair.map((n) => (n < 0 ? null : this.view.source.turn(n))));
    if (this.chosen !== place) return undefined;
    const told = h("p", { class: "more" }, this.shared ? `${count(this.shared, "turn")} in common. ` : "Nothing in common. ", pair[0] === pair[1] ? "This turn is in both threads." : "");
    this.pane.replaceChildren(told, ...sides(left, pair[0] === pair[1] ? left : right));
    return undefined;
  }
}

function sides(left, right) {
  const heads = [left, right].map((turn) => h("div", { class: "side-head" }, turn ? [h("strong", {}, visible(turn.id)), " ", visible(measures(turn))] : h("span", { class: "nothing" }, "no such turn")));
  const parts = [h("div", { class: "split" }, heads)];
  for (const [title, text] of PARTS) {
    const [a, b] = [left, right].map((turn) => (turn ? text(turn) : ""));
    if (!a && !b) continue;
    parts.push(h("h3", {}, title, a === b ? h("span", { class: "badge" }, "the same") : null), a === b ? h("pre", { class: "same-text" }, visible(a.slice(0, 20_000))) : split(a, b));
  }
  return parts;
}

const measures = (turn) =>
  [turn.metadata.tokens_prompt === null ? "tokens unknown" : count(turn.metadata.tokens_prompt + (turn.metadata.tokens_completion ?? 0), "token"), money(turn.metadata.cost), span(turn.metadata.duration_ms), turn.reason ?? ""].filter(Boolean).join(" · ");

const isLines = (value) => typeof value === "string" && value.includes("\n");

/** Data as text to compare: of a mapping a line a key, its longer texts line by line. */
function spread(value) {
  if (typeof value === "string") return value;
  if (value === null || typeof value !== "object" || Array.isArray(value)) return JSON.stringify(value, null, 2) ?? "";
  return Object.entries(value)
    .map(([key, inner]) => (isLines(inner) ? `${key}:\n${inner.replace(/\n$/, "").replace(/^/gm, "    ")}` : `${key}: ${JSON.stringify(inner)}`))
    .join("\n");
}

const PARTS = [
  ["Thinking", (t) => t.utterance.thinking ?? ""],
  ["Said", (t) => t.utterance.content ?? ""],
  ["Ran", (t) => t.utterance.code ?? ""],
  ["Calls", (t) => (t.utterance.code || t.observation.results.length ? "" : t.utterance.tool_calls.map((c) => `${c.gate} ${c.args}`).join("\n"))],
  ["Gates", (t) => t.observation.results.map((r) => `${r.gate} ${r.is_error ? "failed" : "ok"}\n${spread(r.args)}\n→ ${spread(r.result)}`).join("\n\n")],
  ["Output", (t) => (t.observation.output ? ["stdout", "stderr", "error", "value", "exit_code"].map((k) => [k, t.observation.output[k]]).filter(([, v]) => v !== null && v !== undefined && v !== "").map(([k, v]) => `${k}: ${spread(v)}`).join("\n") : "")],
];

function split(a, b) {
  const left = [], right = [];
  const steps = changes(a.slice(0, 200_000).split("\n"), b.slice(0, 200_000).split("\n")).slice(0, 4_000);
  const even = () => {
    while (left.length < right.length) left.push(["none", ""]);
    while (right.length < left.length) right.push(["none", ""]);
  };
  for (const [sign, line] of steps) {
    if (sign === "-") left.push(["removed", line]);
    else if (sign === "+") right.push(["added", line]);
    else {
      even();
      left.push(["same", line]);
      right.push(["same", line]);
    }
  }
  even();
  const side = (lines, name) => h("pre", { class: "diff", tabindex: "0", "aria-label": name }, lines.map(([kind, line]) => h("span", { class: `line ${kind}` }, visible(line), "\n")));
  return h("div", { class: "split" }, side(left, "left"), side(right, "right"));
}
