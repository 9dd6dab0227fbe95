"""What a store of tuples gives back, and how it is encoded. SQLite and PostgreSQL do the same, and one suite of tests checks both.

A store has three tables. Tuples and receipts are append-only. The queue has the state of delivery for each tuple:
``waiting`` → ``claimed`` → ``done`` or ``failed`` (dead letter), or ``taken`` by `TupleSpace.in_`. A claim has a lease. When the
lease ends without an answer, the tuple waits again, and the old claim is refused from then on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec.structs import force_setattr

from cantrip_acp.text.codecs import json_decoder
from cantrip_acp.text.json_data import freeze
from cantrip_acp.tuplespace.budget import Budget
from cantrip_acp.tuplespace.canonical_json import canonical_json
from cantrip_acp.tuplespace.errors import SpaceError, TupleError
from cantrip_acp.tuplespace.tuples import SCHEMA, Runnable, WorkTuple, can_run

State = Literal["waiting", "claimed", "done", "failed", "taken"]
FIRSTS = 7
"""The version of the tables that notes which tuple another one repeats."""
MOST_ANSWERS = 5
"""How many answers for one input are looked at."""
DEFAULT_MAX_WAITING = 8192
"""The most waiting tuples of a lane (``YOOL_TUPLE_QUEUE_MAXSIZE``)."""

BATCH_LANE = "batches"
"""The lane of the log of batches (`batch.BatchLog`), which is no work."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A tuple that belongs to one worker until its lease ends."""

    work: WorkTuple
    position: int
    """The tuple's position in the store."""
    token: int
    """A number that grows with each claim of the tuple. A claim with an older number is refused."""
    attempt: int
    """1 for the first claim."""
    meta: Mapping[str, str] | None = None
    """The data that `TupleStore.put` got beside the tuple's content: the trace context."""
    progress: Mapping[str, Any] | None = None
    """The progress that an earlier attempt saved with `save_progress` in a step that it did not end."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a tuple: its last receipt, and its child tuples. ``failed`` is the reason of a dead letter."""

    claim: Claim
    receipt: Mapping[str, Any]
    children: Sequence[WorkTuple] = ()
    failed: str | None = None
    seal: str | None = None
    """Of an answer that may be reused for the same ``input_hash`` (`reuse`)."""
    steps: Mapping[int, Mapping[str, Any]] = {}
    """Receipts of steps that are not stored yet."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt that a worker stored as the answer of its own claim, to be reused for the same input."""

    document: dict[str, Any]
    seal: str


class StoredTuple(msgspec.Struct, frozen=True, kw_only=True):
    """A tuple with its state."""

    work: WorkTuple
    position: int
    state: State
    attempts: int
    worker: str | None
    error: str | None
    """Why the last attempt failed, or why the tuple is a dead letter."""
    progress: Mapping[str, Any] | None = None
    """The last progress of the running step: ``step`` and the yool's report, such as ``cost`` and ``entity_id``."""


class StoredReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt of a tuple."""

    document: dict[str, Any]
    step: int | None
    """The index of the step, or None for the receipt that ends the tuple."""


class StoredArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """A large part of a receipt. Its record is kept for ever: the id, which is the hash of the body, and the size."""

    id: str
    size: int
    body: bytes | None
    """None after the body was purged."""
    excerpt: str | None
    """The beginning of the body. None after the record became cold."""
    purged_at: str | None
    """ISO 8601, when the body was purged."""


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """The artifacts that `expire_artifacts` purged, or would purge."""

    bodies: int
    bytes: int
    """The size of these bodies."""
    excerpts: int
    """Records that became cold."""
    bodies_left: int
    bytes_left: int


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that holds tuples of a lane under leases that have not ended."""

    worker: str
    lane: str
    count: int
    lease_s: float = 0.0
    """How long the last of its leases still runs, without another sign of life."""


class WorkerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A worker with a recent sign of life, whether it has tuples or not."""

    worker: str
    lane: str
    runs: tuple[Runnable, ...] = ()
    trouble: str | None = None
    """Why it takes nothing now, such as a model that does not answer."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting tuples with equal needs: their steps have the same yools, with the same ``recipe`` and ``project``."""

    lane: str
    steps: tuple[Mapping[str, Any], ...]
    """For each kind of step ``{"yool": …, "args": {…}}``, with the arguments that workers look at."""
    count: int
    tuple_id: str
    """The oldest one of them."""


class LaneCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of a lane's tuples in one state."""

    lane: str
    state: State
    count: int
    oldest_s: float
    """Age in seconds of the oldest one, since it was put into the store."""


