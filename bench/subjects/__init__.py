"""One program a framework: the same loop of turns, run by itself so that its memory and disk can be told apart.

`python -m bench.subjects.NAME TURNS FOLDER` runs TURNS turns of one conversation, in each of which a fake model asks
for one call of `echo`, keeps in FOLDER whatever that framework keeps, and prints a report. Peers run in their own
environment, so these programs import nothing of the project but `report` (and `ours` the product).
"""
