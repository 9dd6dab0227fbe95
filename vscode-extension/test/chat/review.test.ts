import assert from "node:assert/strict";
import { test } from "node:test";
import type { ChangedFile } from "../../src/acp/changes";
import type { Session } from "../../src/acp/session";
import { Review } from "../../src/chat/review";

test("whoever waits for the list sees it, though another question overtook theirs", async () => {
  const answers: ((files: ChangedFile[]) => void)[] = [];
  const session = { changedFiles: () => new Promise<ChangedFile[]>((resolve) => answers.push(resolve)) } as unknown as Session;
  const review = new Review(() => session);
  const file = { path: "a.txt", uri: "file:///p/a.txt", version: "1" } as ChangedFile;
  const first = review.refresh().then(() => review.files);
  const second = review.refresh();
  answers[0]?.([]);
  await new Promise(setImmediate);
  answers[1]?.([file]);
  assert.deepEqual(await first, [file]);
  await second;
  assert.deepEqual(review.files, [file]);
});
