// Two threads side by side: what they share, then turn by turn, with what differs between the two that are chosen.

import { changes } from "./diff.js";
import { button, h, icon, plain, visible } from "./dom.js";
import { count, money, span } from "./format.js";
import { VirtualList } from "./list.js";
import { CALL, ERROR } from "./columns.js";

const PAIR = 34;
const MOST_THREADS = 500;
/** So many equal turns that follow each other are one row. */
const FOLDED = 3;

export class Compare {
  /** `view` gives columns, source, labels (number → row) and want(numbers) for those that are missing. */
  constructor(view, close) {
    this.view = view;
    this.element = h("section", { class: "compare", hidden: true, "aria-label": "two threads side by side" });
    this.close = close;
    this.threads = [NONE, NONE];
    this.rows = [];
    this.chosen = 0;
  }

  /** Open with the leaf of this turn's thread and the thread written last that is another. */
  open(turn) {
    const { columns } = this.view;
    const first = columns.leafOf(turn);
    this.show(first, columns.leaves().filter((leaf) => leaf !== first).at(-1) ?? first);
  }

  /** Open with the threads that two looms end with. */
  openEnds() {
    this.ends = this.view.about.ends;
    this.show(...this.ends);
  }

  show(left, right) {
    this.threads = [left, right];
    this.opened = new Set();
    this.element.hidden = false;
    this.build();
    // In a frame of an editor, the focus may be elsewhere in its window.
    if (document.hasFocus()) this.list.frame.focus();
  }

