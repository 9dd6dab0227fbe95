"""Answers that are ready to be sent: a large one is written as JSON in a thread, so that no other answer waits for it."""

from __future__ import annotations

import json
from typing import Any

import msgspec


class Prepared(bytes):
    """A result as JSON."""


def prepared(data: Any) -> Prepared:
    """Plain data as an answer."""
    try:
        return Prepared(msgspec.json.encode(data, enc_hook=str))
    except UnicodeEncodeError:  # half a character, which JSON has a way to write
        return Prepared(json.dumps(msgspec.to_builtins(data, enc_hook=str)).encode())
