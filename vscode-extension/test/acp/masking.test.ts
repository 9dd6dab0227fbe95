import assert from "node:assert/strict";
import { it } from "node:test";
import { masked, maskText } from "../../src/acp/masking";

for (const [text, kept] of [
  ["sk-ant-api03-aaaaaaaaaaaaaaaa", "•••"],
  ["ghp_0123456789abcdefABCD", "•••"],
  ["Authorization: Bearer abc.def-ghi_jkl12", "Authorization: Bearer•••"],
  ["OPENAI_API_KEY=abc def", "OPENAI_API_KEY=••• def"],
  ["https://me:hunter2@example.org/x", "https://me:•••@example.org/x"],
  ["-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----", "•••"],
  ["nothing to hide: tokens, keys and secrets", "nothing to hide: tokens, keys and secrets"],
] as const) {
  it(`masks ${text.slice(0, 30)}`, () => { assert.equal(maskText(text), kept); });
}

it("masks by the names of fields, and leaves counts", () => {
  const seen = masked({ apiKey: "a", api_key: "b", token: "c", env: [{ name: "X_TOKEN", value: "d" }, { name: "HOME", value: "/e" }], max_tokens: 5, usage: { tokens_prompt: 7 } });
  assert.deepEqual(seen, { apiKey: "•••", api_key: "•••", token: "•••", env: [{ name: "X_TOKEN", value: "•••" }, { name: "HOME", value: "/e" }], max_tokens: 5, usage: { tokens_prompt: 7 } });
});

it("leaves out pictures and the rest of very long texts", () => {
  assert.deepEqual(masked({ data: "A".repeat(9000) }), { data: "[9000 characters]" });
  assert.match((masked({ text: "b".repeat(9000) }) as { text: string }).text, /… \[5000 more characters\]$/);
});
