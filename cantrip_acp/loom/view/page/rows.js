// One row of the list: a cast with its intent, or a turn with what it said or ran.

import { ERROR, FOLD, CALL, TERMINATED, TRUNCATED } from "./columns.js";
import { h, icon, plain } from "./dom.js";
import { ago, money, reward, short, span } from "./format.js";
import { castOf, isCast } from "./layout.js";

const DEEPEST = 14;

/** Fill an element. `row` is {ref, depth, holds, closed, selected, label, hit}; the label may still be on its way. */
export function drawRow(element, row, columns, now) {
  const cast = isCast(row.ref);
  element.className = `row${cast ? " cast" : ""}${row.selected ? " selected" : ""}`;
  element.id = `row-${row.ref < 0 ? `c${castOf(row.ref)}` : row.ref}`;
  element.dataset.ref = row.ref;
  element.setAttribute("role", "treeitem");
  element.setAttribute("aria-level", row.depth + 1);
  element.setAttribute("aria-posinset", row.place + 1);
  element.setAttribute("aria-setsize", row.total);
  element.setAttribute("aria-selected", row.selected);
  if (row.holds) element.setAttribute("aria-expanded", !row.closed);
  else element.removeAttribute("aria-expanded");
  element.style.setProperty("--depth", Math.min(row.depth, DEEPEST));
  const twist = h("span", { class: `twist${row.holds ? (row.closed ? " closed" : " open") : ""}` }, row.holds ? icon("open") : null);
  element.replaceChildren(twist, ...(cast ? castCells(castOf(row.ref), columns, now) : turnCells(row, columns, now)));
}

function castCells(cast, columns, now) {
  const known = columns.casts[cast] ?? {};
  const { start, end } = known;
  const group = columns.group(cast);
  const given = columns.score(cast);
  const state = end
    ? h("span", { class: `badge ${end.terminated ? "good" : "warn"}` }, plain(end.reason ?? "ended"))
    : h("span", { class: `badge ${columns.running.has(cast) ? "info" : "warn"}` }, columns.running.has(cast) ? "active" : "interrupted");
  return [
    icon(start?.fork ? "fork" : "cast"),
    group.length ? h("span", { class: "seq", title: given === undefined ? "no reward" : "rank by reward" }, `${given === undefined ? "—" : group.indexOf(cast) + 1}/${group.length}`) : null,
    // Those of a group have the same intent: their answers differ.
    h("span", { class: "label intent" }, plain((group.length && end?.told) || start?.intent || "a cast whose start is lost")),
    group.length && given !== undefined ? h("span", { class: `badge ${given < 0 ? "bad" : "reward"}` }, `★ ${reward(given)}`) : null,
    start?.fork ? h("span", { class: "badge info" }, "fork") : start?.child ? h("span", { class: "badge info" }, "child") : null,
    state,
    h("span", { class: "cell took" }, end && start ? span(end.time - start.time) : ""),
    h("span", { class: "cell when" }, ago(start?.time, now)),
  ].filter(Boolean);
}

function turnCells(row, columns, now) {
  const n = row.ref, { label, hit } = row;
  const fold = columns.role[n] === FOLD, call = columns.role[n] === CALL;
  const kind = fold ? "fold" : call ? "call" : (label?.kind ?? "text");
  const gates = columns.gates[n] ?? [];
  const given = columns.rewards.get(n);
  const reason = columns.reason[n];
  const tokens = (columns.input[n] ?? 0) + (columns.output[n] ?? 0);
  const text = hit
    ? h("span", { class: "label" }, h("span", { class: "dim" }, `…${plain(hit.before.slice(-18))}`), h("mark", {}, plain(hit.match)), plain(hit.after))
    : label
      ? h("span", { class: `label ${label.kind === "code" && !label.said ? "mono" : call || fold ? "dim" : ""}` }, call ? "the call and its circle" : plain(label.said || label.text), label.said && label.text ? h("span", { class: "dim mono" }, ` ${plain(label.text)}`) : null)
      : h("span", { class: "label waiting" }, "…");
  return [
    icon(kind),
    h("span", { class: "seq" }, call || fold ? "" : String(label?.seq ?? "")),
    ...(hit ? [hit.in] : gates.slice(0, 3)).map((gate) => h("span", { class: "chip" }, plain(gate))),
    !hit && gates.length > 3 ? h("span", { class: "chip" }, `+${gates.length - 3}`) : null,
    text,
    columns.has(n, ERROR) ? h("span", { class: "badge bad" }, "error") : null,
    reason && reason !== "error" ? h("span", { class: `badge ${columns.has(n, TERMINATED) ? "good" : columns.has(n, TRUNCATED) ? "warn" : ""}` }, plain(reason)) : null,
    given !== undefined ? h("span", { class: `badge ${given < 0 ? "bad" : "reward"}` }, `★ ${reward(given)}`) : null,
    h("span", { class: "cell tokens", title: "tokens" }, columns.input[n] === null ? "?" : tokens ? short(tokens) : ""),
    h("span", { class: "cell cost" }, money(columns.cost[n])),
    call ? null : bar(columns.ms[n], columns.longest),
    h("span", { class: "cell took" }, call ? "" : span(columns.ms[n])),
    h("span", { class: "cell when" }, ago(columns.time[n], now)),
  ].filter(Boolean);
}

function bar(ms, longest) {
  const part = h("span", { class: "part-of" });
  part.style.width = `${longest ? Math.max(2, Math.sqrt((ms ?? 0) / longest) * 100) : 0}%`;
  return h("span", { class: "bar", "aria-hidden": "true" }, part);
}
