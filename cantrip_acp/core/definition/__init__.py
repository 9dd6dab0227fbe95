"""What a cantrip is: call, circle and wards, as checked values that never change.

Start with `cantrip_definition.py` (crystal, call, circle and settings together). `checked_values.py` has the base class
and the checks of single values, which recipes use too. These modules run nothing. They may import contracts, events and
shared helpers, and nothing that runs a cast.
"""