  build() {
    const frame = h("div", { class: "pairs", tabindex: "0", role: "listbox", "aria-label": "turns of both threads" });
    this.pane = h("div", { class: "compared-turns", tabindex: "0" });
    this.pickers = [0, 1].map((side) => h("select", { "aria-label": side ? "right thread" : "left thread", onchange: () => {
      this.threads[side] = Number(this.pickers[side].value);
      this.opened.clear();
      this.fill();
    } }));
    this.element.replaceChildren(
      h("header", {}, icon("compare"), h("h2", {}, "Side by side"), this.pickers, button("Close (Esc)", "close", () => this.close())),
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
      this.choose(Math.max(0, Math.min(this.rows.length - 1, this.chosen + step)), step);
    });
    this.fill();
  }

  /** The threads to choose from. */
  fillPickers() {
    const { columns, labels } = this.view;
    const leaves = [...new Set([...columns.leaves().slice(-MOST_THREADS), ...this.threads])].sort((a, b) => a - b);
    const names = leaves.map((leaf) => {
      if (leaf < 0) return "no turn yet";
      const intent = columns.casts[columns.cast[leaf]]?.start?.intent ?? labels.get(leaf)?.text ?? "";
      return plain(`${leaf} · ${columns.reason[leaf] ?? "open"} · ${intent.slice(0, 60)}`);
    });
    if (this.named === `${leaves} ${names}` && this.pickers[0].options.length) return;
    this.named = `${leaves} ${names}`;
    this.pickers.forEach((picker, side) => {
      picker.replaceChildren(...leaves.map((leaf, i) => h("option", { value: String(leaf) }, names[i])));
      picker.value = String(this.threads[side]);
    });
  }

  /** What a thread consists of: its turns, and before the first turn of each cast the message, as -2 and down. */
  steps(end) {
    const { columns } = this.view;
    const steps = [];
    let cast = -1;
    for (const n of columns.path(end)) {
      if (columns.role[n] === CALL) continue;
      if (columns.cast[n] !== cast && columns.cast[n] >= 0) {
        cast = columns.cast[n];
        if (columns.casts[cast]?.start) steps.push(messageOf(cast));
      }
      steps.push(n);
    }
    return steps;
  }

  /** The same for steps with the same content. */
  key(step) {
    const { columns } = this.view;
    if (step < NONE) return `message ${columns.casts[castAt(step)].start.same}`;
    return columns.same[step] ?? `turn ${step}`;
  }

  fill() {
    const [left, right] = this.threads.map((end) => this.steps(end));
    this.shared = left.findIndex((step, i) => step !== right[i]);
    if (this.shared < 0) this.shared = left.length;
    this.shared = left.slice(0, this.shared).filter((step) => step >= 0).length;
    this.pairs = aligned(left, right, (step) => this.key(step));
    this.fillPickers();
    this.fold();
    const first = this.rows.findIndex(({ pair }) => pair && !pair.same);
    this.differs = first >= 0;
    this.choose(Math.max(0, this.differs ? first : this.rows.length - 1));
  }

  /** The rows of the list: equal steps that follow each other are one row, until it is opened. */
  fold() {
    this.rows = [];
    for (let i = 0; i < this.pairs.length; ) {
      let end = i;
      while (end < this.pairs.length && this.pairs[end].same) end += 1;
      const turns = this.pairs.slice(i, end).filter(({ left }) => left >= 0).length;
      if (turns >= FOLDED && !this.opened.has(i)) {
        this.rows.push({ from: i, turns });
        i = end;
      } else {
        for (end = Math.max(end, i + 1); i < end; i += 1) this.rows.push({ pair: this.pairs[i] });
      }
    }
    this.list.shown = (from, to) => this.view.want(this.rows.slice(from, to).flatMap(({ pair }) => (pair ? [pair.left, pair.right] : [])).filter((n) => n >= 0));
    this.list.resize(this.rows.length);
  }

  /** Turns were written: what is compared goes on, and what is looked at stays. */
  grown() {
    if (this.element.hidden) return;
    const { columns, about } = this.view;
    const before = [...this.threads];
    this.threads = this.threads.map((end, side) => (this.ends && end === this.ends[side] ? about.ends[side] : columns.endOf(end)));
    this.ends = about.ends;
    const keys = this.threads.map((end) => this.steps(end).map((step) => this.key(step)).join());
    if (before.every((end, side) => end === this.threads[side]) && keys.join("|") === this.compared) return;
    this.compared = keys.join("|");
    const { pair } = this.rows[this.chosen] ?? {};
    const differed = this.differs;
    const place = this.list.frame.scrollTop;
    this.fill();
    // A first difference is shown when it comes; else the list stays where it was.
    if (!differed) return;
    this.list.frame.scrollTop = place;
    const has = (row, side) => pair?.[side] !== NONE && row.pair?.[side] === pair?.[side];
    const again = this.rows.findIndex((row) => has(row, "left") || has(row, "right"));
    if (again >= 0) this.choose(again);
  }

  redraw() {
    if (!this.element.hidden) this.list.redraw();
  }

  draw(place, element) {
    const { pair, turns } = this.rows[place];
    const joined = !pair || pair.same;
    element.className = `pair${place === this.chosen ? " selected" : ""}${joined ? " shared" : ""}${pair ? "" : " folded"}`;
    element.dataset.place = place;
    element.setAttribute("role", "option");
    element.setAttribute("aria-selected", place === this.chosen);
    if (!pair) element.replaceChildren(h("span", { class: "one" }, icon("open"), `${count(turns, "equal turn")}`));
    else element.replaceChildren(...(pair.same ? [this.cell(pair.left)] : [this.cell(pair.left), this.cell(pair.right)]));
  }

  cell(n) {
    if (n === NONE) return h("span", { class: "none" }, "—");
    const { columns, labels } = this.view;
    if (n < NONE) return h("span", { class: "one message" }, icon("cast"), h("span", { class: "label" }, plain(columns.casts[castAt(n)].start.intent || "…")));
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

  /** Show a pair; of equal turns that are folded, all. `step` is the way of the arrow keys. */
  async choose(place, step = 0) {
    const row = this.rows[place];
    if (row && !row.pair) {
      this.opened.add(row.from);
      this.fold();
      if (step < 0) {
        // From below: the last one of them.
        const last = this.rows.findIndex(({ pair }, i) => i > place && !pair?.same);
        return this.choose((last < 0 ? this.rows.length : last) - 1);
      }
    }
    this.chosen = place;
    this.list.redraw();
    this.list.reveal(place);
    const { pair } = this.rows[place] ?? {};
    if (!pair) return this.pane.replaceChildren(h("p", { class: "nothing" }, "These threads have no turns."));
    const { left, right, same } = pair;
    const message = Math.min(left, right) < NONE;
    const read = [left, right].map((n) => (n === NONE ? null : n < NONE ? this.view.source.cast(castAt(n)) : this.view.source.turn(n)));
    const [a, b] = await Promise.all(read);
    if (this.rows[this.chosen]?.pair !== pair) return undefined;
    const words = left === right ? `This ${message ? "message" : "turn"} is in both threads.` : same ? `This ${message ? "message" : "turn"} is equal in both threads.` : "";
    const told = h("p", { class: "more" }, this.shared ? `${count(this.shared, "turn")} in common. ` : "Nothing in common. ", this.differs ? "" : "Nothing differs so far. ", words);
    const body = message ? messages(a, b) : sides(a, left === right ? a : b);
    this.pane.replaceChildren(told, ...body);
    return undefined;
  }
}

