// The page of a batch: a row for each tuple, filters, sorting, and the result of the one that is read.

import { button, debounce, h, icon, plain, visible } from "./dom.js";
import { clock, count, money, reward, short, span } from "./format.js";
import { VirtualList } from "./list.js";

const THEME = "cantrip-loom-theme";
const KINDS = { done: "good", failed: "bad", claimed: "info", waiting: "", taken: "" };
const NAMES = { claimed: "running" };
const COLUMNS = [
  ["state", "State", (row) => Object.keys(KINDS).indexOf(row.state)],
  ["intent", "Intent", (row) => row.name ?? row.intent],
  ["sample", "Sample", (row) => row.sample],
  ["result", "Result", (row) => row.error ?? row.result],
  ["reward", "Reward", (row) => row.reward],
  ["usd", "Cost", (row) => row.usd],
  ["tokens", "Tokens", (row) => row.tokens],
  ["ms", "Time", (row) => row.ms],
];
const NUMBERS = new Set(["sample", "reward", "usd", "tokens", "ms"]);

function data(name) {
  const element = document.getElementById(`data-${name}`);
  return element === null ? null : JSON.parse(element.textContent);
}

/** A text as one word of a shell. */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function rowsOf() {
  const rows = [];
  for (let start = 0; ; ) {
    const part = data(`rows-${start}`);
    if (part === null) return rows;
    rows.push(...part);
    start += part.length;
  }
}

class Batch {
  constructor() {
    this.about = data("batch");
    this.rows = rowsOf();
    for (const row of this.rows) row.words = `${row.name ?? ""} ${row.intent} ${row.result ?? ""} ${row.error ?? ""} ${row.id} ${row.lane}`.toLowerCase();
    this.seen = this.rows;
    this.selected = null;
    this.order = { key: "place", down: false };
    this.build();
    this.dress();
    this.find();
    if (this.seen.length) this.select(this.seen[0]);
  }

  build() {
    const { about } = this;
    document.title = `${plain(about.title)} · batch`;
    this.search = h("input", { type: "search", placeholder: "Search intents, results and reasons  ( / )", "aria-label": "search", spellcheck: "false", autocomplete: "off", oninput: debounce(() => this.find(), 150) });
    this.filter = h("select", { class: "filter", "aria-label": "state", onchange: () => this.find() }, h("option", { value: "" }, "All"), this.states().map(([state, many]) => h("option", { value: state }, `${NAMES[state] ?? state} (${many})`)));
    this.status = h("div", { class: "found", role: "status", "aria-live": "polite" });
    this.head = h("div", { class: "columns", role: "row" }, COLUMNS.map(([key, label]) => h("button", { type: "button", class: NUMBERS.has(key) ? "number" : "", "data-key": key, title: `sort by ${label.toLowerCase()}`, onclick: () => this.sort(key) }, label)));
    this.frame = h("div", { class: "tree", tabindex: "0", role: "listbox", "aria-label": "casts" });
    this.details = h("article", { class: "details", tabindex: "0", "aria-label": "the cast that is read" }, h("p", { class: "nothing" }, "There is nothing in this batch."));
    this.main = h("main", {}, h("section", { class: "side", "aria-label": "casts" }, this.status, this.head, this.frame), h("section", { class: "pane", "aria-label": "details" }, h("button", { type: "button", class: "back", onclick: () => this.main.classList.remove("reading") }, icon("back"), "Casts"), this.details));
    document.getElementById("app").append(
      h(
        "header",
        { class: "top" },
        h("div", { class: "brand" }, icon("cast"), h("span", { class: "name", title: plain(about.space) }, visible(about.title))),
        h("div", { class: "searching" }, icon("search"), this.search, this.filter),
        this.sums(),
        h("nav", { class: "tools", "aria-label": "tools" }, button("Light or dark (t)", "theme", () => this.theme())),
      ),
      this.damage(),
      this.main,
    );
    this.list = new VirtualList(this.frame, 32, (place, element) => this.draw(place, element));
    this.frame.addEventListener("click", (event) => {
      const row = event.target.closest(".cast-row");
      if (row) this.select(this.seen[Number(row.dataset.place)], true);
    });
    document.addEventListener("keydown", (event) => this.key(event));
  }

