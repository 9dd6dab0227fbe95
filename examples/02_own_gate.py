"""Give a model a function of yours."""

import sys
from datetime import date

from cantrip_acp import Cantrip, gate

crystal = sys.argv[1] if sys.argv[1:] else f"scripted:{__file__[:-3]}.yaml"


@gate
def days_between(start: date, end: date) -> int:
    """Count the days from one day to another."""
    return (end - start).days


cantrip = Cantrip(crystal, gates=[days_between], max_turns=5)
print(cantrip.cast_sync("How many days did the war from 1870-07-19 to 1871-01-28 last?").result)
