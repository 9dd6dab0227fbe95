/** The versions of a message: sessions that were forked before it and have another message there. */
import type * as acp from "@agentclientprotocol/sdk/unstable";

/** A session of the agent's list, and where it was forked from another one: at a turn, or at 0, before its first answer. */
export interface Listed {
  readonly id: string;
  readonly from?: { readonly session: string; readonly turn: string | 0; readonly at: string };
}

/** The sessions with the versions of a message, oldest version first, and the place of the shown one among them. */
export interface Versions {
  readonly at: number;
  readonly sessions: readonly string[];
}

export function listed(sessions: readonly acp.SessionInfo[]): Listed[] {
  return sessions.map(({ sessionId: id, _meta }) => {
    const from = (_meta?.cantrip as { forkedFrom?: unknown } | undefined)?.forkedFrom as { sessionId?: unknown; turn?: unknown; at?: unknown } | null | undefined;
    const { sessionId: session, turn, at } = from ?? {};
    if (typeof session !== "string" || !(typeof turn === "string" || turn === 0)) return { id };
    return { id, from: { session, turn, at: typeof at === "string" ? at : "" } };
  });
}

/**
 * The versions of the message after `turn` in `session`; undefined if it has only one. `earlier` has the turns before the
 * earlier messages of that session.
 *
 * A fork at a later turn has the same message there, so the forks at other turns join sessions to one version, and the
 * forks at this turn separate versions. A session that was deleted is no version, but its forks may be.
 */
export function versionsOf(all: readonly Listed[], session: string, turn: string | 0, earlier: ReadonlySet<string | 0>): Versions | undefined {
  const forks = all.flatMap(({ id, from }) => (from === undefined ? [] : [{ id, ...from }]));
  if (!forks.some((fork) => fork.turn === turn)) return undefined;
  // Ids of turns are unique. 0 is in every session, so it says something only about the forks of one first session.
  const family = groups(forks);
  const here = forks.filter((fork) => fork.turn === turn && (turn !== 0 || family(fork.id) === family(session)));
  const version = groups(forks.filter((fork) => fork.turn !== turn && !earlier.has(fork.turn)));
  const begun = new Map<string, string>([[version(session), ""]]);
  for (const fork of here) if (!begun.has(version(fork.session))) begun.set(version(fork.session), "");
  for (const fork of here) begun.set(version(fork.id), fork.at);
  const known = new Set(all.map(({ id }) => id));
  // The session in which the version was written is there first; after it one that has it from there.
  const writers = [...here.map(({ id }) => id), ...here.map((fork) => fork.session), ...known];
  const sessions = [...begun]
    .sort(([a, before], [b, after]) => (before < after || (before === after && a < b) ? -1 : 1))
    .flatMap(([name]) => (name === version(session) ? session : (writers.find((id) => known.has(id) && version(id) === name) ?? [])));
  return sessions.length < 2 ? undefined : { at: sessions.indexOf(session), sessions };
}

/** Join the two sessions of each fork. The answer is the name of the group of a session. */
function groups(forks: readonly { readonly id: string; readonly session: string }[]): (id: string) => string {
  const above = new Map<string, string>();
  const name = (id: string): string => {
    let top = id;
    for (let next = above.get(top); next !== undefined; next = above.get(top)) top = next;
    return top;
  };
  for (const { id, session } of forks) {
    const [own, other] = [name(id), name(session)];
    if (own !== other) above.set(own, other);
  }
  return name;
}
