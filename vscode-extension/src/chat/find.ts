/** Finds words in the items of a conversation, also in those that the page has no elements for. Uses no editor. */
import type { Item } from "./items";

/** An item with hits. `index` is its place in the conversation. */
export interface Found {
  readonly index: number;
  readonly id: string;
  readonly count: number;
}

/** The items with the words, whatever their case, in order. */
export function findWords(items: readonly Item[], words: string): Found[] {
  const wanted = words.toLowerCase();
  if (wanted === "") return [];
  return items.flatMap((item, index) => {
    const count = textsOf(item).reduce((sum, text) => sum + text.toLowerCase().split(wanted).length - 1, 0);
    return count === 0 ? [] : [{ index, id: item.id, count }];
  });
}

/** The texts of an item that the page shows, or shows when it is opened. */
function textsOf(item: Item): string[] {
  switch (item.type) {
    case "user":
      return [item.text, ...item.attachments.map(({ name }) => name)];
    case "agent":
    case "thought":
    case "fold":
      return [item.text];
    case "form":
      return [item.message, item.said ?? ""];
    case "notice":
      return [item.title, item.text];
    case "error":
      return [item.title, item.detail];
    case "end":
      return [item.words];
    case "tool": {
      const parts = item.parts.flatMap((part) => {
        if (part.type === "diff") return [part.shown, ...part.hunks.flatMap(({ lines }) => lines)];
        return part.type === "text" || part.type === "output" ? [part.text] : part.type === "link" ? [part.name] : [];
      });
      return [item.title, item.program?.text ?? "", item.input ?? "", item.output ?? "", item.planText ?? "", ...parts];
    }
  }
}
