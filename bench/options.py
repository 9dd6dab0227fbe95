"""What the command line chose, for every question."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """``peers``: other frameworks too. ``quick``: a tenth of the rounds, to see that it works. ``only``: one group of workloads, or
    one row of them."""

    peers: bool = False
    quick: bool = False
    only: str = ""

    def rounds(self, usual: int) -> int:
        return max(2, usual // 10) if self.quick else usual
