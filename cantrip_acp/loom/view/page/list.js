// A list of any length with a bounded number of elements: rows of one height, made where they are looked at.

const TALLEST = 15_000_000;
const SPARE = 8;

export class VirtualList {
  /** `draw(place, element)` fills a row's element. */
  constructor(frame, height, draw) {
    this.frame = frame;
    this.height = height;
    this.draw = draw;
    this.count = 0;
    this.body = frame.appendChild(document.createElement("div"));
    this.body.className = "rows";
    this.body.setAttribute("role", "presentation");
    this.rows = new Map();
    this.spare = [];
    this.waiting = false;
    frame.addEventListener("scroll", () => this.later(), { passive: true });
    new ResizeObserver(() => this.later()).observe(frame);
  }

  get tall() {
    return this.count * this.height;
  }

  get offset() {
    const seen = this.frame.clientHeight;
    if (this.tall <= TALLEST) return this.frame.scrollTop;
    return (this.frame.scrollTop * (this.tall - seen)) / (TALLEST - seen);
  }

  set offset(offset) {
    const seen = this.frame.clientHeight;
    this.frame.scrollTop = this.tall <= TALLEST ? offset : (offset * (TALLEST - seen)) / (this.tall - seen);
  }

  get atEnd() {
    return this.offset + this.frame.clientHeight >= this.tall - this.height;
  }

  /** A new number of rows; all that are seen are drawn again. */
  resize(count) {
    this.count = count;
    this.body.style.height = `${Math.min(this.tall, TALLEST)}px`;
    this.redraw();
  }

  redraw() {
    for (const [, element] of this.rows) element.place = -1;
    this.show();
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.show();
    });
  }

  range() {
    const offset = this.offset;
    const from = Math.max(0, Math.floor(offset / this.height) - SPARE);
    const to = Math.min(this.count, Math.ceil((offset + this.frame.clientHeight) / this.height) + SPARE);
    return [from, to];
  }

  show() {
    const [from, to] = this.range();
    const shift = this.frame.scrollTop - this.offset;
    for (const [place, element] of this.rows)
      if (place < from || place >= to) {
        this.rows.delete(place);
        this.spare.push(element);
      }
    for (let place = from; place < to; place += 1) {
      let element = this.rows.get(place);
      if (element === undefined) {
        element = this.spare.pop() ?? document.createElement("div");
        element.place = -1;
        this.rows.set(place, element);
      }
      const top = `translateY(${place * this.height + shift}px)`;
      if (element.style.transform !== top) element.style.transform = top;
      if (element.place !== place) {
        element.place = place;
        this.draw(place, element);
      }
      if (!element.isConnected) this.body.append(element);
    }
    for (const element of this.spare.splice(0)) element.remove();
    this.shown?.(from, to);
  }

  reveal(place, middle = false) {
    const top = place * this.height, seen = this.frame.clientHeight, offset = this.offset;
    if (top >= offset && top + this.height <= offset + seen) return;
    if (middle) this.offset = Math.max(0, top - seen / 2);
    else this.offset = top < offset ? top : top + this.height - seen;
    this.show();
  }
}
