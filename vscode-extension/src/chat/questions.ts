/** The text of permission questions, and the call in Markdown. Uses no editor and no page. */
import type { Answer, DiffPart, ToolItem } from "./items";
import { isMarked, pieces, describeCharacter } from "./visible";

/** The maximum number of columns of a line of a change: the editor's chat does not wrap code blocks. */
const COLUMNS = 72;

/** The question for the user. */
export function questionText(item: ToolItem): string {
  const diffs = item.parts.filter((part) => part.type === "diff");
  if (item.planText !== undefined) return "Carry out this plan?";
  if (item.name === "bash_network") return "Let the command reach this host?";
  if (item.name === "run_tests") return item.program ? "Run the tests with this command?" : "Run the tests?";
  if (item.program) return item.program.language === "python" ? "Run this code?" : "Run this command?";
  if (item.name === "edits") return `Make these ${item.title.replace(/ \(.*/, "")}?`;
  if (diffs.length > 0 && diffs.every((part) => part.isNew)) return diffs.length > 1 ? "Create these files?" : "Create this file?";
  if (diffs.length > 1) return "Make these edits?";
  if (item.kind === "edit") return "Make this edit?";
  if (item.kind === "delete") return "Delete this?";
  if (item.kind === "move") return "Move this?";
  if (item.kind === "fetch") return "Open this address?";
  return "Allow this?";
}

/** The user's answer as text; empty if none is needed. */
export function answered(item: ToolItem, answer: Answer | undefined): string {
  if (item.planText !== undefined && (answer === "reject_once" || answer === "allow_always")) return "";
  const what = item.program ? (item.program.language === "python" ? "code" : "command") : item.kind === "edit" ? "change" : "request";
  switch (answer) {
    case "allow_always":
      return item.name === "bash_network" ? "You allowed this host." : "You allowed this for the session.";
    case "reject_once":
      return `You rejected this ${what}.`;
    case "reject_always":
      return `You rejected this ${what}, for the whole session.`;
    case "stopped":
      return "Stopped by you.";
    case "passed":
    case "unanswered":
      return "Not answered.";
    default:
      return "";
  }
}

/** The complete subject of a call in Markdown: its program, or its title and arguments. Changes are shown separately. */
export function subject(item: ToolItem): string {
  const { program } = item;
  if (program) {
    const careful = isMarked(pieces(program.text, "command")) ? "\n\n⚠ Some characters here cannot be seen or look like others. They are marked." : "";
    const left = program.left > 0 ? `\n\n⚠ ${program.left.toLocaleString("en")} more characters are not shown.` : "";
    return code(program.text) + left + careful;
  }
  if (item.parts.some((part) => part.type === "diff")) return "";
  return [code(item.title), ...(item.input ? [code(item.input)] : []), ...item.parts.flatMap((part) => (part.type === "text" || part.type === "output" ? [code(part.text)] : []))].join("\n\n");
}

/** The lines of a change as a code block. Lines that are left out are counted. */
export function changeText(part: DiffPart): string {
  const lines = part.hunks.flatMap((hunk) => [`@@ line ${hunk.newStart} @@`, ...hunk.lines.flatMap(broken)]);
  const fence = "`".repeat(Math.max(3, ...lines.map((line) => longest(line) + 1)));
  const left = part.left > 0 || part.cut !== undefined ? `\n\n⚠ Not all of it is shown here: ${[...(part.left > 0 ? [`${part.left.toLocaleString("en")} more lines`] : []), ...(part.cut === undefined ? [] : [`${part.cut.toLocaleString("en")} more characters in long lines`])].join(", ")}.` : "";
  return `${fence}diff\n${lines.join("\n")}\n${fence}${left}`;
}

/** Escape text, so that Markdown shows it unchanged. */
export function plain(text: string): string {
  return describeCharacter(text, "command").replace(/[\\`*_{}[\]<>()#+\-.!|~&$:]/g, "\\$&").replace(/\s*\n\s*/g, " ");
}

/** A text as code spans, one for each line. They wrap, while a code block would hide the end of a line. */
function code(text: string): string {
  return describeCharacter(text, "command")
    .split("\n")
    .map((line) => {
      if (line === "") return "";
      const fence = "`".repeat(longest(line) + 1);
      return `${fence} ${line} ${fence}`;
    })
    .join("  \n");
}

/** Break a line of a change into pieces of limited width. Each piece keeps the sign of the line. */
function broken(line: string): string[] {
  const sign = line.charAt(0);
  const letters = Array.from(describeCharacter(line.slice(1)));
  const made = [`${sign}${letters.slice(0, COLUMNS).join("")}`];
  for (let at = COLUMNS; at < letters.length; at += COLUMNS) made.push(`${sign}↪ ${letters.slice(at, at + COLUMNS).join("")}`);
  return made;
}

/** The longest run of backticks. */
function longest(text: string): number {
  return Math.max(0, ...(text.match(/`+/g) ?? []).map((run) => run.length));
}
