"""Scripts for `cantrip client --script`: parse, play, match and report.
It may import the ACP client, recipes' parser and the rest of `cli`, but not the commands. Start with `play.py`."""
