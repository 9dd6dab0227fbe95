/** The fields of a form (ACP, Elicitation), what is wrong with a value, and an answer in one line. Uses no editor and no page. */
import { isSecret } from "../acp/masking";

export type Value = string | number | boolean | readonly string[];
export type Content = Readonly<Record<string, Value>>;

export interface FormField {
  readonly name: string;
  readonly label: string;
  readonly about: string;
  readonly required: boolean;
  /** `secret`: a text that is not shown, and never written down. */
  readonly kind: "text" | "secret" | "number" | "integer" | "boolean" | "choice" | "choices";
  readonly format?: Format;
  readonly choices: readonly FieldChoice[];
  readonly preset?: Value;
  /** The smallest and the largest value, number of characters, or number of choices. */
  readonly least?: number;
  readonly most?: number;
  readonly pattern?: string;
}

export interface FieldChoice {
  readonly value: string;
  readonly title: string;
  readonly about: string;
}

type Format = (typeof FORMATS)[number];

const FORMATS = ["email", "uri", "date", "date-time"] as const;
const LONGEST_ANSWER = 500;
/** No longer text is compared with a pattern, which may be slow with it. */
const LONGEST_MATCHED = 1000;
const HIDDEN = "(hidden)";

/** The fields of a schema. Undefined if a required field is of a kind that cannot be shown. */
export function fieldsOf(schema: unknown): FormField[] | undefined {
  const { properties, required } = record(schema);
  const needed = Array.isArray(required) ? (required as unknown[]) : [];
  const fields: FormField[] = [];
  for (const [name, given] of Object.entries(record(properties))) {
    const field = fieldOf(name, record(given), needed.includes(name));
    if (field !== undefined) fields.push(field);
    else if (needed.includes(name)) return undefined;
  }
  return fields;
}

function fieldOf(name: string, given: Record<string, unknown>, required: boolean): FormField | undefined {
  const base = { name, label: text(given.title) || name, about: text(given.description), required, choices: [] };
  switch (given.type) {
    case "string": {
      const choices = choicesOf(given);
      const preset = typeof given.default === "string" ? { preset: given.default } : {};
      if (choices !== undefined) return { ...base, kind: "choice", choices, ...preset };
      if (given.format === "password" || isSecret(name)) return { ...base, kind: "secret", ...limits(given.minLength, given.maxLength), ...pattern(given) };
      const format = FORMATS.find((each) => each === given.format);
      return { ...base, kind: "text", ...(format === undefined ? {} : { format }), ...limits(given.minLength, given.maxLength), ...pattern(given), ...preset };
    }
    case "number":
    case "integer":
      return { ...base, kind: given.type, ...limits(given.minimum, given.maximum), ...(typeof given.default === "number" ? { preset: given.default } : {}) };
    case "boolean":
      return { ...base, kind: "boolean", ...(typeof given.default === "boolean" ? { preset: given.default } : {}) };
    case "array": {
      const items = record(given.items);
      const choices = choicesOf({ enum: items.enum, oneOf: items.anyOf ?? items.oneOf });
      if (choices === undefined) return undefined;
      const preset = Array.isArray(given.default) ? { preset: given.default.map(String) } : {};
      return { ...base, kind: "choices", choices, ...limits(given.minItems, given.maxItems), ...preset };
    }
    default:
      return undefined;
  }
}

/** What is wrong with the value of a field, as a sentence for the user; empty if nothing is. `matches`: look at its pattern, too. */
export function problemOf(field: FormField, value: Value | undefined, matches = true): string {
  const { kind, required, least = 0, most = Infinity } = field;
  if (kind === "choices") {
    const chosen = Array.isArray(value) ? (value as readonly string[]) : [];
    if (chosen.some((each) => !isChoice(field, each))) return "Choose from the list.";
    const fewest = Math.max(least, required ? 1 : 0);
    if (chosen.length === 0 && !required) return "";
    if (chosen.length < fewest) return fewest === 1 ? "Choose at least one." : `Choose at least ${fewest}.`;
    return chosen.length > most ? `Choose at most ${most}.` : "";
  }
  if (value === undefined || value === "") return required ? (kind === "choice" || kind === "boolean" ? "Choose one." : "Enter an answer.") : "";
  if (kind === "boolean") return typeof value === "boolean" ? "" : "Choose one.";
  if (kind === "choice") return typeof value === "string" && isChoice(field, value) ? "" : "Choose from the list.";
  if (kind === "number" || kind === "integer") {
    if (typeof value !== "number" || !Number.isFinite(value) || (kind === "integer" && !Number.isInteger(value))) return kind === "integer" ? "Enter a whole number." : "Enter a number.";
    if (field.least !== undefined && value < field.least) return `Enter ${field.least} or more.`;
    return field.most !== undefined && value > field.most ? `Enter ${field.most} or less.` : "";
  }
  if (typeof value !== "string") return "Enter an answer.";
  const wrong = textProblem(field, value);
  return wrong === "" && matches && field.pattern !== undefined && !fits(field.pattern, value) ? `Enter a text that fits the pattern ${field.pattern}` : wrong;
}

