"""Canonical JSON and content addresses: equal data has equal bytes, and equal bytes have the same id."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from cantrip_acp.tuplespace.errors import TupleError

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, without spaces, in UTF-8. Raises `TupleError` if the value is not JSON data."""
    try:
        return _ENCODER.encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        # ValueError: NaN, infinity, a lone surrogate, a list that contains itself.
        raise TupleError(f"not JSON data: {error}") from None


def content_id(value: Any) -> str:
    """``sha256:`` and the hash of the canonical JSON."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()
