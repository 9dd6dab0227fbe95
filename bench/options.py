"""What the command line chose, for every question."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """``peers``: other frameworks too. ``quick``: a tenth of the rounds, to see that it works."""

    peers: bool = False
    quick: bool = False

    def rounds(self, usual: int) -> int:
        return max(2, usual // 10) if self.quick else usual