/** Where a thread has nothing beside a step of the other one. */
const NONE = -1;

// Turns are numbers from 0 on; the message of a cast is a number below -1.
const messageOf = (cast) => -2 - cast;
const castAt = (step) => -2 - step;

/** Pairs of steps. Casts with the same message stand beside each other, and so do their turns with the same content; those
 * between them in their order. */
function aligned(left, right, key) {
  let shared = 0;
  while (shared < Math.min(left.length, right.length) && key(left[shared]) === key(right[shared])) shared += 1;
  const pairs = left.slice(0, shared).map((step, i) => [step, right[i]]);
  for (const [a, b] of besides(casts(left.slice(shared)), casts(right.slice(shared)), ([step]) => key(step))) {
    const messages = [a, b].map((cast) => (cast?.[0] < NONE ? cast[0] : NONE));
    if (messages.some((step) => step !== NONE)) pairs.push(messages);
    pairs.push(...besides(turnsOf(a), turnsOf(b), key).map((pair) => pair.map((step) => step ?? NONE)));
  }
  return pairs.map(([l, r]) => ({ left: l, right: r, same: l !== NONE && r !== NONE && key(l) === key(r) }));
}

/** The steps of each cast; its message is the first, except where the steps begin within a cast. */
function casts(steps) {
  const found = [];
  for (const step of steps) {
    if (step < NONE || !found.length) found.push([]);
    found.at(-1).push(step);
  }
  return found;
}

const turnsOf = (cast = []) => cast.filter((step) => step >= 0);

/** Pairs of what two lists have: equal ones together, and between two such pairs the n-th beside the n-th. */
function besides(left, right, key) {
  const pairs = [];
  let gone = [], made = [], a = 0, b = 0;
  const level = () => {
    for (let i = 0; i < Math.max(gone.length, made.length); i += 1) pairs.push([gone[i], made[i]]);
    gone = [];
    made = [];
  };
  for (const [sign] of changes(left.map(key), right.map(key))) {
    if (sign === "-") gone.push(left[a++]);
    else if (sign === "+") made.push(right[b++]);
    else {
      level();
      pairs.push([left[a++], right[b++]]);
    }
  }
  level();
  return pairs;
}

/** The messages of two casts. */
function messages(left, right) {
  const [a, b] = [left, right].map((cast) => cast?.start?.intent ?? "");
  return [h("h3", {}, "Message"), a === b ? h("pre", { class: "same-text" }, visible(a.slice(0, 20_000))) : split(a, b)];
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
