// All turns in a strip, in the order of writing: how long each took, where something failed, where rewards are.

import { CALL, ERROR } from "./columns.js";

export class Timeline {
  constructor(canvas, columns, go) {
    this.canvas = canvas;
    this.columns = columns;
    this.selected = -1;
    canvas.addEventListener("click", (event) => {
      const n = this.at(event.offsetX);
      if (n >= 0) go(n);
    });
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  at(x) {
    const total = this.columns.counted;
    if (!total) return -1;
    return Math.max(0, Math.min(total - 1, Math.floor((x / this.canvas.clientWidth) * total)));
  }

  draw() {
    const { canvas, columns } = this;
    const scale = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const total = columns.counted;
    canvas.setAttribute("aria-label", `${total} turns in the order of writing, by how long each took; ${columns.totals.errors} with errors`);
    if (!total) return;
    const bars = Math.min(total, Math.max(1, Math.floor(width / 3)));
    const wide = width / bars;
    for (let bar = 0; bar < bars; bar += 1) {
      const from = Math.floor((bar * total) / bars), to = Math.max(from + 1, Math.floor(((bar + 1) * total) / bars));
      let longest = 0, failed = false, given = null;
      for (let n = from; n < to; n += 1) {
        if (columns.role[n] === CALL) continue;
        longest = Math.max(longest, columns.ms[n]);
        failed ||= columns.has(n, ERROR);
        given = columns.rewards.get(n) ?? given;
      }
      const room = height - 8;
      const tall = columns.longest ? Math.max(2, Math.sqrt(longest / columns.longest) * room) : 0;
      const gap = Math.min(1, wide / 4);
      const thick = Math.min(wide - gap, 28);
      if (longest || failed) {
        pen.fillStyle = colour(failed ? "bad" : "accent");
        pen.globalAlpha = failed ? 1 : 0.75;
        pen.fillRect(bar * wide, height - tall, thick, tall);
      }
      pen.globalAlpha = 1;
      if (given !== null) {
        pen.fillStyle = colour(given < 0 ? "bad" : "reward");
        pen.beginPath();
        pen.arc(bar * wide + thick / 2, 4, Math.min(3, Math.max(1.5, wide / 2)), 0, 7);
        pen.fill();
      }
    }
    if (this.selected >= 0) {
      pen.fillStyle = colour("text");
      pen.fillRect(Math.min(width - 2, ((this.selected + 0.5) / total) * width - 1), 0, 2, height);
    }
  }
}