function textProblem({ kind, format, required, least = 0, most = Infinity }: FormField, value: string): string {
  const { length } = Array.from(value);
  if (required && kind === "text" && value.trim() === "") return "Enter an answer.";
  if (length < least) return `Enter at least ${least} characters; these are ${length}.`;
  if (length > most) return `Enter at most ${most} characters; these are ${length}.`;
  if (format === "email" && !/^[^\s@]+@[^\s@]+\.[^\s@]+$/.test(value)) return "Enter an address such as name@example.org.";
  if (format === "uri" && !URL.canParse(value)) return "Enter an address such as https://example.org.";
  if ((format === "date" || format === "date-time") && Number.isNaN(Date.parse(value))) return format === "date" ? "Enter a date." : "Enter a date and a time.";
  return "";
}

/** The value of a field from what was typed. */
export function typed({ kind }: FormField, words: string): Value | undefined {
  if (kind === "text" || kind === "secret") return words;
  if (words.trim() === "") return undefined;
  return kind === "number" || kind === "integer" ? Number(words.trim().replace(",", ".")) : words;
}

/** The answer with the values that the fields have, without empty ones. Undefined if a value is wrong. */
export function checked(fields: readonly FormField[], given: Readonly<Record<string, unknown>>): Content | undefined {
  const content: [string, Value][] = [];
  for (const field of fields) {
    const value = Object.hasOwn(given, field.name) ? (given[field.name] as Value | undefined) : undefined;
    // The page has compared it with the pattern, which is not the user's: a slow one would stop all extensions.
    if (problemOf(field, value, false) !== "") return undefined;
    if (value !== undefined && (value !== "" || field.required)) content.push([field.name, value]);
  }
  return Object.fromEntries(content);
}

/** An answer in one line: `Blue`, or `Colour: Blue · Size: 3`. What is secret is not in it. */
export function answerLine(fields: readonly FormField[], content: Content): string {
  const said = fields.flatMap((field) => {
    const value = Object.hasOwn(content, field.name) ? content[field.name] : undefined;
    if (value === undefined) return [];
    const words = shown(field, value);
    return [fields.length === 1 ? words : `${field.label}: ${words}`];
  });
  return oneLine(said.join(" · ")) || "nothing";
}

export function oneLine(words: string): string {
  const line = words.replace(/\s+/g, " ").trim();
  return line.length > LONGEST_ANSWER ? `${line.slice(0, LONGEST_ANSWER)}…` : line;
}

function shown({ kind, choices }: FormField, value: Value): string {
  if (kind === "secret") return HIDDEN;
  if (typeof value === "boolean") return value ? "Yes" : "No";
  const title = (each: string): string => {
    const chosen = choices.find((one) => one.value === each);
    return chosen === undefined ? each : withoutMarks(chosen.title);
  };
  return typeof value === "number" ? String(value) : typeof value === "string" ? title(value) : value.map(title).join(", ") || "none";
}

/** The title of a choice without the marks of Markdown that the card shows as bold text and code. */
export function withoutMarks(title: string): string {
  return title.replace(/\*\*|`/g, "");
}

function choicesOf(given: { readonly enum?: unknown; readonly oneOf?: unknown }): FieldChoice[] | undefined {
  if (Array.isArray(given.oneOf)) return given.oneOf.map(record).map((each) => ({ value: text(each.const), title: text(each.title) || text(each.const), about: text(each.description) }));
  return Array.isArray(given.enum) ? given.enum.map((each) => ({ value: text(each), title: text(each), about: "" })) : undefined;
}

function isChoice({ choices }: FormField, value: string): boolean {
  return choices.some((each) => each.value === value);
}

function limits(least: unknown, most: unknown): { least?: number; most?: number } {
  return { ...(typeof least === "number" ? { least } : {}), ...(typeof most === "number" ? { most } : {}) };
}

function pattern(given: Record<string, unknown>): { pattern?: string } {
  return typeof given.pattern === "string" ? { pattern: given.pattern } : {};
}

function fits(wanted: string, value: string): boolean {
  if (value.length > LONGEST_MATCHED) return true;
  try {
    return new RegExp(wanted, "u").test(value);
  } catch {
    // A pattern of another dialect: who asks checks the answer too.
    return true;
  }
}

function record(value: unknown): Record<string, unknown> {
  return value !== null && typeof value === "object" ? (value as Record<string, unknown>) : {};
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}
