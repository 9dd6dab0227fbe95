import type * as acp from "@agentclientprotocol/sdk/unstable";
import type { Settings } from "../acp/session";
import type { Choice, State, Unread } from "./messages";

/** The option that has its place in the settings, because few people ever change it. */
export const REUSE = "reuse_results";

/** The names of providers for people. */
export const PROVIDERS: Readonly<Record<string, string>> = {
  anthropic: "Anthropic",
  openai: "OpenAI",
  google: "Google",
  openrouter: "OpenRouter",
  alibaba: "Alibaba Cloud",
  cerebras: "Cerebras",
  deepinfra: "DeepInfra",
  deepseek: "DeepSeek",
  fireworks: "Fireworks",
  groq: "Groq",
  huggingface: "Hugging Face",
  mistral: "Mistral",
  moonshot: "Moonshot",
  nvidia: "NVIDIA",
  sambanova: "SambaNova",
  together: "Together",
  xai: "xAI",
  zai: "Z.ai",
  local: "Your server",
  embedded: "This machine",
  ollama: "Ollama",
  vllm: "vLLM",
  lmstudio: "LM Studio",
  llamacpp: "llama.cpp",
  scripted: "Scripted",
  human: "You",
};

/** What is known of a model on this machine: `8,192 tokens, calls tools`. */
export function modelDetail(model: { readonly contextWindow?: number | null; readonly tools?: boolean | null }): string {
  const window = model.contextWindow ? [`${model.contextWindow.toLocaleString("en")} tokens`] : [];
  return [...window, ...(model.tools === true ? ["calls tools"] : [])].join(", ");
}

/** What can be chosen in a session, in the order in which it is shown; modes are an option of agents that have no options. */
export function choices(settings: Settings): Choice[] {
  const found = settings.options.filter((option) => option.id !== REUSE).map(choice);
  if (settings.modes && !found.some((each) => each.category === "mode")) {
    found.unshift({
      id: "mode",
      name: "Mode",
      description: "",
      category: "mode",
      value: settings.modes.currentModeId,
      values: settings.modes.availableModes.map((mode) => ({ value: mode.id, name: mode.name, description: mode.description ?? "" })),
    });
  }
  return found;
}

const KINDS = { images: "pictures", audio: "audio", documents: "PDF files" } as const;

/** What the model that an option has chosen is known not to read. */
function unreadOf(option: acp.SessionConfigOption): Unread[] {
  const known = option._meta?.cantrip as Readonly<Record<string, unknown>> | undefined;
  return (Object.keys(KINDS) as (keyof typeof KINDS)[]).filter((kind) => known?.[kind] === false).map((kind) => KINDS[kind]);
}

function choice(option: acp.SessionConfigOption): Choice {
  const base = { id: option.id, name: option.name, description: option.description ?? "", category: option.category ?? "" };
  if (option.type === "boolean") return { ...base, value: option.currentValue, values: [] };
  const values = option.options.flatMap((each) =>
    "options" in each
      ? each.options.map((one) => ({ value: one.value, name: one.name, description: one.description ?? "", group: each.name }))
      : [{ value: each.value, name: each.name, description: each.description ?? "" }],
  );
  const unread = unreadOf(option);
  return { ...base, value: option.currentValue, values, ...(unread.length === 0 ? {} : { unread }) };
}

export function formatUsage(usage: NonNullable<Settings["usage"]>): NonNullable<State["usage"]> {
  const { cost } = usage;
  let words = "";
  if (cost) {
    const digits = cost.amount !== 0 && Math.abs(cost.amount) < 0.01 ? 4 : 2;
    words = cost.currency === "USD" ? `$${cost.amount.toFixed(digits)}` : `${cost.amount.toFixed(digits)} ${cost.currency}`;
  }
  return { used: usage.used, size: usage.size, cost: words };
}
