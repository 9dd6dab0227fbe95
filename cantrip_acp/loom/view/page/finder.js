// Looking for turns: words, which the source finds in bodies, and marks, which the columns tell by themselves.

import { CALL, CHANGED, ERROR, FOLD, TERMINATED, TRUNCATED } from "./columns.js";

const IS = {
  error: (c, n) => c.has(n, ERROR),
  terminated: (c, n) => c.has(n, TERMINATED),
  truncated: (c, n) => c.has(n, TRUNCATED),
  changed: (c, n) => c.has(n, CHANGED),
  fold: (c, n) => c.role[n] === FOLD,
  rewarded: (c, n) => c.rewards.has(n),
};

export const MARKS = Object.keys(IS);
export const HELP = "words · gate:NAME · is:error · is:truncated · is:changed · is:rewarded · reason:max_turns · reward:>0 · model:NAME";

/** What was asked for: words, and tests that every hit passes. `wrong` names what is not understood. */
export function understood(query) {
  const words = [], tests = [], wrong = [];
  for (const [token] of query.matchAll(/"[^"]*"?|\S+/g)) {
    const [, name, value] = /^(gate|is|reason|reward|model):(.+)$/.exec(token) ?? [];
    if (name === undefined) words.push(token.replace(/^"|"$/g, ""));
    else if (name === "gate") tests.push((c, n) => c.gates[n]?.includes(value));
    else if (name === "model") tests.push((c, n) => (c.model[n] ?? "").includes(value));
    else if (name === "reason") tests.push((c, n) => c.reason[n] === value);
    else if (name === "is" && IS[value]) tests.push(IS[value]);
    else if (name === "reward" && /^[<>]?=?-?\d+(\.\d+)?$/.test(value)) tests.push(rewarded(value));
    else wrong.push(token);
  }
  return { words: words.join(" ").trim(), tests, wrong };
}

function rewarded(value) {
  const [, sign, number] = /^([<>]?=?)(.*)$/.exec(value);
  const wanted = Number(number);
  const holds = {
    "": (r) => r === wanted,
    "=": (r) => r === wanted,
    ">": (r) => r > wanted,
    ">=": (r) => r >= wanted,
    "<": (r) => r < wanted,
    "<=": (r) => r <= wanted,
  }[sign];
  return (c, n) => c.rewards.has(n) && holds(c.rewards.get(n));
}

/** A search that runs until its end, its limit, or `stop`; `told(hits, progress)` hears of what was found so far. */
export class Search {
  constructor(columns, source, query, told) {
    this.columns = columns;
    this.source = source;
    this.asked = understood(query);
    this.told = told;
    this.stopping = new AbortController();
    this.hits = [];
  }

  stop() {
    this.stopping.abort();
  }

  passes(n) {
    return this.asked.tests.every((test) => test(this.columns, n));
  }

  async run() {
    const { signal } = this.stopping;
    const total = this.columns.counted;
    if (!this.asked.words) {
      for (let n = 0; n < total; n += 1) if (this.columns.role[n] !== CALL && this.passes(n)) this.hits.push({ n });
      this.told(this.hits, null);
      return;
    }
    let at = 0;
    while (at !== null && !signal.aborted && this.hits.length < LIMIT) {
      try {
        const answer = await this.source.search(this.asked.words, at, signal);
        this.hits.push(...answer.hits.filter((hit) => this.passes(hit.n)));
        at = answer.next;
      } catch (error) {
        if (signal.aborted) return;
        throw error;
      }
      if (!signal.aborted) this.told(this.hits, at === null || this.hits.length >= LIMIT ? null : at / Math.max(1, total));
    }
  }
}

export const LIMIT = 2_000;
