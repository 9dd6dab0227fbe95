/** Masks secrets in messages before they are shown, by the name of the field and by the form of the value. */

const MASK = "•••";
const NAMES = /(^|[_-])(api[_-]?key|apikey|key|token|secret|password|passwd|authorization|credentials?|cookie|private[_-]?key)$/i;
// Names of counts and ids that look like names of secrets.
const HARMLESS = /^(max_?tokens|tokens?_?(prompt|completion|cached|in|out|used)|progressToken)$/i;
const VALUES: readonly RegExp[] = [
  /\bsk-[A-Za-z0-9_-]{12,}/g,
  /\b(?:ghp|gho|ghs|ghu|github_pat)_[A-Za-z0-9_]{16,}/g,
  /\bAIza[0-9A-Za-z_-]{30,}/g,
  /\bxox[abprs]-[0-9A-Za-z-]{10,}/g,
  /\bAKIA[0-9A-Z]{16}\b/g,
  /\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}/g,
  /\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{12,}/gi,
  /-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)/g,
  /(\/\/[^\s/:@]+:)[^\s/@]+(?=@)/g,
  /\b([A-Z][A-Z0-9_]*(?:API_KEY|TOKEN|SECRET|PASSWORD)\s*=\s*)("[^"]*"|'[^']*'|\S+)/g,
];
const LONGEST = 4000;

export function maskText(text: string): string {
  let result = text;
  for (const pattern of VALUES) {
    result = result.replace(pattern, (_whole: string, kept: unknown) => (typeof kept === "string" ? `${kept}${MASK}` : MASK));
  }
  return result;
}

/** A copy of a message for the log: without secrets, pictures and sounds, and with long texts cut. */
export function masked(value: unknown, name = ""): unknown {
  if (typeof value === "string") {
    if (isSecret(name) && value) return MASK;
    if (name === "data" && value.length > 400) return `[${value.length} characters]`;
    const text = maskText(value);
    return text.length > LONGEST ? `${text.slice(0, LONGEST)}… [${text.length - LONGEST} more characters]` : text;
  }
  if (Array.isArray(value)) return value.map((item) => masked(item, name));
  if (value !== null && typeof value === "object") {
    const fields = value as Record<string, unknown>;
    // An environment variable or a header: its name is in another field than its value.
    const named = typeof fields.name === "string" && typeof fields.value === "string" ? fields.name : undefined;
    return Object.fromEntries(
      Object.entries(fields).map(([key, item]) => [key, key === "value" && named !== undefined && isSecret(named) ? MASK : masked(item, key)]),
    );
  }
  return value;
}

export function isSecret(name: string): boolean {
  return NAMES.test(name.replace(/([a-z])([A-Z])/g, "$1_$2")) && !HARMLESS.test(name);
}
