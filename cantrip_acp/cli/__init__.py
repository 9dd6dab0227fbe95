"""The command line: `cantrip` and its subcommands, one module per command, imported only when the command runs.
It may import every other package. Outside it, only `__main__.py` and `lsp/commands` import it (`loom/find_loom.py`).
Start with `main.py`, `command_table.py` and `errors.py`."""

__all__ = ["command_table", "errors", "main"]
