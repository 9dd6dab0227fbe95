// The loom as columns that grow: the tree's shape, numbers, casts and rewards, each in the order of writing.

export const ERROR = 1, TERMINATED = 2, TRUNCATED = 4, CONTINUES = 8, CHANGED = 16;
export const CALL = 0, FOLD = 2;

export class Columns {
  constructor() {
    this.parent = [];
    this.role = [];
    this.cast = [];
    this.entity = [];
    this.time = [];
    this.ms = [];
    this.input = [];
    this.output = [];
    this.cached = [];
    this.cost = [];
    this.flags = [];
    this.reason = [];
    this.gates = [];
    this.model = [];
    /** Equal for turns in which the same was said, run and seen. */
    this.same = [];
    this.casts = [];
    /** The casts that a living process works on, by number. */
    this.running = new Set();
    this.castEvents = 0;
    /** The ids of the casts that another one continues. */
    this.resumed = new Set();
    /** The last cast of each intent. */
    this.begun = new Map();
    this.kept = {};
    this.rewards = new Map();
    this.rewardCount = 0;
    this.given = new Map();
    this.gateNames = new Map();
    this.totals = { turns: 0, input: 0, output: 0, cached: 0, cost: null, ms: 0, errors: 0, unknown: 0 };
    this.longest = 0;
  }

  /** Turns whose place is known; their numbers may still be on their way. */
  get length() {
    return this.parent.length;
  }

  /** Turns whose numbers are known. */
  get counted() {
    return this.flags.length;
  }

  takeNodes(data) {
    // An answer may overlap what is here already.
    for (let i = this.length - data.from; i < data.parent.length; i += 1) {
      this.parent.push(data.parent[i]);
      this.role.push(data.role[i]);
      this.cast.push(data.cast[i]);
      this.entity.push(data.entity[i]);
    }
  }

  takeNumbers(data) {
    for (let i = this.counted - data.from; i < data.flags.length; i += 1) {
      const n = this.counted;
      for (const name of ["time", "ms", "input", "output", "cached", "cost", "reason", "gates", "model", "same"])
        this[name].push(data[name][i]);
      this.flags.push(data.flags[i]);
      if (data.reward[i] !== null && !this.rewards.has(n)) this.rewards.set(n, data.reward[i]);
      for (const gate of data.gates[i]) this.gateNames.set(gate, (this.gateNames.get(gate) ?? 0) + 1);
      this.add(n);
    }
  }

  add(n) {
    const totals = this.totals;
    if (this.role[n] === CALL) return;
    if (this.role[n] !== FOLD) totals.turns += 1;
    // An unknown count is null, and the sum is of the rest.
    totals.input += this.input[n] ?? 0;
    totals.output += this.output[n] ?? 0;
    totals.cached += this.cached[n] ?? 0;
    if (this.input[n] === null || this.output[n] === null) totals.unknown += 1;
    totals.ms += this.ms[n];
    if (this.cost[n] !== null) totals.cost = (totals.cost ?? 0) + this.cost[n];
    if (this.flags[n] & ERROR) totals.errors += 1;
    this.longest = Math.max(this.longest, this.ms[n]);
  }

  takeCasts(data) {
    for (let i = this.castEvents - data.from; i < data.events.length; i += 1) {
      const event = data.events[i];
      const cast = (this.casts[event.cast] ??= {});
      cast[event.event] ??= event;
      if (event.event === "start") {
        if (event.resumes) this.resumed.add(event.resumes);
        if (!event.child) this.begun.set(event.same, Math.max(this.begun.get(event.same) ?? -1, event.cast));
      }
      this.castEvents += 1;
    }
  }

  takeRewards(data) {
    for (let i = this.rewardCount - data.from; i < data.given.length; i += 1) {
      const given = data.given[i];
      // A relative one stands beside what was given; where somebody could give none, there is none.
      if (given.reward !== null && given.kind !== "relative") this.rewards.set(given.turn, given.reward);
      this.given.set(given.turn, [...(this.given.get(given.turn) ?? []), given]);
      this.rewardCount += 1;
    }
  }

  /** What was asked for first: the intent of the first cast that is not a child's. */
  intent() {
    return this.casts.find((cast) => cast?.start?.intent && !cast.start.child)?.start.intent ?? null;
  }

  /** The turn with the newest answer of a cast that is not a child's; else where the last one was cut off; else null. */
  answer() {
    for (const flag of [TERMINATED, TRUNCATED])
      for (let n = this.counted - 1; n >= 0; n -= 1)
        if (this.has(n, flag) && !this.casts[this.cast[n]]?.start?.child) return n;
    return null;
  }

