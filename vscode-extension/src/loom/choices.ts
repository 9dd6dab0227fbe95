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
  /** What `--recipe` is given: a name, which Cantrip's own trust rules, or a path, which is trusted for that run. */
  readonly recipe: string;
  readonly byPath: boolean;
}

/** The workspace's recipes by their names, then the built-in ones. ``files`` are [relative, whole] paths. */
export function recipeChoices(files: readonly (readonly [relative: string, path: string])[]): RecipeChoice[] {
  const own = [...files]
    .sort(([a], [b]) => a.localeCompare(b))
    .map(([relative, path]) => {
      const parts = relative.split("/");
      const label = (parts.at(-1) ?? relative).replace(/\.cantrip\.\w+$/, "");
      const byPath = parts.at(-2) !== ".cantrip";
      return { label, description: relative, recipe: byPath ? path : label, byPath };
    });
  return [...own, ...BUILT_IN.map(([label, description]) => ({ label, description, recipe: label, byPath: false }))];
}

/** Why a text is no reward; nothing where it is one. */
export function rewardProblem(text: string): string | undefined {
  const value = text.trim();
  return value !== "" && Number.isFinite(Number(value)) ? undefined : "A number is needed, such as 1, 0.5 or -1.";
}

/** What `cantrip loom replay --json` prints, as far as it is told. */
export interface Replayed {
  readonly turns: number;
  readonly divergence: { readonly why?: string } | null;
}

export function replayWords(told: Replayed): { readonly same: boolean; readonly text: string } {
  const turns = `${told.turns} turn${told.turns === 1 ? "" : "s"}`;
  if (told.divergence === null) return { same: true, text: `Replayed ${turns}: every observation is as it was.` };
  return { same: false, text: `Replayed ${turns}: it went another way.` };
}