  states() {
    const many = new Map();
    for (const row of this.rows) many.set(row.state, (many.get(row.state) ?? 0) + 1);
    return Object.keys(KINDS).filter((state) => many.has(state)).map((state) => [state, many.get(state)]);
  }

  sums() {
    const known = (name) => this.rows.filter((row) => row[name] !== null);
    const total = (name) => known(name).reduce((sum, row) => sum + row[name], 0);
    const one = (value, name, title, kind = "") => h("span", { class: `sum ${kind}`, title }, h("b", {}, value), ` ${name}`);
    const failed = this.rows.filter((row) => row.state === "failed").length;
    const rewards = known("reward");
    const ended = this.rows.filter((row) => row.state === "done" || row.state === "failed");
    const unknown = ended.filter((row) => row.usd === null).length;
    return h(
      "div",
      { class: "sums", "aria-label": "totals" },
      one(count(this.rows.length), "casts", "all casts of this batch"),
      failed ? one(count(failed), "failed", "casts that failed or were cut off", "bad") : "",
      one(`${known("usd").length ? money(total("usd")) : "?"}${unknown ? "+?" : ""}`, "", unknown ? `the cost of ${count(unknown, "cast")} is not known` : "what all casts cost together"),
      one(short(total("tokens")), "tokens", "tokens read and written"),
      rewards.length ? one(reward(total("reward") / rewards.length), "mean reward", `of ${count(rewards.length, "cast")} with a reward`) : "",
    );
  }

  damage() {
    const { problems } = this.about;
    return problems.length ? h("div", { class: "damage", role: "alert" }, h("details", {}, h("summary", {}, `${count(problems.length, "loom")} could not be read: rewards and links of their casts are missing`), h("ul", {}, problems.map((text) => h("li", {}, visible(text)))))) : "";
  }

