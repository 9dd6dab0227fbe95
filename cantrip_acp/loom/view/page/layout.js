// The tree as rows: a chain of turns stays in its column, a branch off it moves to the right, a cast has a row of its own.
// What a row holds is exactly the deeper rows below it, so that closing it hides those.

import { CALL } from "./columns.js";

/** A row's reference: a turn's number, or -1 - a cast's. */
export const castRef = (cast) => -1 - cast;
export const castOf = (ref) => -1 - ref;
export const isCast = (ref) => ref < 0;

export function layout(columns) {
  const n = columns.length;
  const { parent, cast, entity, role } = columns;
  const first = new Int32Array(n).fill(-1), last = new Int32Array(n).fill(-1), next = new Int32Array(n).fill(-1);
  const stack = [];
  for (let i = 0; i < n; i += 1) {
    const p = parent[i];
    if (p < 0) continue;
    if (first[p] < 0) first[p] = i;
    else next[last[p]] = i;
    last[p] = i;
  }
  const refs = [], depths = [];
  const row = (ref, depth) => {
    refs.push(ref);
    depths.push(depth);
  };
  for (let i = n - 1; i >= 0; i -= 1) if (parent[i] < 0) stack.push(i, 0);
  const shown = new Uint8Array(columns.casts.length + 1);
  while (stack.length) {
    const depth = stack.pop(), node = stack.pop();
    const child = role[node] === CALL && parent[node] >= 0;
    // A child's call stands among the turns of its cast, which is that of the turn below it.
    const of = child && first[node] >= 0 ? cast[first[node]] : cast[node];
    let at = depth;
    // A depth from the stack is that of the row that comes next: the cast's, where one begins here.
    if (of >= 0 && (parent[node] < 0 || cast[parent[node]] !== of)) {
      if (!shown[of]) row(castRef(of), at);
      shown[of] = 1;
      at += 1;
    }
    row(node, at);
    if (first[node] < 0) continue;
    let main = -1;
    if (role[node] !== CALL) {
      for (let k = first[node]; k >= 0 && main < 0; k = next[k]) if (entity[k] === entity[node]) main = k;
      if (main < 0 && next[first[node]] < 0) main = first[node];
    }
    const sides = [];
    for (let k = first[node]; k >= 0; k = next[k]) if (k !== main) sides.push(k);
    if (main >= 0) stack.push(main, cast[main] === of ? at : Math.max(0, at - 1));
    const side = role[node] === CALL ? depth : at + 1;
    for (const k of sides.reverse()) stack.push(k, side);
  }
  columns.casts.forEach((known, i) => {
    if (known && !shown[i] && !columns.continued(i)) row(castRef(i), 0);
  });
  return new Rows(refs, depths);
}

/** Rows in order, and which of them are seen. */
export class Rows {
  constructor(refs, depths) {
    this.refs = refs;
    this.depths = depths;
    this.seen = [];
    this.placeOf = new Map();
  }

  /** Leave out what closed rows hold. */
  fold(closed) {
    this.seen = [];
    let under = Infinity;
    for (let i = 0; i < this.refs.length; i += 1) {
      if (this.depths[i] > under) continue;
      under = closed.has(this.refs[i]) ? this.depths[i] : Infinity;
      this.seen.push(i);
    }
    this.placeOf = new Map();
    this.seen.forEach((i, place) => {
      this.placeOf.set(this.refs[i], place);
    });
    return this;
  }

  holds(i) {
    return i + 1 < this.refs.length && this.depths[i + 1] > this.depths[i];
  }

  /** Whose rows a row is among, nearest first. */
  above(ref) {
    let i = this.refs.indexOf(ref);
    const above = [];
    for (let depth = this.depths[i] ?? 0; i >= 0 && depth > 0; i -= 1)
      if (this.depths[i] < depth) {
        above.push(this.refs[i]);
        depth = this.depths[i];
      }
    return above;
  }
}
