"""Amounts of money as whole pennies, so that nothing is lost to floating point."""

import re

Pennies = int

_AMOUNT = re.compile(r"(?P<whole>\d+)(?:\.(?P<part>\d{2}))?")


def parse(text: str) -> Pennies:
    """'12.30' or '12' as pennies. Raises ValueError for anything else."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not an amount of money: {text!r} (write 12 or 12.30)")
    return int(match["whole"]) * 100 + int(match["part"] or 0)


def show(amount: Pennies) -> str:
    """1230 as '12.30'."""
    return f"{amount // 100}.{amount % 100:02d}"
