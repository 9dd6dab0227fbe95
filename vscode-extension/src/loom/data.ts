/** Data of looms, as the server's requests `cantrip/loom/…` return it. */

export interface LoomData {
  readonly uri: string;
  readonly name: string;
  readonly title: string;
  readonly size: number;
  /** Milliseconds since 1970. */
  readonly modified: number;
}

/** The loom of a session that was forked from another one's, or the other way round. */
export interface ForkData extends LoomData {
  /** The first message that the other loom has not; null if it has all. */
  readonly message: string | null;
  /** When it was sent (ISO 8601). */
  readonly sent: string | null;
  /** The message that the other loom has instead. */
  readonly instead: string | null;
}

export interface Tokens {
  /** Null if it is unknown. */
  readonly prompt: number | null;
  readonly completion: number | null;
}

export interface CastData {
  readonly id: string;
  readonly line: number;
  readonly intent: string;
  readonly told: string;
  readonly state: "active" | "terminated" | "truncated";
  readonly reason: string | null;
  readonly turns: number;
  readonly tokens: Tokens;
  readonly cost: number | null;
  readonly model: string | null;
  readonly started: string;
  readonly forkedFrom: string | null;
  /** Its last turn. */
  readonly leaf: string | null;
}

export interface TurnData {
  readonly id: string;
  readonly line: number;
  readonly sequence: number;
  readonly role: "crystal" | "call" | "fold";
  readonly kind: string;
  readonly text: string;
  readonly said: string;
  readonly gates: readonly string[];
  readonly tokens: Tokens;
  readonly cost: number | null;
  readonly ms: number;
  readonly timestamp: string;
  readonly model: string | null;
  readonly reward: number | null;
  readonly failed: boolean;
  readonly state: "terminated" | "truncated" | null;
  readonly reason: string | null;
  /** Children that it spawned. */
  readonly children: number;
  readonly forks: number;
}

export interface Page {
  readonly total: number;
  readonly offset: number;
}
