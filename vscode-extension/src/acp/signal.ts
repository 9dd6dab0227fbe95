export interface Subscription {
  dispose(): void;
}

/** An event. Listeners are called in the order of their registration. */
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
