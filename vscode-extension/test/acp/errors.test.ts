import { RequestError } from "@agentclientprotocol/sdk/unstable";
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { describeError, words } from "../../src/acp/errors";

const failed = (details: string, more: object = {}): RequestError => new RequestError(-32603, `The prompt failed: ${details}`, { details, ...more });

describe("an error addresses the user", () => {
  const cases: readonly (readonly [problem: RequestError, title: string, action: string])[] = [
    [failed("anthropic:claude answered 401 (check the key): invalid x-api-key", { error: "CrystalError", status: 401 }), "The key was not accepted", "signIn"],
    [failed("openai:gpt answered 403 (the key may not do this): no"), "The key was not accepted", "signIn"],
    [failed("openai:gpt: no connection, or it was lost: Connection error."), "The model could not be reached", "retry"],
    [failed("ollama:x: no answer for 60 seconds (time-out)"), "The model could not be reached", "retry"],
    [failed("openai:gpt answered 429: You exceeded your current quota", { error: "CrystalError", status: 429 }), "The account has no credit left", "retry"],
    [failed("openai:gpt answered 429: slow down", { error: "CrystalError", status: 429 }), "The provider asks to wait", "retry"],
    [failed("openai:gtp answered 404 (check the model's name and base_url): no"), "The model was not found", "none"],
    [failed("openai:gpt answered 503: oops", { error: "CrystalError", status: 503 }), "The provider has a problem", "retry"],
    [failed("the messages do not fit", { error: "ContextLimitError" }), "This conversation is too long for the model", "newSession"],
    [new RequestError(-32600, "Invalid request: session x is busy with another prompt", { reason: "prompt_in_progress" }), "Cantrip is still at work here", "none"],
    [new RequestError(-32000, "Authentication required: no key was found. Set …"), "A model is needed", "signIn"],
  ];
  for (const [problem, title, action] of cases) {
    it(`${title}: ${problem.message.slice(0, 60)}`, () => {
      const said = describeError(problem);
      assert.deepEqual([said.title, said.action], [title, action]);
      assert.doesNotMatch(said.detail, /The prompt failed|Invalid request/);
    });
  }

  it("without the words and the fields of the protocol", () => {
    const wrong = new RequestError(-32602, "Invalid params: value: there is no model 'x' to choose", { field: "value", problem: "there is no model 'x' to choose" });
    assert.equal(words(wrong), "There is no model 'x' to choose");
    assert.equal(words(new RequestError(-32603, "Internal error: session/new failed (OSError)", {})), "Session/new failed (OSError)");
    assert.match(words(new RequestError(-32000, "Authentication required: no model: the recipe names none. Or start the agent …")), /^A model is needed: No model: the recipe names none\.\n/);
  });
});
