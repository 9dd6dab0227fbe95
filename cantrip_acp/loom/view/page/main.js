// The page: a list of rows, the one that is read, search, two threads side by side; and what ties them together.

import { Address } from "./address.js";
import { Columns } from "./columns.js";
import { Compare } from "./compare.js";
import { debounce, h } from "./dom.js";
import { Frame } from "./frame.js";
import { Search } from "./finder.js";
import { Growing } from "./growing.js";
import { wish } from "./keys.js";
import { castOf, castRef, isCast, layout } from "./layout.js";
import { VirtualList } from "./list.js";
import { drawRow } from "./rows.js";
import { Kept, Served } from "./source.js";
import { Timeline } from "./timeline.js";
import { castBody, forkCommand, turnBody } from "./turn.js";
import { ERROR } from "./columns.js";

const ROW = 32;
const MOST_LABELS = 20_000;

class App {
  constructor(source, address) {
    this.source = source;
    this.address = address;
    this.columns = new Columns();
    this.labels = new Map();
    this.wanted = new Set();
    this.closed = new Set();
    this.rows = layout(this.columns).fold(this.closed);
    this.hits = null;
    this.selected = null;
    this.following = false;
    this.frame = new Frame(this);
    this.list = new VirtualList(this.frame.tree, ROW, (place, element) => this.draw(place, element));
    this.timeline = new Timeline(this.frame.canvas, this.columns, (n) => this.select(n));
    this.growing = new Growing(this.columns, source, (what) => this.grown(what), (error) => this.frame.trouble(error));
    this.view = {
      columns: this.columns,
      source,
      labels: this.labels,
      about: {},
      want: (numbers) => this.want(numbers),
      copy: (text, what) => this.frame.copy(text, what),
      link: (id) => address.link(id),
      compare: (n) => this.openCompare(n),
      go: (ref) => this.select(ref),
      refresh: () => this.growing.refresh().then(() => this.read(this.selected)),
      whole: () => this.read(this.selected, true),
    };
    this.compare = new Compare(this.view, () => this.closeCompare());
    this.frame.main.append(this.compare.element);
    this.laidOut = debounce(() => this.layout(), 120);
    this.listen();
  }

