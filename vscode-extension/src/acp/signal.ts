export interface Subscription {
  dispose(): void;
}

/** Something that happens; listeners hear of it in the order in which they came. */
export class Signal<T> {
  private readonly listeners = new Set<(value: T) => void>();

  readonly on = (listener: (value: T) => void): Subscription => {
    this.listeners.add(listener);
    return { dispose: () => void this.listeners.delete(listener) };
  };

  fire(value: T): void {
    for (const listener of [...this.listeners]) listener(value);
  }
}
