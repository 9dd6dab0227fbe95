/** What sessions know, as the server's requests `cantrip/substrate/…` and the agent's `_cantrip/context` return it; and its labels. */

export interface ChunkData {
  readonly id: string;
  readonly name: string;
  readonly source: string;
  readonly tokens: number;
  /** The file of a document. */
  readonly uri: string | null;
  /** How many chunks are placed on it. */
  readonly count?: number;
  readonly pinned?: boolean;
  /** Only its beginning is read. */
  readonly cut?: boolean;
  /** Nothing of it is read: the size limit was reached. */
  readonly leftOut?: boolean;
  readonly placed?: readonly ChunkData[];
  readonly text?: string;
}

export interface TreeData {
  readonly tokens: number;
  readonly maxTokens: number;
  readonly reads: readonly ChunkData[];
  readonly finds: readonly ChunkData[];
}

export interface RowData {
  readonly what: string;
  readonly tokens: number;
  readonly source?: string;
  readonly chunk?: string;
  readonly cost?: number;
}

export interface QueryData {
  readonly rows: readonly RowData[];
  readonly tokens: number;
  readonly window?: number;
}

const joined = (parts: readonly string[]): string => parts.filter((part) => part !== "").join(" · ");

export function tokensLabel(count: number): string {
  return count === 1 ? "1 token" : `${count.toLocaleString("en-US")} tokens`;
}

export function readsDescription(tree: TreeData): string {
  return `${tree.tokens.toLocaleString("en-US")} of ${tokensLabel(tree.maxTokens)}`;
}

export function chunkDescription(chunk: ChunkData): string {
  const size = chunk.leftOut === true ? "left out: no room" : chunk.tokens > 0 ? tokensLabel(chunk.tokens) : "";
  const count = chunk.count === undefined || chunk.count === 0 ? "" : `${chunk.count.toLocaleString("en-US")} inside`;
  return joined([size, chunk.cut === true ? "cut" : "", chunk.pinned === true ? "pinned" : "", count]);
}

export function queryDescription(query: QueryData): string {
  const size = query.window === undefined ? tokensLabel(query.tokens) : `${query.tokens.toLocaleString("en-US")} of ${tokensLabel(query.window)}`;
  const costs = query.rows.map((row) => row.cost).filter((cost) => cost !== undefined);
  const known = costs.length > 0 && costs.length === query.rows.length;
  return joined([size, known ? dollars(costs.reduce((sum, cost) => sum + cost, 0)) : ""]);
}

export function rowDescription(row: RowData): string {
  return joined([tokensLabel(row.tokens), row.cost === undefined ? "" : dollars(row.cost), row.source ?? ""]);
}

function dollars(amount: number): string {
  return amount >= 1 ? `$${amount.toFixed(2)}` : `$${amount.toFixed(4)}`;
}
