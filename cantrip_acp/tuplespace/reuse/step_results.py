"""Reuse of answers: a step with the same input as an earlier one is not run again.

The input is the yool (its full name and its version), the arguments, the project, and what the yool declares: the digest of
the files and of the allowed environment that it reads. A yool that declares nothing is never reused.

Only an answer that a worker stored for its own claim in this space is reused. Its receipt has a seal, in a column that nothing
else fills, so an imported receipt is none. In a file, which other programs of this user may write, the seal is made with a
key that only this user can read. In a database on a server the seal says only that a claim stored the receipt: whoever may
answer claims there may give answers, and row security keeps the answers of other users out.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

import msgspec

from cantrip_acp.text.defaults import complete
from cantrip_acp.text.json_data import thaw
from cantrip_acp.tuplespace.canonical_json import canonical_json, content_id
from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.receipts import is_genuine
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.yools.step import StepCall, Yool, YoolBase

_CLAIMED = "claim"
"""The seal where there is no key."""


class Reuse(msgspec.Struct, frozen=True, kw_only=True):
    """Finds reusable answers. ``project`` is the id of the project, ``key`` the user's key for a store in a file."""

    project: str
    key: bytes | None = None

    def __repr__(self) -> str:
        return f"Reuse({self.project!r})"

    async def input_hash(self, yool: Yool, call: StepCall) -> str | None:
        """The hash of all declared inputs of a step's answer. None if the yool declares none."""
        about = complete(yool, YoolBase)
        digest = await about.input_digest(call)
        if digest is None:
            return None
        return content_id(
            {
                "yool": about.full_name or call.yool,
                "version": about.version,
                "args": thaw(call.args),
                "inputs": digest,
                "project": self.project,
            }
        )

    def find(self, store: TupleStore, input_hash: str) -> dict[str, Any] | None:
        """The newest reusable receipt for an input. Blocks."""
        for answer in store.answers(input_hash):
            receipt = answer.document
            try:
                may_be_used = (
                    hmac.compare_digest(answer.seal, self.seal(receipt))
                    and is_genuine(receipt)
                    and receipt["input_hash"] == input_hash
                    and receipt["exit"] == 0
                    and "reused" not in receipt
                    and _keep_artifacts(store, receipt)
                )
            except (TupleError, KeyError, TypeError):
                continue
            if may_be_used:
                return receipt
        return None

    def seal(self, receipt: Mapping[str, Any]) -> str:
        """The seal of an answer. The receipt's id is the hash of everything in it."""
        if self.key is None:
            return _CLAIMED
        return hmac.new(self.key, canonical_json(["answer", receipt["id"]]), hashlib.sha256).hexdigest()


def _keep_artifacts(store: TupleStore, receipt: Mapping[str, Any]) -> bool:
    """Extend the life of the large parts of a reused answer, as if they were new. Returns whether all of them exist."""
    for each in receipt["artifacts"]:
        if not isinstance(each.get("id"), str):
            continue
        found = store.artifact(each["id"])
        if found is None or found.body is None or store.put_artifact(found.body, found.excerpt or "") != found.id:
            return False
    return True
