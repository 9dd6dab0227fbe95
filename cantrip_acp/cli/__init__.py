"""The command line: `cantrip` and its subcommands, one module per command, imported only when the command runs.
It may import every other package; only the entry points import it.
Start with `main.py`, `app.py` and `command_table.py`."""
