"""How long a tuple-space keeps what: artifact bodies for some days, excerpts for a year, receipts and hashes for ever.

A large result is no part of its receipt. It is an artifact: a body with an id that is its hash. The receipt has the id, the
size and the small fields of the result, such as the ids of a cast, and stays genuine when the body is purged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.text.storable import storable
from cantrip_acp.tuplespace.canonical_json import canonical_json
from cantrip_acp.tuplespace.receipts import make_receipt
from cantrip_acp.tuplespace.stores.base import End, Expired, artifact_id
from cantrip_acp.tuplespace.tuples import Pattern, now_iso
from cantrip_acp.tuplespace.workers.guardrails import GC_LANE, number_from_environment

if TYPE_CHECKING:
    from cantrip_acp.tuplespace.stores.sql import TupleStore

INLINE_BYTES = 16_384
"""A result whose canonical JSON is larger becomes an artifact."""
_FIELD_BYTES = 1000
"""A field of a large result with a larger canonical JSON is left out of the receipt."""
_EXCERPT = 500
_DAY_S = 86_400.0
_MB = 1_000_000


class Tiers(msgspec.Struct, frozen=True, kw_only=True):
    """``hot_days``: how long bodies are kept. ``warm_days``: how long excerpts are kept. ``max_mb``: all bodies together."""

    hot_days: int = 30
    warm_days: int = 365
    max_mb: int = 5000

    @classmethod
    def from_environment(cls) -> Tiers:
        """``YOOL_TUPLE_HOT_DAYS``, ``YOOL_TUPLE_WARM_DAYS`` and ``YOOL_TUPLE_MAX_MB``. Raises `TupleError`."""
        most = 100_000_000
        return cls(
            hot_days=number_from_environment("YOOL_TUPLE_HOT_DAYS", 30, most),
            warm_days=number_from_environment("YOOL_TUPLE_WARM_DAYS", 365, most),
            max_mb=number_from_environment("YOOL_TUPLE_MAX_MB", 5000, most),
        )


def is_large(result: Any) -> bool:
    """Whether a result is too large for its receipt."""
    return isinstance(result, dict | list | str) and len(canonical_json(result)) > INLINE_BYTES


def split_result(store: TupleStore, result: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Store a large result (`storable`). What goes into the receipt: its small fields, and the whole as an artifact."""
    result = storable(result)
    body, small = canonical_json(result), None
    if isinstance(result, dict):
        fields = {key: each for key, each in result.items() if len(canonical_json({key: each})) <= _FIELD_BYTES}
        small = fields if fields and len(canonical_json(fields)) <= INLINE_BYTES else None
    identity = store.put_artifact(body, body[:_EXCERPT].decode("utf-8", "ignore"))
    return small, [{"kind": "result", "id": identity, "bytes": len(body)}]


def read_result(store: TupleStore, receipt: Mapping[str, Any]) -> Any:
    """The result of a receipt, read from its artifact if there is one, else the receipt's own ``result`` (or None)."""
    for each in receipt.get("artifacts", ()):
        if each.get("kind") == "result" and isinstance(each.get("id"), str):
            found = store.artifact(each["id"])
            if found is not None and found.body is not None and artifact_id(found.body) == each["id"]:
                return json.loads(found.body)
    return receipt.get("result")


def collect(store: TupleStore, tiers: Tiers, *, dry_run: bool) -> Expired:
    """Purge artifacts that exceed the ages or the size in ``tiers``. Tuples, receipts and artifact records stay."""
    return store.expire_artifacts(
        hot_s=tiers.hot_days * _DAY_S,
        warm_s=max(tiers.warm_days, tiers.hot_days) * _DAY_S,
        most_bytes=tiers.max_mb * _MB,
        dry_run=dry_run,
    )


def answer_calls(store: TupleStore, worker: str, folder: str, result: Mapping[str, Any]) -> int:
    """End the tuples of the lane ``gc.urgent`` that ask for space in this folder, with receipts. Returns their number."""
    pattern = Pattern({"lane": GC_LANE, "payload": [{"yool": "fs.gc.run", "args": {"folder": folder}}]})
    count = 0
    while claims := store.claim(pattern, worker, lease_s=60, count=100):
        for claim in claims:
            now = now_iso()
            receipt = make_receipt(
                yool="fs.gc.run",
                tuple_id=claim.work.id,
                started_at=now,
                ended_at=now,
                exit=0,
                cost={},
                result=dict(result),
            )
            count += sum(store.acknowledge(End(claim=claim, receipt=receipt)))
    return count