  listen() {
    const { tree, search } = this.frame;
    tree.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (!row) return;
      const ref = Number(row.dataset.ref);
      if (event.target.closest(".twist.open, .twist.closed")) this.toggle(ref);
      else this.select(ref, { read: true });
    });
    tree.addEventListener("dblclick", (event) => {
      const row = event.target.closest(".row");
      if (row) this.toggle(Number(row.dataset.ref));
    });
    search.addEventListener("input", debounce(() => this.find(search.value), 200));
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "ArrowDown") return;
      event.preventDefault();
      tree.focus();
      if (this.hits?.length) this.select(this.hits[0].n);
    });
    document.addEventListener("keydown", (event) => {
      const act = wish(event);
      if (act === null || this.frame.help.open) return;
      if (this.actions[act]?.() !== false) event.preventDefault();
    });
    this.address.onmove = (id) => this.goTo(id);
    setInterval(() => this.list.redraw(), 30_000);
  }

  // What is shown

  get count() {
    return this.hits === null ? this.rows.seen.length : this.hits.length;
  }

  refAt(place) {
    return this.hits === null ? this.rows.refs[this.rows.seen[place]] : this.hits[place].n;
  }

  placeOf(ref) {
    if (this.hits !== null) return this.hits.findIndex((hit) => hit.n === ref);
    return this.rows.placeOf.get(ref) ?? -1;
  }

  draw(place, element) {
    const ref = this.refAt(place);
    if (ref === undefined) return;
    const i = this.hits === null ? this.rows.seen[place] : -1;
    const label = isCast(ref) ? null : this.labels.get(ref);
    if (!isCast(ref) && label === undefined) this.want([ref]);
    const row = {
      ref,
      place,
      total: this.count,
      depth: i < 0 ? 0 : this.rows.depths[i],
      holds: i >= 0 && this.rows.holds(i),
      closed: this.closed.has(ref),
      selected: ref === this.selected,
      label,
      hit: i < 0 && this.hits[place].in ? this.hits[place] : null,
    };
    drawRow(element, row, this.columns, Date.now());
  }

  /** Ask for lines that are not here yet, together. */
  want(numbers) {
    const before = this.wanted.size;
    for (const n of numbers) if (!this.labels.has(n)) this.wanted.add(n);
    if (before || !this.wanted.size) return;
    setTimeout(() => this.fetchLabels(), 15);
  }

  async fetchLabels() {
    // What was passed by in the meantime is not worth asking for: the last ones are those in sight.
    const numbers = [...this.wanted].slice(-200);
    try {
      const rows = await this.source.rows(numbers);
      if (this.labels.size > MOST_LABELS) this.labels.clear();
      for (const row of rows) this.labels.set(row.n, row);
    } catch (error) {
      this.frame.trouble(error);
    } finally {
      this.wanted.clear();
      this.list.redraw();
      this.compare.redraw();
    }
  }

  // What grows

  async begin() {
    await this.growing.begin();
    const id = this.address.turn;
    if (id) await this.goTo(id);
    if (this.selected === null && this.count) this.select(this.columns.answer() ?? this.refAt(0), { quiet: true });
    if (!this.count) this.frame.show([h("p", { class: "nothing" }, "This loom holds no turn yet.")]);
    if (this.growing.about.ends && !id) this.compareLooms();
    if (this.source.live) this.growing.follow();
  }

  grown(what) {
    if (what === "about") {
      this.view.about = this.growing.about;
      this.frame.about(this.growing.about);
    } else if (what === "shape") {
      if (this.rows.refs.length) this.laidOut();
      else this.layout();
    } else {
      this.frame.entitle(this.columns.intent());
      this.frame.totals(this.columns);
      this.timeline.draw();
      this.list.redraw();
    }
    if (what === "done") {
      this.frame.gates(this.columns.gateNames);
      this.settled();
    }
  }

  settled() {
    const total = this.columns.length;
    if (this.before === 0 && total > 0) this.select(this.columns.answer() ?? this.refAt(0) ?? 0, { quiet: true });
    if (this.before !== undefined && total > this.before) {
      this.frame.grew(total - this.before);
      this.layout();
      if (this.following) this.select(total - 1);
    }
    this.before = total;
    this.compare.grown();
    // A reward that was given elsewhere; not while one is being typed here.
    const given = this.columns.given.get(this.shown)?.length ?? 0;
    if (this.turn && given !== this.rewarded && !this.frame.details.querySelector("form")?.contains(document.activeElement)) this.read(this.shown);
  }

  layout() {
    const stuck = this.hits === null && this.count > 0 && this.list.atEnd && this.frame.tree.scrollTop > 0;
    this.rows = layout(this.columns).fold(this.closed);
    this.list.resize(this.count);
    if (stuck) this.list.reveal(this.count - 1);
  }

  // What is chosen

  select(ref, { read = true, quiet = false } = {}) {
    if (ref === undefined || ref === null) return;
    this.selected = ref;
    if (this.hits === null && !this.rows.placeOf.has(ref)) {
      for (const above of this.rows.above(ref)) this.closed.delete(above);
      this.rows.fold(this.closed);
      this.list.resize(this.count);
    }
    const place = this.placeOf(ref);
    this.list.redraw();
    if (place >= 0) this.list.reveal(place, true);
    this.frame.tree.setAttribute("aria-activedescendant", `row-${isCast(ref) ? `c${castOf(ref)}` : ref}`);
    this.timeline.selected = isCast(ref) ? -1 : ref;
    this.timeline.draw();
    if (read) this.later(ref, quiet);
  }

  later(ref, quiet) {
    clearTimeout(this.reading);
    this.reading = setTimeout(() => this.read(ref, false, quiet), this.shown === undefined ? 0 : 60);
  }

  async read(ref, whole = false, quiet = false) {
    if (ref === null) return;
    this.shown = ref;
    try {
      const data = isCast(ref) ? await this.source.cast(castOf(ref), whole) : await this.source.turn(ref, whole);
      if (this.selected !== ref) return;
      this.frame.show(isCast(ref) ? castBody(data, this.view) : turnBody(data, this.view));
      this.turn = isCast(ref) ? null : data;
      this.rewarded = this.columns.given.get(ref)?.length ?? 0;
      if (!quiet) this.address.at(this.turn?.id ?? null);
    } catch (error) {
      this.frame.show([h("p", { class: "note failed" }, error.message)]);
    }
  }

  async goTo(id) {
    try {
      const n = await this.source.find(id);
      if (this.hits !== null) this.leaveSearch();
      if (n >= this.columns.length) await this.growing.refresh();
      if (!this.rows.refs.includes(n)) this.layout();
      this.select(n);
      this.frame.reading(true);
    } catch (error) {
      this.frame.say(error.message);
    }
  }

  toggle(ref, open = this.closed.has(ref)) {
    if (this.hits !== null) return;
    if (open) this.closed.delete(ref);
    else this.closed.add(ref);
    this.rows.fold(this.closed);
    this.list.resize(this.count);
  }

  step(by) {
    const place = this.placeOf(this.selected);
    this.select(this.refAt(Math.max(0, Math.min(this.count - 1, place + by))));
  }

  /** The next turn, in the order of the list, that a test holds for. */
  jump(by, holds, what) {
    const refs = this.hits === null ? this.rows.refs : this.hits.map((hit) => hit.n);
    const from = refs.indexOf(this.selected);
    for (let k = 1; k <= refs.length; k += 1) {
      const ref = refs[(from + by * k + refs.length * 2) % refs.length];
      if (!isCast(ref) && holds(ref)) return this.select(ref);
    }
    return this.frame.say(`no ${what} here`);
  }

  // Search

  find(query) {
    this.search?.stop();
    if (!query.trim()) return this.leaveSearch();
    this.hits = [];
    this.frame.tree.scrollTop = 0;
    this.list.resize(0);
    const search = new Search(this.columns, this.source, query, (hits, progress) => {
      this.hits = hits;
      this.frame.found(hits.length, progress, search.asked.wrong);
      this.list.resize(this.count);
    });
    this.search = search;
    return search.run().catch((error) => this.frame.trouble(error));
  }

  leaveSearch() {
    this.search?.stop();
    this.search = null;
    this.hits = null;
    this.frame.search.value = "";
    this.frame.found(null);
    this.list.resize(this.count);
    if (this.selected !== null) this.select(this.selected, { read: false });
  }

  openCompare(n) {
    if (this.view.about.ends) return this.compareLooms();
    if (n === undefined || n < 0) return this.frame.say("choose a turn first");
    this.frame.main.classList.add("comparing");
    return this.compare.open(n);
  }

  /** Show the threads side by side that the two looms end with. */
  compareLooms() {
    this.frame.main.classList.add("comparing");
    this.compare.openEnds();
  }

  closeCompare() {
    this.compare.element.hidden = true;
    this.frame.main.classList.remove("comparing");
    this.frame.tree.focus();
    this.list.redraw();
  }

  actions = {
    next: () => this.step(1),
    before: () => this.step(-1),
    pageOn: () => this.step(Math.max(1, Math.floor(this.frame.tree.clientHeight / ROW) - 1)),
    pageBack: () => this.step(-Math.max(1, Math.floor(this.frame.tree.clientHeight / ROW) - 1)),
    first: () => this.select(this.refAt(0)),
    last: () => this.select(this.refAt(this.count - 1)),
    into: () => (this.closed.has(this.selected) ? this.toggle(this.selected, true) : this.step(1)),
    out: () => {
      const i = this.rows.seen[this.placeOf(this.selected)];
      if (this.hits === null && i !== undefined && this.rows.holds(i) && !this.closed.has(this.selected)) return this.toggle(this.selected, false);
      const [above] = this.rows.above(this.selected);
      return this.select(above ?? this.refAt(0));
    },
    read: () => this.frame.read(),
    search: () => this.frame.search.focus(),
    nextError: () => this.jump(1, (n) => this.columns.has(n, ERROR), "error"),
    errorBefore: () => this.jump(-1, (n) => this.columns.has(n, ERROR), "error"),
    nextReward: () => this.jump(1, (n) => this.columns.rewards.has(n), "reward"),
    rewardBefore: () => this.jump(-1, (n) => this.columns.rewards.has(n), "reward"),
    giveReward: () => this.frame.details.querySelector("form.reward input")?.focus() ?? this.frame.say("this view gives no rewards here"),
    compare: () => this.openCompare(this.selected !== null && !isCast(this.selected) ? this.selected : this.rows.refs.find((ref) => !isCast(ref) && castRef(this.columns.cast[ref]) === this.selected)),
    copyFork: () => (this.turn ? this.frame.copy(forkCommand(this.turn.location ?? this.view.about.location, this.turn.id), "The command") : this.frame.say("choose a turn first")),
    copyLink: () => (this.turn ? this.frame.copy(this.address.link(this.turn.id), "The link") : this.frame.say("choose a turn first")),
    follow: () => this.frame.follow((this.following = !this.following)),
    closeAll: () => this.foldAll(true),
    openAll: () => this.foldAll(false),
    theme: () => this.frame.theme(),
    help: () => this.frame.help.showModal(),
    leave: () => {
      if (!this.compare.element.hidden) return this.closeCompare();
      if (document.activeElement === this.frame.search && this.frame.search.value === "") return this.frame.tree.focus();
      if (this.hits !== null) this.leaveSearch();
      this.frame.reading(false);
      return this.frame.tree.focus();
    },
  };

  foldAll(closed) {
    this.closed = new Set(closed ? this.rows.refs.filter((ref) => isCast(ref)) : []);
    this.rows.fold(this.closed);
    this.list.resize(this.count);
    if (this.selected !== null && this.placeOf(this.selected) < 0) this.selected = this.rows.above(this.selected).at(-1) ?? this.refAt(0);
    this.list.redraw();
  }
}

const address = new Address();
const app = new App(Kept.here() ? new Kept() : new Served(address.token), address);
app.begin().catch((error) => app.frame.refused(error));
