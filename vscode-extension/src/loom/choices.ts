/** What the user chooses among, and what is said of the outcome. Knows nothing of the editor. */

/** Formats of `cantrip loom export`, with what reads them. */
export const FORMATS: readonly (readonly [name: string, readers: string])[] = [
  ["trl-sft", "TRL supervised fine-tuning: messages and tools"],
  ["trl-preference", "TRL preferences (DPO): prompt, chosen, rejected"],
  ["art", "ART trajectory groups with rewards and log-probabilities"],
  ["verifiers", "verifiers episodes: traces as trees of messages"],
  ["openai", "OpenAI fine-tuning files: chat messages, tools, weights"],
  ["otlp", "OTLP/JSON traces by OpenTelemetry's GenAI conventions"],
];

/** Recipes that come with the package. */
const BUILT_IN: readonly (readonly [name: string, about: string])[] = [
  ["familiar", "built in: a persistent coding entity"],
  ["coding", "built in: coding in a shell"],
  ["longtext", "built in: questions over long texts"],
];

export interface RecipeChoice {
  readonly label: string;
  readonly description: string;
  /** A file's path, or the name of a built-in one. */
  readonly recipe: string;
}

/** The workspace's recipes by their names, then the built-in ones. ``files`` are [relative, whole] paths. */
export function recipeChoices(files: readonly (readonly [relative: string, path: string])[]): RecipeChoice[] {
  const own = [...files]
    .sort(([a], [b]) => a.localeCompare(b))
    .map(([relative, recipe]) => ({
      label: (relative.split("/").at(-1) ?? relative).replace(/\.cantrip\.\w+$/, ""),
      description: relative,
      recipe,
    }));
  return [...own, ...BUILT_IN.map(([label, description]) => ({ label, description, recipe: label }))];
}

/** Why a text is no reward; nothing where it is one. */
export function rewardProblem(text: string): string | undefined {
  const value = text.trim();
  return value !== "" && Number.isFinite(Number(value)) ? undefined : "A number is needed, such as 1, 0.5 or -1.";
}
