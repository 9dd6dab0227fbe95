// Where the loom's data come from: the server that sent the page, or the file that the page is.

/** Asks the server; every question carries the token. */
export class Served {
  constructor(token) {
    this.token = token;
    this.live = true;
  }

  async get(name, parameters = {}, signal = undefined) {
    const query = new URLSearchParams(parameters);
    const answer = await fetch(`api/${name}?${query}`, {
      headers: { Authorization: `Bearer ${this.token}` },
      credentials: "omit",
      cache: "no-store",
      signal,
    });
    return this.read(answer);
  }

  async read(answer) {
    const data = await answer.json();
    if (answer.ok) return data;
    const error = new Error(data.error ?? `the server answered ${answer.status}`);
    error.status = answer.status;
    throw error;
  }

  loom() {
    return this.get("loom");
  }
  nodes(from) {
    return this.get("nodes", { from });
  }
  numbers(from) {
    return this.get("numbers", { from });
  }
  casts(from) {
    return this.get("casts", { from });
  }
  rewards(from) {
    return this.get("rewards", { from });
  }
  rows(numbers) {
    return this.get("rows", { n: numbers.join(",") });
  }
  turn(n, whole = false) {
    return this.get("turn", whole ? { n, whole: 1 } : { n });
  }
  cast(n, whole = false) {
    return this.get("cast", whole ? { n, whole: 1 } : { n });
  }
  search(q, from, signal) {
    return this.get("search", { q, from }, signal);
  }
  async find(id) {
    return (await this.get("find", { id })).n;
  }
  wait(seen, signal) {
    return this.get("wait", { seen, ms: 20_000 }, signal);
  }
  async reward(id, reward, note) {
    const answer = await fetch("api/reward", {
      method: "POST",
      headers: { Authorization: `Bearer ${this.token}`, "Content-Type": "application/json" },
      credentials: "omit",
      body: JSON.stringify({ id, reward, note }),
    });
    return this.read(answer);
  }
}

const BLOCK = 100;
const SEARCHED = 50;

/** Reads the blocks of a page that was written to a file. */
export class Kept {
  constructor() {
    this.live = false;
    this.blocks = new Map();
  }

  static here() {
    return document.getElementById("data-loom") !== null;
  }

  block(name) {
    let block = this.blocks.get(name);
    if (block === undefined) {
      const element = document.getElementById(`data-${name}`);
      block = element === null ? null : JSON.parse(element.textContent);
      this.blocks.set(name, block);
      // Bodies are many; the last few are kept.
      if (this.blocks.size > 300) this.blocks.delete(this.blocks.keys().next().value);
    }
    return block;
  }

  async loom() {
    return this.block("loom");
  }
  async nodes(from) {
    return this.block(`nodes-${from}`) ?? { from, parent: [], role: [], cast: [], entity: [], total: from };
  }
  async numbers(from) {
    return this.block(`numbers-${from - (from % 2000)}`) ?? { from, flags: [] };
  }
  async casts(from) {
    return this.block(`casts-${from}`) ?? { from, events: [], total: from };
  }
  async rewards(from) {
    return this.block(`rewards-${from}`) ?? { from, given: [], total: from };
  }
  async rows(numbers) {
    return numbers.map((n) => this.block(`rows-${n - (n % BLOCK)}`)?.[n % BLOCK]).filter(Boolean);
  }
  async turn(n) {
    return this.block(`turns-${n - (n % BLOCK)}`)[n % BLOCK];
  }
  async cast(n) {
    return this.block(`cast-${n - (n % BLOCK)}`)[n % BLOCK];
  }

  async search(q, from) {
    const wanted = q.toLowerCase();
    const total = this.block("loom").turns;
    const hits = [];
    const end = Math.min(from + SEARCHED, total);
    for (let n = from; n < end; n += 1) {
      const hit = foundIn(await this.turn(n), wanted);
      if (hit) hits.push({ n, ...hit });
    }
    // The page stays awake between pieces.
    await new Promise((go) => setTimeout(go));
    return { hits, next: end < total ? end : null };
  }

  async find(id) {
    const total = this.block("loom").turns;
    for (let from = 0; from < total; from += BLOCK) {
      const found = this.block(`rows-${from}`).find((row) => row.id === id);
      if (found) return found.n;
    }
    throw new Error(`no turn ${id} in this loom`);
  }
}

function foundIn(turn, wanted) {
  const { utterance: said, observation: seen } = turn;
  const words = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const places = [["content", said.content], ["thinking", said.thinking], ["code", said.code]];
  for (const call of said.tool_calls) places.push([`call of ${call.gate}`, `${call.gate} ${call.args}`]);
  for (const r of seen.results) places.push([`result of ${r.gate}`, `${r.gate} ${words(r.args)} ${words(r.result)}`]);
  for (const key of ["stdout", "stderr", "error", "value"]) places.push([key, seen.output?.[key]]);
  places.push(["id", turn.id], ["model", turn.metadata.model]);
  for (const [place, value] of places) {
    if (!value) continue;
    const text = words(value);
    const at = text.toLowerCase().indexOf(wanted);
    if (at < 0) continue;
    const end = at + wanted.length;
    return { in: place, before: text.slice(Math.max(0, at - 60), at), match: text.slice(at, end), after: text.slice(end, end + 60) };
  }
  return null;
}
