"""Who pays how much."""

from pennywise.money import Pennies


def evenly(total: Pennies, people: int) -> list[Pennies]:
    """Equal shares of a bill; they add up to the bill, whatever the number of people."""
    if people < 1:
        raise ValueError("a bill needs at least one person to pay it")
    share = total // people
    return [share] * people


def by_weight(total: Pennies, weights: list[int]) -> list[Pennies]:
    """Shares in proportion to weights (nights stayed, say); the first person carries what rounding leaves."""
    if not weights or min(weights) < 0 or sum(weights) == 0:
        raise ValueError("weights must be non-negative and not all zero")
    shares = [total * weight // sum(weights) for weight in weights]
    shares[0] += total - sum(shares)
    return shares
