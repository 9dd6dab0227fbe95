"""`cantrip lsp`: the language server for recipes."""

from __future__ import annotations

import click

from cantrip_acp.cli.commands import examples


@click.command(
    "lsp",
    # The server reads its own flags: it must be able to start without click.
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
    **examples("cantrip lsp --help"),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lsp(arguments: tuple[str, ...]) -> int:
    """Serve the Language Server Protocol on stdin and stdout: recipes in any editor."""
    from cantrip_acp.lsp.start import main

    return main(list(arguments))
