"""Ending tuples in a store, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cantrip_acp.tuplespace.errors import LeaseLost
from cantrip_acp.tuplespace.stores.base import Claim, End
from cantrip_acp.tuplespace.stores.sql import TupleStore


def acknowledge(store: TupleStore, claim: Claim, receipt: Mapping[str, Any], **more: Any) -> None:
    """End one tuple. Raises `LeaseLost`."""
    [ended] = store.acknowledge(End(claim=claim, receipt=receipt, **more))
    if not ended:
        raise LeaseLost("the lease ended; another worker may have the tuple")
