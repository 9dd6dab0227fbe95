"""`cantrip acp` and `cantrip lsp`: start the servers. `cantrip acp` is the same as the console script ``cantrip-acp``."""

from __future__ import annotations

import click

from cantrip_acp.cli.command_table import examples


@click.command(
    "acp",
    # The agent parses its own options, because it must be able to start without click.
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
    **examples("cantrip acp --help"),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def acp(arguments: tuple[str, ...]) -> int:
    """Serve the Agent Client Protocol on stdin and stdout; the same as `cantrip-acp`, with its options."""
    from cantrip_acp.acp.start import main

    return main(list(arguments))


# --- `cantrip lsp`: the language server.


@click.command(
    "lsp",
    # The server parses its own options, because it must be able to start without click.
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
    **examples("cantrip lsp --help"),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lsp(arguments: tuple[str, ...]) -> int:
    """Serve the Language Server Protocol on stdin and stdout: recipes in any editor."""
    from cantrip_acp.lsp.start import main

    return main(list(arguments))
