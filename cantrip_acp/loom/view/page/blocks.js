// The pieces that a turn is shown in: a titled part, a text that may be long, a gate call with what came of it, an output.

import { ansi, coded } from "./ansi.js";
import { between, looksLikeDiff, unified } from "./diff.js";
import { h, icon, visible } from "./dom.js";
import { count } from "./format.js";
import { data, decoded, program } from "./words.js";

const CLAMPED = 40;
const LONG = 60;

export function part(title, ...children) {
  return h("section", { class: "part", "aria-label": title }, h("h3", {}, title), children);
}

export function badge(text, kind = "", title = null) {
  return h("span", { class: `badge ${kind}`, title }, visible(String(text)));
}

/** A long text begins short, with a button for the rest. `make` makes its element. */
export function clamped(text, make) {
  const lines = text.split("\n");
  if (lines.length <= LONG && text.length < 20_000) return make(text);
  const first = lines.slice(0, CLAMPED).join("\n").slice(0, 8_000);
  const box = h("div", { class: "clamped" });
  const more = h("button", { type: "button", class: "more", "aria-expanded": "false" }, `Show all ${count(lines.length, "line")}`);
  more.addEventListener("click", () => {
    box.replaceChildren(make(text));
    box.firstChild.focus?.();
  });
  box.append(make(first), more);
  return box;
}

/** Whatever a gate or a cell gave: a diff, data, or a text with a terminal's colours. `styles` are those of an output. */
export function shown(value, language = "", styles = undefined) {
  if (value === null || value === undefined) return h("p", { class: "nothing" }, "nothing");
  if (typeof value === "string") {
    if (value === "") return h("p", { class: "nothing" }, "empty text");
    if (looksLikeDiff(value)) return clamped(value, unified);
    const parsed = decoded(value);
    if (typeof parsed !== "string") return shown(parsed);
    return clamped(coded(value, styles), (text) => (language ? program(text, language) : h("pre", { tabindex: "0", "aria-label": "text" }, ansi(text))));
  }
  const pictures = imagesIn(value);
  if (pictures.length) return h("div", {}, pictures);
  if (typeof value === "object" && typeof value.diff === "string") {
    const { diff, ...rest } = value;
    return h("div", {}, clamped(diff, unified), Object.keys(rest).length ? data(rest) : null);
  }
  return clamped(JSON.stringify(value, null, 2), (text) => program(text, "json"));
}

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** A picture from its bytes; other kinds (SVG is a program) are named alone. */
export function picture(mime, base64, title) {
  const named = title || mime || "attachment";
  if (!PICTURES.has(mime) || !/^[A-Za-z0-9+/=\s]+$/.test(base64))
    return h("p", { class: "attachment" }, visible(named), badge(mime || "no type"), count(Math.floor((base64.length * 3) / 4), "byte"));
  return h("figure", {}, h("img", { src: `data:${mime};base64,${base64}`, alt: named }), h("figcaption", {}, visible(named)));
}

function imagesIn(value) {
  const items = Array.isArray(value) ? value : [value];
  return items
    .filter((item) => item && typeof item === "object" && typeof item.data === "string" && typeof (item.mime ?? item.mimeType) === "string")
    .map((item) => picture(item.mime ?? item.mimeType, item.data, item.title ?? item.name));
}

/** A gate call: its arguments, what it changed, and its answer. */
export function gateCall(name, args, record = undefined) {
  const given = typeof args === "string" ? decoded(args) : args;
  const failed = record?.is_error;
  const state = record === undefined ? badge("not run", "warn") : failed ? badge("failed", "bad") : badge("ok", "good");
  const place = given && typeof given === "object" && typeof given.path === "string" ? given.path : "";
  return h(
    "article",
    { class: `gate ${failed ? "failed" : ""}`, "aria-label": `gate ${name}` },
    h("header", {}, icon("calls"), h("strong", {}, visible(name)), place && h("code", {}, visible(place)), state),
    written(name, given) ?? (isEmpty(given) ? null : shown(given)),
    record === undefined ? null : h("div", { class: "answer" }, shown(record.result)),
    record?.attachments?.length ? h("div", { class: "answer" }, record.attachments.map((each) => picture(each.mime, each.data, each.title))) : null,
    record?.annotations ? h("details", {}, h("summary", {}, "annotations"), data(record.annotations)) : null,
  );
}

const isEmpty = (given) => given === "" || (given && typeof given === "object" && Object.keys(given).length === 0);

function written(name, given) {
  if (given === null || typeof given !== "object") return null;
  if (typeof given.old_text === "string" && typeof given.new_text === "string") return between(given.old_text, given.new_text);
  if (name === "write_file" && typeof given.content === "string") return between("", given.content.replace(/\n$/, ""));
  return null;
}

/** What a command or a cell left behind. */
export function output(out) {
  const streams = [["out", out.stdout, out.stdout_styles], ["err", out.stderr, out.stderr_styles], ["error", out.error]].filter(([, text]) => text);
  const bad = out.error !== null || (out.exit_code !== null && out.exit_code !== 0);
  return h(
    "article",
    { class: `output ${bad ? "failed" : ""}`, "aria-label": "output" },
    streams.map(([name, text, styles]) => h("div", { class: `stream ${name}` }, name === "out" ? null : h("h4", {}, name), shown(text, "", styles))),
    out.value !== null && out.value !== undefined ? h("div", { class: "stream value" }, h("h4", {}, "value"), shown(out.value)) : null,
    h(
      "footer",
      {},
      out.exit_code === null ? (out.error ? badge("stopped", "bad") : null) : badge(`exit ${out.exit_code}`, bad ? "bad" : "good"),
      out.truncated ? badge("output was cut", "warn") : null,
      out.unfinished ? badge("goes on in the next turn", "info") : null,
      streams.length || out.value ? null : h("span", { class: "nothing" }, "no output"),
    ),
  );
}
