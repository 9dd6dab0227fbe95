// A turn, a cast or the call in full.

import { badge, clamped, gateCall, output, part, picture, shown } from "./blocks.js";
import { button, h, icon, plain, visible } from "./dom.js";
import { ago, clock, count, money, reward, span } from "./format.js";
import { data, program, prose } from "./words.js";

const LONGEST_PROSE = 100_000;

/** `view` gives columns, source, about, go(ref), copy(text, what), compare(n). */
export function turnBody(turn, view) {
  const { utterance: said, observation: seen, metadata: told } = turn;
  const body = [];
  if (turn.role === "call") body.push(...callBody(turn.cantrip));
  for (const each of told.voided ?? []) {
    const what = [each.thinking, each.content].filter(Boolean).join("\n\n");
    body.push(h("details", { class: "part void" }, h("summary", {}, `Attempt ${each.attempt} ${each.rejected ? "was rejected" : "broke off"}: ${plain(each.error)}`), h("del", {}, visible(what))));
  }
  if (said.thinking) body.push(h("details", { class: "part thinking" }, h("summary", {}, "Thinking"), words(said.thinking)));
  if (said.content) body.push(part(turn.role === "fold" ? "What stands for the folded turns" : "Said", words(said.content)));
  const medium = said.tool_calls.find((call) => ["python", "bash"].includes(call.gate));
  if (said.code) body.push(part("Ran", clamped(said.code, (text) => program(text, medium?.gate ?? "python"))));
  body.push(...gates(said, seen));
  const outputs = seen.outputs?.length ? seen.outputs : seen.output ? [seen.output] : [];
  if (outputs.length) body.push(part("Output", outputs.map(output)));
  if (turn.files) body.push(filesPart(turn.files));
  body.push(rewardPart(turn, view));
  const of = view.columns.cast[turn.n];
  if (turn.reason && of >= 0) body.push(ranksPart(of, view));
  body.push(h("details", { class: "part raw" }, h("summary", {}, "The record itself"), lazily(() => data(without(turn)))));
  return [turnHead(turn, told, view), h("div", { class: "body" }, cutNote(turn, view), body)];
}

/** What is unknown is not a number: a dash stands for it. */
const known = (value) => (value === null || value === undefined ? "—" : count(value));

const partial = (queries, otherwise) => (queries ? `not known of ${queries === 1 ? "1 query" : `${count(queries)} queries`}` : otherwise);

function turnHead(turn, told, view) {
  const { columns } = view;
  const name = turn.role === "call" ? "Call" : turn.role === "fold" ? "Fold" : `Turn ${turn.sequence || turn.n}`;
  const ending = turn.terminated ? "good" : turn.truncated ? "warn" : "";
  const time = Date.parse(told.timestamp);
  const given = columns.rewards.get(turn.n);
  const facts = [
    ["Input", known(told.tokens_prompt), told.tokens_cached ? `${count(told.tokens_cached)} from a cache` : partial(told.queries_without_usage, "tokens")],
    ["Output", known(told.tokens_completion), partial(told.queries_without_usage, "tokens")],
    ["Cost", money(told.cost) || "—", told.cost === null ? "not known" : partial(told.queries_without_cost, "")],
    ["Took", span(told.duration_ms) || "—", ""],
    ["When", ago(time) || "—", clock(time)],
    ["Model", told.model ?? "—", [told.fingerprint, told.stop_reason].filter(Boolean).join(" · ")],
    ...Object.entries(told.request ?? {}).filter(([, value]) => value !== null).map(([name, value]) => [name, String(value), "as sent"]),
  ];
  return h(
    "header",
    { class: "head" },
    h(
      "div",
      { class: "title" },
      h("h2", { tabindex: "-1" }, name),
      turn.reason && badge(turn.reason, ending, "why the cast ended"),
      turn.continues && badge("continues", "info", `goes on with the utterance of ${turn.continues}`),
      turn.snapshot && badge("snapshot", "info", "the medium's state after this turn is kept"),
      turn.forks.map((fork) => badge(`forked · ${fork.strategy}`, "info", plain([fork.worktree, ...fork.missing].filter(Boolean).join(", ")))),
      given !== undefined && badge(`★ ${reward(given)}`, given < 0 ? "bad" : "reward", "reward"),
    ),
    h(
      "div",
      { class: "actions" },
      button(turn.id, null, () => view.copy(turn.id, "The turn's id"), { class: "id", "aria-label": plain(`copy the id ${turn.id}`) }),
      button("Copy a link to this turn", "link", () => view.copy(view.link(turn.id), "The link")),
      button("Copy a command that forks this turn (x)", "fork", () => view.copy(forkCommand(turn.location ?? view.about.location, turn.id), "The command")),
      button("Compare this thread with another (c)", "compare", () => view.compare(turn.n)),
    ),
    turn.role === "call"
      ? null
      : h("dl", { class: "facts" }, facts.map(([term, value, more]) => h("div", {}, h("dt", {}, term), h("dd", {}, visible(value)), more && h("dd", { class: "more" }, visible(more))))),
  );
}

