"""Receipts: the record of one execution of a yool. Immutable and content-addressed."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cantrip_acp.text.storable import storable
from cantrip_acp.tuplespace.canonical_json import content_id

COST = ("usd", "tokens_in", "tokens_out", "wall_ms")
"""The parts of a cost that are added up. ``usd`` and tokens are None if unknown."""


def make_receipt(
    *,
    yool: str,
    tuple_id: str,
    started_at: str,
    ended_at: str,
    exit: int,  # noqa: A002 - the name of the field
    cost: Mapping[str, Any],
    result: Any = None,
    error: str | None = None,
    steps: Sequence[str] = (),
    artifacts: Sequence[Mapping[str, Any]] = (),
    input_hash: str | None = None,
    reused: str | None = None,
) -> dict[str, Any]:
    """Make a receipt. Its id is the hash of everything else in it, so that a changed receipt is noticed.

    ``exit`` is 0 for success. ``steps`` are the ids of the receipts that this one sums up. ``result`` is JSON data. Known secrets
    are masked. ``input_hash`` is the hash of everything on which the result depends, if that is known. ``reused`` is the id of
    the receipt whose result this one repeats.
    """
    receipt: dict[str, Any] = {
        "yool": yool,
        "tuple_id": tuple_id,
        "started_at": started_at,
        "ended_at": ended_at,
        "exit": exit,
        "artifacts": [dict(each) for each in artifacts],
        "cost": dict(cost),
    }
    if result is not None:
        receipt["result"] = result
    if error is not None:
        receipt["error"] = error
    if steps:
        receipt["steps"] = list(steps)
    if input_hash is not None:
        receipt["input_hash"] = input_hash
    if reused is not None:
        receipt["reused"] = reused
    receipt = storable(receipt, shapes=("error",))
    return {"id": content_id(receipt), **receipt}


def is_genuine(receipt: Mapping[str, Any]) -> bool:
    """Whether the id is the hash of the content."""
    content = {key: value for key, value in receipt.items() if key != "id"}
    return receipt.get("id") == content_id(content)


def is_genuine_elsewhere(receipt: Mapping[str, Any]) -> bool:
    """Whether the id is made as other programs with yools make it: from yool, exit, the hashes of the output, and the
    artifacts' paths."""
    try:
        parts = [receipt["yool"], str(receipt["exit"]), receipt["stdout_sha"], receipt["stderr_sha"]]
        parts += [each["path"] for each in receipt.get("artifacts", ())]
        return bool(receipt["id"] == "sha256:" + hashlib.sha256("".join(parts).encode()).hexdigest())
    except (KeyError, TypeError):
        return False


def as_ours(receipt: Mapping[str, Any], tuple_id: str, steps: Mapping[str, str]) -> dict[str, Any]:
    """Copy the receipt of a tuple that got another id. The copy refers to the original. ``steps`` has the new ids of receipts
    by the old ones."""
    content = {"artifacts": [], "cost": {}, **receipt, "tuple_id": tuple_id, "source_id": receipt["id"]}
    del content["id"]
    if "steps" in content:
        content["steps"] = [steps.get(each, each) for each in content["steps"]]
    return {"id": content_id(content), **content}


def add_costs(costs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of costs. A part is None if it is unknown in each of them."""
    total: dict[str, Any] = {}
    for name in COST:
        known = [cost[name] for cost in costs if cost.get(name) is not None]
        total[name] = sum(known) if known else None
    return total


def user_key(path: Path) -> bytes:
    """The key with which this user seals receipts in files, made on first use. Only the user can read it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        pass
    else:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
    status = os.lstat(path)
    key = path.read_bytes()
    if len(key) != 32 or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise OSError(f"{path} is not a key that only this user can read; delete it")
    return key
