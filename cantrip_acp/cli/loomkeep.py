"""`cantrip loom keep`: mark a loom of the state folder, so that `cantrip gc` never lets go of it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from cantrip_acp.cli.commands import examples
from cantrip_acp.cli.opening import state_option


@click.command(
    "keep",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello."',
        "cantrip loom keep",
        "cantrip loom keep --no",
    ),
)
@click.argument("name", metavar="[FILE]", required=False)
@click.option("--no", "let_go", is_flag=True, help="Take the mark away again.")
@state_option
def keep(name: str | None, let_go: bool, state_dir: Path | None) -> None:
    """Mark a loom to be kept: `cantrip gc` passes it over, however old and large it is.

    The mark is an empty file beside it, NAME.keep. Looms outside of the state folder are never removed, and need none.
    """
    from cantrip_acp.cli.loomfile import find
    from cantrip_acp.core.errors import DefinitionError
    from cantrip_acp.files import paths
    from cantrip_acp.retention.looms import FOLDER, KEEP

    state = paths.state_dir(state_dir)
    path = find(name, state)
    if not isinstance(path, Path) or path.resolve().parent != (state / FOLDER).resolve():
        raise DefinitionError(
            f"lies outside of {state / FOLDER}, where nothing is ever removed: it needs no mark", where=str(path)
        )
    mark = path.with_name(path.name + KEEP)
    if let_go:
        mark.unlink(missing_ok=True)
        click.echo(f"{path.name}  not marked any more")
        return
    os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    click.echo(f"{path.name}  kept")
