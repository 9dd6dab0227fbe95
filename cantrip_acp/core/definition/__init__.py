"""What a cantrip is: crystal, call and circle, as checked values that never change.

Start with `cantrip_definition.py` (crystal, call, circle and settings together). `types.checked_values` has the base class
and the checks of single values, which recipes use too. These modules run nothing. They may import contracts, events and
shared helpers, and nothing that runs a cast.
"""

__all__ = ["cantrip_definition", "circle"]
