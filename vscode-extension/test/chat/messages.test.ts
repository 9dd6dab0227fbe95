import assert from "node:assert/strict";
import { it } from "node:test";
import { parseWebviewMessage } from "../../src/chat/messages";
import { Permissions } from "../../src/chat/permissions";

for (const bad of [null, 1, "send", [], {}, { type: "eval" }, { type: "send", text: 1, attachments: [] }, { type: "send", text: "x", attachments: [{ kind: "file", name: "n", uri: 5 }] }, { type: "send", text: "x" }, { type: "option", id: "m", value: {} }, { type: "location", path: "/x", line: "1" }, { type: "answer", question: "q" }, { type: "resend", item: "i1", text: "x" }, { type: "tryAgain" }, { type: "continue" }, { type: "copyAnswer", item: 1 }, { type: "restartServer", server: 1.5 }, { type: "dropped", uris: [1] }, { type: "send", text: "x", attachments: [], now: 1 }, { type: "editQueued", id: "q", text: "x" }, { type: "removeQueued" }, { type: "undoChange", path: "a.py" }, { type: "keepChange", hunk: 1 }, { type: "keepChange", path: "a.py", version: "v", hunk: "1" }, { type: "restore" }, { type: "version", item: "i1", step: 2 }, { type: "answer", question: "q", option: "o", reason: 1 }, { type: "__proto__" }]) {
  it(`takes no ${JSON.stringify(bad)} from the page`, () => { assert.equal(parseWebviewMessage(bad), undefined); });
}

it("takes what the page says", () => {
  const message = { type: "send", text: "x", attachments: [{ kind: "file", name: "n", uri: "file:///n" }] };
  assert.deepEqual(parseWebviewMessage(message), message);
  assert.deepEqual(parseWebviewMessage({ type: "stop", more: 1 }), { type: "stop" });
  for (const each of [{ type: "resend", item: "i1", text: "x", attachments: [] }, { type: "tryAgain", item: "i2" }, { type: "continue", item: "i2" }, { type: "copyAnswer", item: "i2" }, { type: "restore", item: "i1" }, { type: "version", item: "i1", step: -1 }, { type: "undoChange", path: "a.py", version: "v", hunk: 2 }, { type: "keepChange" }, { type: "answer", question: "q", option: "o", reason: "No.", plan: "# Plan" }]) assert.deepEqual(parseWebviewMessage(each), each);
});

const request = { sessionId: "s", toolCall: { toolCallId: "t" }, options: [{ optionId: "yes", name: "Yes", kind: "allow_once" as const }] };

it("answers a permission once, and only with its own options", async () => {
  const permissions = new Permissions();
  const asked: string[] = [];
  permissions.asked.on(({ id }) => asked.push(id));
  const answer = permissions.ask(request, new AbortController().signal);
  const [id = ""] = asked;
  assert.equal(permissions.answer(id, "allow_always"), false);
  assert.equal(permissions.answer(id, "yes"), true);
  assert.equal(permissions.answer(id, "yes"), false);
  assert.deepEqual(await answer, { outcome: { outcome: "selected", optionId: "yes" } });
  const reasoned = permissions.ask(request, new AbortController().signal);
  permissions.answer(asked[1] ?? "", "yes", { reason: "Not there." });
  assert.deepEqual(await reasoned, { outcome: { outcome: "selected", optionId: "yes", _meta: { cantrip: { reason: "Not there." } } } });
});

it("cancels the questions of a session that is stopped, and one that is taken back", async () => {
  const permissions = new Permissions();
  const first = permissions.ask(request, new AbortController().signal);
  const other = permissions.ask({ ...request, sessionId: "other" }, new AbortController().signal);
  const back = new AbortController();
  const third = permissions.ask(request, back.signal);
  back.abort();
  permissions.cancel("s");
  assert.deepEqual([await first, await third], [{ outcome: { outcome: "cancelled" } }, { outcome: { outcome: "cancelled" } }]);
  assert.equal(permissions.of("other").length, 1);
  permissions.cancel("other");
  await other;
});
