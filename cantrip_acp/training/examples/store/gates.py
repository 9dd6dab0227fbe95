"""The store. Its numbers are in no prompt, so an entity must ask for them."""

import zlib

from cantrip_acp import Gate


def count(item: str) -> int:
    return zlib.crc32(item.strip().lower().encode()) % 900 + 100


@Gate.of
def stock(item: str) -> int:
    """How many of an item are in the store."""
    return count(item)