/** A command for a shell: what is not plain is quoted. */
export function forkCommand(location, id) {
  return `cantrip loom fork ${quoted(location)} ${quoted(id)} "Your intent" --recipe RECIPE`;
}

const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

function gates(said, seen) {
  const left = [...seen.results];
  const cards = [];
  for (const call of said.tool_calls) {
    const at = left.findIndex((record) => record.tool_call_id === call.id && record.gate === call.gate);
    if (at >= 0) cards.push(gateCall(call.gate, call.args, left.splice(at, 1)[0]));
    else if (!isProgram(call, said)) cards.push(gateCall(call.gate, call.args));
  }
  cards.push(...left.map((record) => gateCall(record.gate, record.args, record)));
  return cards.length ? [part(cards.length === 1 ? "Gate" : "Gates", cards)] : [];
}

const isProgram = (call, said) => said.code && ["python", "bash"].includes(call.gate);

function callBody(cantrip) {
  if (!cantrip) return [h("p", { class: "nothing" }, "The loom does not have this call's cantrip.")];
  const { system_prompt: prompt, ...call } = cantrip.call;
  return [
    prompt ? part("System prompt", words(prompt)) : null,
    part("Call", data(call)),
    part("Circle", data(cantrip.circle)),
    h("p", { class: "more" }, plain(`cantrip ${cantrip.id}`)),
  ];
}

function words(text) {
  if (text.length > LONGEST_PROSE) return shown(text);
  return clamped(text, prose);
}

function cutNote(turn, view) {
  if (!turn.cut) return null;
  const note = `${count(turn.cut, "long text")} shown in part.`;
  return h("p", { class: "note" }, note, " ", h("button", { type: "button", onclick: () => view.whole() }, "Load all of it"));
}

function lazily(make) {
  const box = h("div");
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    seen.disconnect();
    box.append(make());
  });
  seen.observe(box);
  box.style.minHeight = "1px";
  return box;
}

function without(turn) {
  const { n, cut, forks, snapshot, cantrip, files, ...record } = turn;
  return record;
}

/** The workspace's files after the turn, as they were kept: in the state folder, or by an earlier version in a repository. */
function filesPart(files) {
  const kept = files.error
    ? h("p", { class: "note failed" }, visible(files.error))
    : h("p", {}, "Kept as ", h("code", {}, visible(files.checkpoint ?? files.commit ?? "")), " of ", h("code", {}, visible(files.workspace ?? files.repository ?? "")));
  return part("Files of the workspace", kept, files.missing.length ? h("ul", {}, files.missing.map((line) => h("li", {}, visible(line)))) : null);
}

function rewardPart(turn, view) {
  if (turn.role === "call") return null;
  const given = view.columns.given.get(turn.n) ?? [];
  const history = given.length
    ? h("ol", { class: "given" }, given.map((g) => h("li", {}, badge(g.reward === null ? "none" : reward(g.reward), g.reward < 0 ? "bad" : "reward"), g.kind && g.kind !== "explicit" && h("span", {}, visible(g.kind)), visible(g.by || "unknown"), h("span", { class: "more", title: g.timestamp }, ago(Date.parse(g.timestamp))), g.note && h("span", {}, visible(g.note)))))
    : null;
  if (view.about.readonly) return history && part("Rewards", history);
  // A field of numbers would drop what is half typed ("0."), and takes a comma or a point by the browser's language.
  const number = h("input", { type: "text", inputmode: "decimal", pattern: "\\s*[+\\-]?(\\d+([.,]\\d*)?|[.,]\\d+)\\s*", title: "a number, such as 0.5 or -1", required: true, name: "reward", class: "number", "aria-label": "reward", placeholder: "1.0" });
  const note = h("input", { type: "text", name: "note", maxlength: "4000", "aria-label": "why", placeholder: "why (kept with the reward)" });
  const state = h("span", { role: "status", class: "state" });
  const form = h("form", { class: "reward" }, number, note, h("button", { type: "submit" }, "Reward"), state);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    state.textContent = "…";
    try {
      await view.source.reward(turn.id, Number(number.value.replace(",", ".")), note.value || null);
      state.textContent = "given";
      await view.refresh();
    } catch (error) {
      state.textContent = error.message;
    }
  });
  return part("Rewards", history, form);
}

