"""What the state folder may let go of: old looms, and what crashes left behind. `cantrip gc` is its door.

A collector (`plan.COLLECTORS`) finds what might go; nothing is removed but by `sweep`. Only commands import this folder.
"""
