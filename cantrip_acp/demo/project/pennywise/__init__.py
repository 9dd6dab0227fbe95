"""Split a bill between friends, to the penny."""

from pennywise.money import Pennies, parse, show
from pennywise.split import by_weight, evenly

__all__ = ["Pennies", "by_weight", "evenly", "parse", "show"]