  has(n, flag) {
    return ((this.flags[n] ?? 0) & flag) !== 0;
  }

  /** The first and the last turn of each cast; nothing for one without turns. */
  get spans() {
    if (this.kept.spansOf === this.length) return this.kept.spans;
    const spans = [];
    for (let n = 0; n < this.length; n += 1) {
      const of = this.cast[n];
      if (of < 0 || this.role[n] === CALL) continue;
      (spans[of] ??= [n, n])[1] = n;
    }
    this.kept.spans = spans;
    this.kept.spansOf = this.length;
    return spans;
  }

  /** Whether a cast was cut off before its first turn and begun again later, as when a batch is resumed. */
  continued(i) {
    const cast = this.casts[i];
    if (!cast?.start || !cast.end || cast.end.terminated || cast.end.reason === "error" || this.spans[i] || cast.start.child) return false;
    return this.resumed.has(cast.start.id) || (this.begun.get(cast.start.same) ?? -1) > i;
  }

  /** How casts ended badly: with an error that no turn has, or cut off from outside. */
  endings() {
    const found = { failed: 0, cancelled: 0, interrupted: 0, continued: 0 };
    this.casts.forEach((cast, i) => {
      const { start, end } = cast ?? {};
      if (!end) {
        if (start && !this.running.has(i)) found.interrupted += 1;
      } else if (this.continued(i)) found.continued += 1;
      else if (end.reason === "error") found.failed += this.spans[i] && this.has(this.spans[i][1], ERROR) ? 0 : 1;
      else if (end.reason === "cancelled" || end.reason === "parent_terminated") found.cancelled += 1;
      else if (end.reason === "interrupted") found.interrupted += 1;
    });
    return found;
  }

  /** The casts with the same intent at the same place, such as the samples of one fork or of one batch, best first: an
   * empty list for a cast alone. */
  group(i) {
    const mark = `${this.castEvents} ${this.counted} ${this.rewardCount}`;
    if (this.kept.groupsOf !== mark) {
      const groups = new Map();
      this.casts.forEach((cast, k) => {
        if (!cast?.start || cast.start.child || this.continued(k)) return;
        const above = this.spans[k] ? this.parent[this.spans[k][0]] : -1;
        const key = `${cast.start.same} ${above >= 0 && this.role[above] !== CALL ? above : ""}`;
        groups.set(key, [...(groups.get(key) ?? []), k]);
      });
      this.kept.groups = new Map();
      for (const members of groups.values()) {
        if (members.length < 2) continue;
        const score = (k) => this.score(k) ?? -Infinity;
        const best = [...members].sort((a, b) => (score(a) === score(b) ? a - b : score(b) - score(a)));
        for (const k of members) this.kept.groups.set(k, best);
      }
      this.kept.groupsOf = mark;
    }
    return this.kept.groups.get(i) ?? [];
  }

  /** The reward of a cast's last turn; undefined if it has none. */
  score(i) {
    const span = this.spans[i];
    return span ? this.rewards.get(span[1]) : undefined;
  }

  /** From the root to a turn. */
  path(n) {
    const path = [];
    for (let at = n; at >= 0; at = this.parent[at]) path.push(at);
    return path.reverse();
  }

  /** Turns without children, in the order of writing; a call alone is none. */
  leaves() {
    const inner = new Uint8Array(this.length);
    for (const parent of this.parent) if (parent >= 0) inner[parent] = 1;
    const leaves = [];
    for (let n = 0; n < this.length; n += 1) if (!inner[n] && this.role[n] !== CALL) leaves.push(n);
    return leaves;
  }

  /** The turn with which the entity's thread through a turn ends now. */
  endOf(n) {
    let at = n;
    for (let i = n + 1; n >= 0 && i < this.length; i += 1) if (this.parent[i] === at && this.entity[i] === this.entity[at]) at = i;
    return at;
  }

  /** The leaf that a turn's thread ends in: always the child that goes on as the same entity, or the last one. */
  leafOf(n) {
    const next = new Map();
    for (let i = n + 1; i < this.length; i += 1) {
      const parent = this.parent[i];
      if (parent < n) continue;
      const before = next.get(parent);
      if (before === undefined || this.entity[before] !== this.entity[parent]) next.set(parent, i);
    }
    let at = n;
    while (next.has(at)) at = next.get(at);
    return at;
  }
}
