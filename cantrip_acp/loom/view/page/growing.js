// The columns, filled from the source as fast as it gives them, and again whenever it has more.

const PAUSE = 400;

export class Growing {
  /** `told(what)` hears of "shape" (rows changed), "numbers", "about" and "done"; `failed(error)` of what went wrong. */
  constructor(columns, source, told, failed) {
    this.columns = columns;
    this.source = source;
    this.told = told;
    this.failed = failed;
    this.about = null;
    this.busy = null;
    this.stale = false;
  }

  async begin() {
    this.about = await this.source.loom();
    this.told("about");
    while (this.about.loading) {
      await new Promise((go) => setTimeout(go, PAUSE));
      this.about = await this.source.loom();
      this.told("about");
    }
    // Whatever goes wrong from here on is tried again by `follow`.
    await this.catchUp().catch((error) => {
      this.stale = true;
      this.failed(error);
    });
  }

  /** Take in all there is; calls in between wait for the same end. */
  catchUp() {
    this.busy ??= this.take().finally(() => {
      this.busy = null;
    });
    return this.busy;
  }

  async refresh() {
    await this.busy;
    this.about = await this.source.loom();
    this.told("about");
    await this.catchUp();
  }

  async take() {
    const { columns, source, about } = this;
    let grown = false;
    const running = new Set(about.running ?? []);
    if (running.size !== columns.running.size || [...running].some((cast) => !columns.running.has(cast))) grown = true;
    columns.running = running;
    while (columns.castEvents < about.casts) {
      const data = await source.casts(columns.castEvents);
      columns.takeCasts(data);
      grown = true;
      if (!data.events.length) break;
    }
    while (columns.length < about.turns) {
      const data = await source.nodes(columns.length);
      columns.takeNodes(data);
      grown = true;
      this.told("shape");
      if (!data.parent.length) break;
    }
    if (grown) this.told("shape");
    while (columns.rewardCount < about.rewards) {
      const data = await source.rewards(columns.rewardCount);
      columns.takeRewards(data);
      if (!data.given.length) break;
      this.told("numbers");
    }
    while (columns.counted < columns.length) {
      const before = columns.counted;
      columns.takeNumbers(await source.numbers(before));
      this.told("numbers");
      if (columns.counted === before) break;
    }
    this.told("done");
  }

  /** Go on for as long as the page is looked at. */
  async follow() {
    for (;;) {
      if (document.hidden) await new Promise((go) => document.addEventListener("visibilitychange", go, { once: true }));
      try {
        const { version } = this.stale ? {} : await this.source.wait(this.about.version);
        if (version !== this.about.version) await this.refresh();
        this.stale = false;
        this.failed(null);
      } catch (error) {
        // What was asked for in between may be missing: all that is new is asked for again, whether or not there is more.
        this.stale = true;
        this.failed(error);
        await new Promise((go) => setTimeout(go, 2_000));
      }
    }
  }
}
