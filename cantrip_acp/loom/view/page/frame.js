// The page's fixed parts: the bar at the top, damage, the strip, the list, what is read, messages.

import { button, h, icon, plain, visible } from "./dom.js";
import { HELP, MARKS } from "./finder.js";
import { count, money, short, span } from "./format.js";
import { helpDialog } from "./keys.js";

const THEME = "cantrip-loom-theme";

export class Frame {
  constructor(app) {
    this.app = app;
    const root = document.getElementById("app");
    this.name = h("span", { class: "name" }, "Loom");
    this.live = h("span", { class: "live", hidden: true, title: "follows what is written" }, h("i", {}), h("span", {}, "live"));
    this.search = h("input", { type: "search", placeholder: "Search turns  ( / )", "aria-label": "search turns", spellcheck: "false", autocomplete: "off" });
    this.filter = h("select", { class: "filter", "aria-label": "add a filter", onchange: () => this.addFilter() });
    this.sums = h("div", { class: "sums", "aria-label": "totals" });
    this.damage = h("div", { class: "damage", hidden: true, role: "alert" });
    this.canvas = h("canvas", { class: "strip", role: "img", "aria-label": "turns by duration" });
    this.status = h("div", { class: "found", role: "status", "aria-live": "polite" });
    this.tree = h("div", { class: "tree", role: "tree", tabindex: "0", "aria-label": "turns" });
    this.details = h("article", { class: "details", tabindex: "0", "aria-label": "the turn that is read" }, h("p", { class: "nothing" }, "Reading the loom…"));
    this.toast = h("div", { class: "toast", role: "status", "aria-live": "polite" });
    this.help = helpDialog(HELP);
    const side = h("section", { class: "side", "aria-label": "the tree" }, this.status, this.tree);
    this.main = h("main", {}, side, this.splitter(side), h("section", { class: "pane", "aria-label": "details" }, h("button", { type: "button", class: "back", onclick: () => app.actions.leave() }, icon("back"), "Turns"), this.details));
    this.followButton = button("Follow what is written (f)", "down", () => app.actions.follow(), { "aria-pressed": "false", class: "follow", hidden: !app.source.live });
    root.append(
      h(
        "header",
        { class: "top" },
        h("div", { class: "brand" }, icon("cast"), this.name, this.live),
        h("div", { class: "searching" }, icon("search"), this.search, this.filter),
        this.sums,
        h("nav", { class: "tools", "aria-label": "tools" }, button("Error before (E)", "up", () => app.actions.errorBefore(), { class: "jump" }), button("Next error (e)", "down", () => app.actions.nextError(), { class: "jump" }), button("Next reward (r)", "star", () => app.actions.nextReward()), this.followButton, button("Light or dark (t)", "theme", () => this.theme()), button("Keys (?)", "help", () => this.help.showModal())),
      ),
      this.damage,
      this.canvas,
      this.main,
      this.toast,
      this.help,
    );
    this.dress();
    this.gates(new Map());
  }

