"""`cantrip completion`: prints the script that completes words in a shell."""

from __future__ import annotations

import click

from cantrip_acp.cli.command_table import examples

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion", **examples("cantrip completion bash", "cantrip completion zsh", "cantrip completion fish"))
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, options, and the names of recipes and looms in your shell.

    \b
    bash   echo 'eval "$(cantrip completion bash)"' >> ~/.bashrc
    zsh    echo 'eval "$(cantrip completion zsh)"' >> ~/.zshrc
    fish   cantrip completion fish > ~/.config/fish/completions/cantrip.fish
    """
    from click.shell_completion import BashComplete, get_completion_class

    made = get_completion_class(shell)
    assert made is not None, "click knows these shells"
    # click would start bash to read its version; whoever runs this knows which shell it is for.
    source = made(click.Group(), {}, "cantrip", "_CANTRIP_COMPLETE")
    click.echo(BashComplete.source_template % source.source_vars() if shell == "bash" else source.source())