/** All answers to one intent, best first, where there are several: rank, score and answer. */
function ranksPart(cast, view) {
  const { columns } = view;
  const group = columns.group(cast);
  if (!group.length) return null;
  const rows = group.map((each, at) => {
    const { end } = columns.casts[each];
    const given = columns.score(each);
    const open = () => view.go(columns.spans[each]?.[1] ?? -1 - each);
    return h(
      "tr",
      { class: each === cast ? "this" : "" },
      h("td", {}, given === undefined ? "—" : String(at + 1)),
      h("td", {}, given === undefined ? "—" : reward(given)),
      h("td", {}, h("button", { type: "button", class: "answer", "aria-current": each === cast ? "true" : null, onclick: open }, plain(end ? end.told || end.reason || "—" : "not ended"))),
      h("td", {}, end ? badge(end.reason ?? "ended", end.terminated ? "good" : "warn") : null),
    );
  });
  const head = h("tr", {}, ["Rank", "Score", "Answer", "End"].map((name) => h("th", { scope: "col" }, name)));
  return part(`${count(group.length)} answers`, h("div", { class: "ranks" }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows))));
}

/** A cast: what was asked, with what, and how it ended. */
export function castBody(cast, view) {
  const { start, end } = cast;
  const began = Date.parse(start?.timestamp), ended = Date.parse(end?.timestamp);
  const usage = end?.usage ?? {};
  const facts = [
    ["Turns", end ? count(end.turns) : "—", ""],
    ["Input", known(usage.prompt_tokens), partial(usage.queries_without_usage, "tokens")],
    ["Output", known(usage.completion_tokens), partial(usage.queries_without_usage, "tokens")],
    ["Cost", money(usage.cost) || "—", partial(usage.queries_without_cost, "")],
    ["Took", span(ended - began) || "—", ""],
    ["Began", ago(began) || "—", clock(began)],
  ];
  const state = end ? badge(cast.reason ?? "ended", end.terminated ? "good" : "warn") : cast.state === "active" ? badge("active", "info", "a process works on it") : badge(cast.reason ?? "interrupted", "warn", "the process ended before the cast did");
  const answer = end ? (end.result ?? end.error ?? end.summary) : null;
  return [
    h(
      "header",
      { class: "head" },
      h("div", { class: "title" }, h("h2", { tabindex: "-1" }, "Cast"), state),
      h("div", { class: "actions" }, button(cast.id, null, () => view.copy(cast.id, "The cast's id"), { class: "id" }), h("span", { class: "more" }, visible(cast.entity_id))),
      h("dl", { class: "facts" }, facts.map(([term, value, more]) => h("div", {}, h("dt", {}, term), h("dd", {}, value), more && h("dd", { class: "more" }, more)))),
    ),
    h(
      "div",
      { class: "body" },
      start ? part("Intent", words(start.intent ?? "")) : h("p", { class: "note" }, "The start of this cast is not in the loom."),
      ranksPart(cast.n, view),
      cast.context.length ? part("Pinned", cast.context.map(pinned)) : null,
      answer !== null && answer !== undefined ? part(end.error ? "Error" : "Result", h("div", { class: end.error ? "failed" : "" }, typeof answer === "string" ? words(answer) : shown(answer))) : null,
      h("details", { class: "part raw" }, h("summary", {}, "The records themselves"), lazily(() => data({ start, end }))),
    ),
  ];
}

function pinned(block) {
  if (block.data !== undefined) return picture(block.mime, block.data, block.title || block.uri);
  return h("article", { class: "pinned" }, h("header", {}, icon("text"), h("strong", {}, visible(block.title || block.source)), block.uri && h("code", {}, visible(block.uri))), shown(block.text));
}
