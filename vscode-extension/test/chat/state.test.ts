import type * as acp from "@agentclientprotocol/sdk/unstable";
import assert from "node:assert/strict";
import { it } from "node:test";
import { choices } from "../../src/chat/state";

it("a model says what it cannot read, if that is known", () => {
  const unread = (known: unknown): unknown => {
    const option = { id: "model", name: "Model", type: "select", category: "model", currentValue: "m", options: [], _meta: { cantrip: known } };
    return choices({ options: [option as unknown as acp.SessionConfigOption], commands: [] })[0]?.unread;
  };
  assert.deepEqual(unread({ images: true, audio: false, documents: false }), ["audio", "PDF files"]);
  assert.deepEqual(unread({ images: false }), ["pictures"]);
  for (const known of [undefined, {}, { images: true, audio: "no" }]) assert.equal(unread(known), undefined);
});