class LaneSums(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a lane's tuples, and the number that ended lately."""

    lane: str
    ended_lately: int
    usd: float | None
    """Of all receipts, and of the steps that run. None if no receipt says a cost."""
    tokens_in: int
    tokens_out: int
    reused: int = 0
    """Steps whose answer was reused."""


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of a lane that have the same reason."""

    lane: str
    reason: str
    count: int
    tuple_id: str
    """The last one of them."""


STAND_IN = "tuple.needs.newer-version"
"""The yool of `stand_in`."""


def encode_work(work: WorkTuple) -> tuple[bytes, bytes | None]:
    """The columns ``body`` and ``v2`` of a tuple.

    Versions from before ``yool-tuple/v2`` read ``body`` alone, and end at what they do not know. So there they find a tuple that
    they can read and that none of their workers can run.
    """
    text = msgspec.json.encode(work)
    if work.schema == SCHEMA:
        return text, None
    kept = {key: value for key, value in work.document.items() if key in ("id", "lane", "map_pos")}
    step = {"yool": STAND_IN, "args": {"schema": work.schema}}
    return canonical_json({**kept, "schema": SCHEMA, "payload": [step]}), text


def is_stand_in(document: Mapping[str, Any]) -> bool:
    """Whether a document is the stand-in that earlier versions see, and may have exported, for a tuple that they do not know."""
    match document.get("payload"):
        case [{"yool": yool}]:
            return bool(yool == STAND_IN)
    return False


def encode_receipt(receipt: Mapping[str, Any], work: WorkTuple) -> tuple[str, bytes]:
    """The id and the JSON of a receipt. Raises `TupleError` if it is not one of this tuple."""
    identity = receipt.get("id")
    if not isinstance(identity, str) or not identity.startswith("sha256:"):
        raise TupleError(f"a receipt has an id that begins with sha256:, not {identity!r}")
    if receipt.get("tuple_id") != work.id:
        raise TupleError(f"receipt {identity} belongs to tuple {receipt.get('tuple_id')}, not to {work.id}")
    with contextlib.suppress(TypeError, ValueError, OverflowError, RecursionError):
        text = msgspec.json.encode(receipt, order="sorted")
        # It writes a number that JSON does not have as null.
        if b"null" not in text:
            return identity, text
    return identity, canonical_json(dict(receipt))


def reuse_columns(receipt: Mapping[str, Any], seal: str | None) -> tuple[str | None, str | None, str | None]:
    """The columns ``input_hash``, ``seal`` and ``reused`` of a receipt."""
    return (receipt.get("input_hash") if seal is not None else None), seal, receipt.get("reused")


def artifact_id(body: bytes) -> str:
    """The id of an artifact: the hash of its body."""
    return "sha256:" + hashlib.sha256(body).hexdigest()


def expired(old: Sequence[tuple[str, int]], sizes: Sequence[int], excerpts: int) -> Expired:
    """Count the purged data: ``old`` are the ids and sizes of bodies, ``sizes`` the sizes of all."""
    size = sum(each for _, each in old)
    return Expired(
        bodies=len(old), bytes=size, excerpts=excerpts, bodies_left=len(sizes) - len(old), bytes_left=sum(sizes) - size
    )


def encode_runs(runs: Sequence[Runnable]) -> str:
    return msgspec.json.encode(list(runs)).decode()


def decode_runs(text: str) -> tuple[Runnable, ...]:
    return tuple(json_decoder(list[Runnable]).decode(text))


_runs = lru_cache(maxsize=64)(decode_runs)


def can_run_body(body: bytes, runs: str) -> bool:
    """`can_run` for a tuple and for what a worker can run, both as JSON."""
    return can_run(json.loads(body), _runs(runs))


LOOKED_AT = ("recipe", "project")
"""The arguments of steps by which workers decide whether they can run them."""


def need_of(document: Mapping[str, Any]) -> str:
    """The needs of a tuple as JSON, equal for equal needs."""
    steps = []
    for step in document["payload"]:
        args = step.get("args") or {}
        seen = {key: args[key] for key in LOOKED_AT if key in args}
        if args.get("reference") is not None:
            seen["reference"] = True
        steps.append(canonical_json({"yool": step["yool"], "args": seen}).decode())
    return f"[{','.join(sorted(set(steps)))}]"


def grouped_needs(rows: Iterable[tuple[str, str | bytes, str]]) -> list[Need]:
    """Group waiting tuples by need, from their lanes, bodies and ids in the order of the queue."""
    found: dict[tuple[str, str], Need] = {}
    for lane, body, identity in rows:
        key = (lane, need_of(json.loads(body)))
        first = found.get(key)
        found[key] = (
            Need(lane=lane, steps=decode_need(key[1]), count=1, tuple_id=identity)
            if first is None
            else msgspec.structs.replace(first, count=first.count + 1)
        )
    return list(found.values())


def decode_need(text: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(json.loads(text))


def encode_progress(progress: Mapping[str, Any]) -> str:
    """Encode progress as canonical JSON. Raises `TupleError` if it is not JSON data."""
    return canonical_json(dict(progress)).decode()


def decode_progress(text: str | None) -> Mapping[str, Any] | None:
    return None if text is None else json.loads(text)


def decode_work(body: bytes | str) -> WorkTuple:
    """A tuple from a store's row. It was checked before it was stored. Raises `SpaceError` if the row is damaged."""
    try:
        work = json_decoder(WorkTuple).decode(body)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise SpaceError(f"a tuple in the store is damaged: {error}") from None
    # In place, which takes half the time of `freeze_record`: nobody else has the tuple yet.
    for step in work.payload:
        if step.args is not msgspec.UNSET:
            force_setattr(step, "args", freeze(step.args))
    if work.map_pos is not msgspec.UNSET:
        force_setattr(work, "map_pos", freeze(work.map_pos))
    return work


def budget_of(row: Any) -> Budget:
    name, usd, tokens, spent_usd, spent_tokens, alarmed = row
    return Budget(name=name, usd=usd, tokens=tokens, spent_usd=spent_usd, spent_tokens=spent_tokens, alarmed=alarmed)


def stored_of(row: Any) -> StoredTuple:
    position, body, state, attempts, worker, error, progress = row
    return StoredTuple(
        work=decode_work(body),
        position=position,
        state=state,
        attempts=attempts,
        worker=worker,
        error=error,
        progress=decode_progress(progress),
    )