  find() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const state = this.filter.value;
    this.seen = this.rows.filter((row) => (!state || row.state === state) && words.every((word) => row.words.includes(word)));
    const filtered = state || words.length;
    this.status.replaceChildren(...(filtered ? [count(this.seen.length, "cast"), " found", h("button", { type: "button", onclick: () => this.clear() }, "Clear (Esc)")] : []));
    this.arrange();
  }

  clear() {
    this.search.value = "";
    this.filter.value = "";
    this.find();
  }

  sort(key) {
    // Up, down, and back to the order of the batch.
    const { order } = this;
    if (order.key !== key) this.order = { key, down: false };
    else this.order = order.down ? { key: "place", down: false } : { key, down: true };
    this.arrange();
  }

  arrange() {
    const { key, down } = this.order;
    const of = COLUMNS.find(([name]) => name === key)?.[2] ?? ((row) => row.place);
    const compare = (a, b) => {
      const left = of(a) ?? null, right = of(b) ?? null;
      // What is not known comes last in both directions.
      if (left === null || right === null) return (left === null) - (right === null) || a.place - b.place;
      const by = left < right ? -1 : left > right ? 1 : 0;
      return (down ? -by : by) || a.place - b.place;
    };
    this.seen = [...this.seen].sort(compare);
    for (const element of this.head.children) {
      if (element.dataset.key === key) element.setAttribute("aria-sort", down ? "descending" : "ascending");
      else element.removeAttribute("aria-sort");
      const label = COLUMNS.find(([name]) => name === element.dataset.key)[1];
      element.textContent = element.dataset.key === key ? `${label} ${down ? "↓" : "↑"}` : label;
    }
    this.frame.scrollTop = 0;
    this.list.resize(this.seen.length);
    // The heads stand above their columns, beside a scroll bar of any width.
    this.head.style.paddingRight = `${14 + this.frame.offsetWidth - this.frame.clientWidth}px`;
  }

  draw(place, element) {
    const row = this.seen[place];
    if (row === undefined) return;
    const chosen = row === this.selected;
    element.className = `cast-row${chosen ? " selected" : ""}`;
    element.dataset.place = place;
    element.setAttribute("role", "option");
    element.setAttribute("aria-selected", chosen);
    const number = (text) => h("span", { class: "number" }, text);
    element.replaceChildren(
      h("span", { class: `badge ${KINDS[row.state]}` }, NAMES[row.state] ?? row.state),
      h("span", {}, plain(row.name ? `${row.name}: ${row.intent}` : row.intent).slice(0, 400)),
      number(row.sample ?? ""),
      h("span", { class: row.error ? "dim" : "" }, plain(row.error ?? row.result ?? "").slice(0, 400)),
      row.reward === null ? number("") : h("span", { class: "number" }, h("span", { class: "badge reward" }, reward(row.reward))),
      number(money(row.usd)),
      number(row.tokens === null ? "" : short(row.tokens)),
      number(row.ms === null ? "" : span(row.ms)),
    );
  }

  select(row, read = false) {
    this.selected = row;
    this.list.redraw();
    this.list.reveal(this.seen.indexOf(row));
    this.details.replaceChildren(...this.body(row));
    this.details.scrollTop = 0;
    if (read) this.main.classList.add("reading");
  }

  body(row) {
    const fact = (name, value) => (value === null || value === undefined || value === "" ? null : h("div", {}, h("dt", {}, name), h("dd", {}, visible(String(value)))));
    const part = (title, text, kind = "") => (text ? h("section", { class: `part ${kind}` }, h("h3", {}, title), h("pre", {}, visible(text))) : null);
    const page = row.page === null ? null : h("a", { class: "thread", href: row.page }, "Open the thread");
    return [
      h(
        "div",
        { class: "head" },
        h("div", { class: "title" }, h("h2", {}, visible(row.name ?? (row.yools[0] || "tuple"))), h("span", { class: `badge ${KINDS[row.state]}` }, NAMES[row.state] ?? row.state), row.reward === null ? null : h("span", { class: "badge reward" }, `reward ${reward(row.reward)}`)),
        h("div", { class: "actions" }, page),
        h("dl", { class: "facts" }, fact("cost", money(row.usd)), fact("tokens", row.tokens === null ? "" : count(row.tokens)), fact("time", row.ms === null ? "" : span(row.ms)), fact("turns", row.turns), fact("attempts", row.attempts || ""), fact("sample", row.sample), fact("ended because of", row.reason), fact("ended", row.ended === null ? "" : clock(row.ended)), fact("worker", row.worker)),
      ),
      h(
        "div",
        { class: "body" },
        part("Intent", row.intent),
        part("Result", row.result),
        part(row.state === "failed" ? "Why it failed" : "The last attempt", row.error, "failed"),
        row.loom === null ? null : part("The thread in the terminal", `cantrip loom view ${quoted(row.loom)}${row.turn ? ` --turn ${row.turn}` : ""}`),
        part("The tuple", `cantrip tuple rd ${row.id} --space ${quoted(this.about.space)}`),
        row.state === "failed" ? this.alike(row) : null,
      ),
    ];
  }

  /** The other reasons for which casts of this batch failed, the most frequent first. */
  alike() {
    const many = new Map();
    for (const row of this.rows) if (row.state === "failed") many.set(row.error ?? "", (many.get(row.error ?? "") ?? 0) + 1);
    const reasons = [...many].sort((a, b) => b[1] - a[1]).slice(0, 12);
    return h("section", { class: "part" }, h("h3", {}, "All reasons of failures"), h("ul", { class: "reasons" }, reasons.map(([text, number]) => h("li", {}, h("button", { type: "button", onclick: () => this.only(text) }, h("b", {}, `${count(number)} ×`), h("span", {}, visible(text.slice(0, 300))))))));
  }

  only(reason) {
    this.filter.value = "failed";
    this.search.value = reason.slice(0, 300);
    this.find();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input, select, textarea");
    if (event.key === "Escape") {
      this.clear();
      this.frame.focus();
    } else if (event.key === "/" && !typing) this.search.focus();
    else if (event.key === "t" && !typing) this.theme();
    else if (["ArrowDown", "ArrowUp", "j", "k"].includes(event.key) && !typing && !this.details.contains(event.target)) {
      const step = event.key === "ArrowDown" || event.key === "j" ? 1 : -1;
      const place = Math.max(0, Math.min(this.seen.length - 1, this.seen.indexOf(this.selected) + step));
      if (this.seen[place]) this.select(this.seen[place]);
    } else return;
    event.preventDefault();
  }

  dress() {
    try {
      const kept = localStorage.getItem(THEME);
      if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
    } catch {
      // A file may have no store of its own.
    }
  }

  theme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try {
      localStorage.setItem(THEME, root.dataset.theme);
    } catch {
      // As above: then it holds until the page is closed.
    }
  }
}

new Batch();
