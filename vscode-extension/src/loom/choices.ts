/** The choices that the user gets for looms, and checks of what they type. Does not use the VS Code API. */

/** Formats of `cantrip loom export`, with the programs that read them. */
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
  ["familiar", "built in: a coding agent that remembers"],
  ["coding", "built in: coding in a shell"],
  ["longtext", "built in: questions over long texts"],
];

export interface RecipeChoice {
  readonly label: string;
  readonly description: string;
  /** The path of a file, or the name of a built-in recipe. */
  readonly recipe: string;
}

/** The workspace's recipes by their names, then the built-in ones. `files` are pairs of relative and absolute paths. */
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

/** The recipes, with the one that made the loom first. */
export function preselected(choices: readonly RecipeChoice[], used: string | undefined): RecipeChoice[] {
  const at = choices.findIndex((each) => each.recipe === used);
  const first = choices[at];
  if (first === undefined) return [...choices];
  return [{ ...first, description: `${first.description} (used before)` }, ...choices.slice(0, at), ...choices.slice(at + 1)];
}

/** The number in a text, with a point or a comma; undefined if it is not a number. */
export function rewardOf(text: string): number | undefined {
  const value = text.trim().replace(/^([+-]?\d*),(\d+)$/, "$1.$2");
  const number = Number(value);
  return value !== "" && Number.isFinite(number) ? number : undefined;
}

/** Why a text is not a reward; undefined if it is one. */
export function rewardProblem(text: string): string | undefined {
  return rewardOf(text) === undefined ? "Enter a number, such as 1, 0.5 or -1." : undefined;
}