  splitter(side) {
    const bar = h("div", { class: "splitter", role: "separator", "aria-orientation": "vertical", "aria-label": "width of the list", tabindex: "0", "aria-valuemin": "20", "aria-valuemax": "80", "aria-valuenow": "50" });
    const set = (percent) => {
      const value = Math.max(20, Math.min(80, percent));
      side.style.flexBasis = `${value}%`;
      bar.setAttribute("aria-valuenow", Math.round(value));
    };
    bar.addEventListener("pointerdown", (event) => bar.setPointerCapture(event.pointerId));
    bar.addEventListener("pointermove", (event) => {
      if (bar.hasPointerCapture(event.pointerId)) set((event.clientX / this.main.clientWidth) * 100);
    });
    bar.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -2, ArrowRight: 2 }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      set(Number(bar.getAttribute("aria-valuenow")) + by);
    });
    return bar;
  }

  about(about) {
    const name = about.location.replace(/[?#].*$/, "").split("/").at(-1).replace(/\.loom\.jsonl$/, "");
    this.file = name;
    this.name.title = plain(about.location);
    this.entitle(this.app.columns.intent());
    this.live.hidden = !this.app.source.live || about.broken !== null;
    if (about.loading) this.say(`opening: ${count(about.turns, "turn")} so far`);
    const later = Object.entries(about.later).map(([kind, many]) => `${count(many, "record")} of kind ${kind} of a later version: kept, and not shown here`);
    const told = [...(about.broken ? [about.broken] : []), ...about.problems, ...later];
    this.damage.hidden = told.length === 0;
    if (this.damage.told === told.join("\n")) return;
    this.damage.told = told.join("\n");
    const head = about.broken ? "This loom cannot be followed any more" : `This loom is damaged: ${count(about.problem_count, "place")} could not be read; all else is here`;
    const title = about.broken || about.problem_count ? head : later.join("; ");
    this.damage.replaceChildren(
      h("details", {}, h("summary", {}, visible(title)), h("ul", {}, told.map((line) => h("li", {}, visible(line))), about.problem_count > about.problems.length ? h("li", {}, "… and more") : null)),
    );
  }

  /** The title is the intent; the name of the file where there is none. */
  entitle(intent) {
    const title = intent || this.file || "loom";
    if (this.titled === title) return;
    this.titled = title;
    this.name.replaceChildren(...visible(title));
    document.title = `${plain(title)} · loom`;
  }

  totals(columns) {
    const { turns, input, output, cost, ms, errors, unknown } = columns.totals;
    const more = unknown ? "+?" : "";
    const loading = columns.counted < columns.length ? ` of ${count(columns.length)}` : "";
    const { failed, cancelled, interrupted, continued } = columns.endings();
    const bad = errors + failed;
    const again = continued ? `; ${count(continued, "cast")} that had not begun to answer ${continued === 1 ? "was" : "were"} started again later and ${continued === 1 ? "is" : "are"} not counted` : "";
    const one = (value, name, title, kind = "") => h("span", { class: `sum ${kind}`, title }, h("b", {}, value), ` ${name}`);
    this.sums.replaceChildren(
      one(count(turns) + loading, "turns", "turns in which the crystal spoke"),
      one(short(input) + more, "in", `${count(input)} tokens read${unknown ? `, and those of ${count(unknown, "turn")} that are not known` : ""}`),
      one(short(output) + more, "out", `${count(output)} tokens written`),
      cost === null ? "" : one(money(cost), "", "what all turns cost together"),
      one(span(ms), "", "what all turns took together"),
      one(count(bad), bad === 1 ? "error" : "errors", `turns in which something failed, and casts that ended with an error${again}`, bad ? "bad" : ""),
      cancelled ? one(count(cancelled), "cancelled", `casts that were stopped${again}`) : "",
      interrupted ? one(count(interrupted), "interrupted", "casts whose process ended first") : "",
    );
  }

  gates(names) {
    const known = [...names.keys()].sort().join("\n");
    if (this.filter.known === known) return;
    this.filter.known = known;
    const options = (label, tokens) => h("optgroup", { label }, tokens.map((token) => h("option", { value: token }, plain(token))));
    this.filter.replaceChildren(
      h("option", { value: "" }, "Filter"),
      options("Outcome", [...MARKS.map((mark) => `is:${mark}`), "reason:done", "reason:text", "reason:max_turns", "reason:cancelled"]),
      options("Reward", ["reward:>0", "reward:<=0"]),
      options("Gate", [...names.keys()].sort().slice(0, 200).map((name) => `gate:${name}`)),
    );
  }

  addFilter() {
    const token = this.filter.value;
    this.filter.value = "";
    if (!token) return;
    this.search.value = `${this.search.value} ${token}`.trim();
    this.app.find(this.search.value);
  }

  found(number, progress = null, wrong = []) {
    if (number === null) return this.status.replaceChildren();
    const more = progress === null ? "" : ` · ${Math.round(progress * 100)} % searched`;
    const odd = wrong.length ? ` · not understood: ${plain(wrong.join(" "))}` : "";
    return this.status.replaceChildren(`${count(number, "turn")} found${more}${odd}`, h("button", { type: "button", onclick: () => this.app.leaveSearch() }, "Clear (Esc)"));
  }

  show(children) {
    this.details.replaceChildren(...children);
    this.details.scrollTop = 0;
  }

  /** Go to what is read; on a narrow page it takes the list's place. */
  read() {
    this.reading(true);
    this.details.focus();
  }

  reading(on) {
    this.main.classList.toggle("reading", on);
  }

  say(text) {
    this.toast.replaceChildren(...visible(text));
    this.toast.classList.add("shown");
    clearTimeout(this.saying);
    this.saying = setTimeout(() => this.toast.classList.remove("shown"), 2_500);
  }

  grew(by) {
    this.live.classList.add("new");
    setTimeout(() => this.live.classList.remove("new"), 1_500);
    this.toast.setAttribute("data-grown", by);
  }

  follow(on) {
    this.followButton.setAttribute("aria-pressed", on);
    this.say(on ? "following what is written" : "not following");
    if (on) this.app.select(this.app.columns.length - 1);
  }

  async copy(text, what) {
    try {
      await navigator.clipboard.writeText(text);
      this.say(`${what} is copied`);
    } catch {
      // Without leave to write the clipboard, the text is there to be copied by hand.
      const field = h("textarea", { readonly: true, "aria-label": what, class: "by-hand" });
      field.value = text;
      this.toast.replaceChildren("Copy it from here:", field);
      this.toast.classList.add("shown");
      field.select();
      field.addEventListener("blur", () => this.toast.classList.remove("shown"));
    }
  }

  trouble(error) {
    this.live.classList.toggle("lost", error !== null);
    if (error !== null) this.say(error instanceof TypeError ? "the server has ended; start `cantrip loom view` again" : error.message);
  }

  refused(error) {
    const known = error.status === 403;
    this.show([h("div", { class: "note failed" }, h("h2", {}, known ? "This page needs its whole address" : "The loom cannot be shown"), h("p", {}, visible(error.message)), known ? h("p", {}, "Open the address that ", h("code", {}, "cantrip loom view"), " printed; it ends in a token that only you have.") : null)]);
    this.reading(true);
  }

  dress() {
    let kept = this.app.address.theme;
    try {
      kept ??= localStorage.getItem(THEME);
    } catch {
      // A frame may have no store of its own.
    }
    if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.app.timeline.draw());
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
    this.app.timeline.draw();
  }
}
