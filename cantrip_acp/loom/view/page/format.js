// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en-US");

export function count(n, noun) {
  return noun ? `${whole.format(n)} ${noun}${n === 1 ? "" : "s"}` : whole.format(n);
}

export function short(n) {
  if (n < 1000) return String(n);
  if (n < 1e6) return `${(n / 1000).toFixed(n < 1e4 ? 1 : 0)}k`;
  return `${(n / 1e6).toFixed(n < 1e7 ? 2 : 1)}M`;
}

export function money(dollars) {
  if (dollars === null || dollars === undefined || Number.isNaN(dollars)) return "";
  if (dollars === 0) return "$0";
  if (dollars < 0.0001) return "<$0.0001";
  return `$${dollars.toFixed(dollars < 1 ? 4 : 2)}`;
}

export function span(ms) {
  if (!(ms >= 0)) return "";
  if (ms < 1) return "<1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 60) return `${minutes} min ${Math.round((ms % 60_000) / 1000)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function ago(time, now = Date.now()) {
  if (!(time > 0)) return "";
  const seconds = Math.max(0, (now - time) / 1000);
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  if (seconds < 86_400 * 60) return `${Math.floor(seconds / 86_400)} d ago`;
  return clock(time).slice(0, 10);
}

export function clock(time) {
  if (!(time > 0)) return "";
  const date = new Date(time);
  const two = (n) => String(n).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function reward(value) {
  return `${value > 0 ? "+" : ""}${Number(value.toPrecision(4))}`;
}
