// The page's address: #token=…&turn=…&theme=…. The token goes to this tab's own store and out of sight; the turn stays.

const KEY = "cantrip-loom-token";

export class Address {
  constructor() {
    this.onmove = () => {};
    this.stored = true;
    const { token, turn, theme } = this.parts();
    this.turn = turn ?? null;
    // Who shows the page in a frame knows whether it is dark around it.
    this.theme = theme === "dark" || theme === "light" ? theme : null;
    this.token = token ?? recall();
    if (token) {
      this.stored = remember(token);
      this.at(this.turn);
    }
    addEventListener("hashchange", () => {
      const now = this.parts();
      if (now.token && now.token !== this.token) location.reload();
      else if (now.turn && now.turn !== this.turn) {
        this.turn = now.turn;
        this.at(now.turn);
        this.onmove(now.turn);
      }
    });
  }

  /** What the fragment says; a second # is as good as &, so that "#turn=…" may be put behind any address of ours. */
  parts() {
    const parts = {};
    for (const part of location.hash.split(/[#&]/)) {
      const [name, ...value] = part.split("=");
      if (name) parts[name] = unescaped(value.join("="));
    }
    return parts;
  }

  /** Say in the address which turn is read. */
  at(turn) {
    this.turn = turn;
    const parts = [this.stored || !this.token ? "" : `token=${this.token}`, turn ? `turn=${encodeURIComponent(turn)}` : ""];
    history.replaceState(null, "", `${location.pathname}${location.search}#${parts.filter(Boolean).join("&")}`);
  }

  /** The whole address of a turn; with the token, which opens it. */
  link(turn) {
    const base = location.href.split("#")[0];
    const token = this.token && location.protocol !== "file:" ? `token=${this.token}&` : "";
    return `${base}#${token}turn=${encodeURIComponent(turn)}`;
  }
}

function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// A frame may have no store of its own; the token then stays in the address.
function remember(token) {
  try {
    sessionStorage.setItem(KEY, token);
    return true;
  } catch {
    return false;
  }
}

function recall() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}
