// What differs between two texts, line by line; and diffs that are texts already.

import { h, visible } from "./dom.js";

const MOST_LINES = 3_000;

/** The shortest way from one list of lines to another (Myers): [sign, line] with " ", "-" and "+"; null where it is too long. */
export function changes(before, after) {
  let head = 0;
  while (head < before.length && head < after.length && before[head] === after[head]) head += 1;
  let tail = 0;
  while (tail < before.length - head && tail < after.length - head && before[before.length - 1 - tail] === after[after.length - 1 - tail])
    tail += 1;
  const a = before.slice(head, before.length - tail), b = after.slice(head, after.length - tail);
  const middle = a.length + b.length > MOST_LINES ? [...a.map((l) => ["-", l]), ...b.map((l) => ["+", l])] : shortest(a, b);
  return [
    ...before.slice(0, head).map((line) => [" ", line]),
    ...middle,
    ...before.slice(before.length - tail).map((line) => [" ", line]),
  ];
}

function shortest(a, b) {
  const n = a.length, m = b.length, max = n + m, trace = [];
  let reach = new Map([[1, 0]]);
  for (let d = 0; d <= max; d += 1) {
    trace.push(new Map(reach));
    for (let k = -d; k <= d; k += 2) {
      let x = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1)) ? reach.get(k + 1) : reach.get(k - 1) + 1;
      let y = x - k;
      while (x < n && y < m && a[x] === b[y]) {
        x += 1;
        y += 1;
      }
      reach.set(k, x);
      if (x >= n && y >= m) return walkedBack(a, b, trace, d);
    }
    // Two texts with little in common: the shortest way is not worth its time.
    if (d > 400) return [...a.map((l) => ["-", l]), ...b.map((l) => ["+", l])];
  }
  return [];
}

function walkedBack(a, b, trace, steps) {
  const out = [];
  let x = a.length, y = b.length;
  for (let d = steps; d >= 0; d -= 1) {
    const reach = trace[d], k = x - y;
    const from = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1)) ? k + 1 : k - 1;
    const startX = d === 0 ? 0 : reach.get(from), startY = d === 0 ? 0 : startX - from;
    while (x > startX && y > startY) {
      out.push([" ", a[x - 1]]);
      x -= 1;
      y -= 1;
    }
    if (d > 0) {
      if (x > startX) out.push(["-", a[x - 1]]);
      else if (y > startY) out.push(["+", b[y - 1]]);
    }
    x = startX;
    y = startY;
  }
  return out.reverse();
}

const CLASSES = { "+": "added", "-": "removed", "@": "hunk", " ": "same", "\\": "meta" };

/** A text that is a unified diff, coloured. */
export function unified(text) {
  return h(
    "pre",
    { class: "diff", tabindex: "0", "aria-label": "changes" },
    text.split("\n").map((line) => {
      const meta = /^(diff |index |--- |\+\+\+ )/.test(line);
      return lineOf(meta ? "meta" : (CLASSES[line[0]] ?? "same"), line);
    }),
  );
}

export function looksLikeDiff(text) {
  return /^(diff --git |--- [^\n]+\n\+\+\+ |@@ -\d)/.test(text) || /\n--- [^\n]+\n\+\+\+ [^\n]+\n@@ -\d/.test(text.slice(0, 4000));
}

/** Two texts as one diff; runs of what is the same are left out. */
export function between(before, after) {
  if (before.endsWith("\n") && after.endsWith("\n")) return between(before.slice(0, -1), after.slice(0, -1));
  const steps = changes(before === "" ? [] : before.split("\n"), after === "" ? [] : after.split("\n"));
  const near = new Uint8Array(steps.length);
  steps.forEach(([sign], i) => {
    if (sign !== " ") near.fill(1, Math.max(0, i - 3), i + 4);
  });
  const lines = [];
  let left = 0;
  const told = () => {
    if (left) lines.push(lineOf("hunk", `⋯ ${left} line${left === 1 ? "" : "s"} the same`));
    left = 0;
  };
  steps.forEach(([sign, line], i) => {
    if (!near[i]) {
      left += 1;
      return;
    }
    told();
    lines.push(lineOf(CLASSES[sign], `${sign}${line}`));
  });
  told();
  const shown = lines.slice(0, 2_000);
  if (lines.length > shown.length) shown.push(lineOf("hunk", `⋯ ${lines.length - shown.length} more lines`));
  return h("pre", { class: "diff", tabindex: "0", "aria-label": "changes" }, shown);
}

function lineOf(name, line) {
  return h("span", { class: `line ${name}` }, visible(line), "\n");
}
