"""The user's settings file: defaults for the options of commands (docs/files.md, "The settings file").

``settings.toml`` in the configuration folder has a table for each command, such as ``[repl]`` or ``[loom.view]``. Its keys are
the command's options. What is on the command line or in an environment variable counts more.
"""

from __future__ import annotations

from typing import Any

import click

from cantrip_acp.files.paths import config_dir
from cantrip_acp.types.checked_values import nearest

_OWN = ("gc",)
"""Tables that their command reads itself."""


def use_settings(ctx: click.Context, known: list[str]) -> None:
    """Read the settings file, if there is one, into the defaults of a context. ``known`` are the commands.

    Raises `DefinitionError` if the file cannot be read, is not TOML, or names no command.
    """
    path = config_dir() / "settings.toml"
    if not path.exists():
        return
    from cantrip_acp.files.toml_file import TomlFile

    file = TomlFile.read(path)
    for name, table in file.data.items():
        if name not in known:
            raise file.error(f"unknown command {name!r}{nearest(name, known)}", name)
        if not isinstance(table, dict):
            raise file.error(f"must be a table: write [{name}], and its options below it", name)
    ctx.default_map = {name: table for name, table in file.data.items() if name not in _OWN}


def check_settings(ctx: click.Context, name: str, command: click.Command) -> None:
    """Replace the options of a command in the settings by the names of its parameters.

    Raises `DefinitionError` for an option that the command does not have.
    """
    tables: Any = ctx.default_map or {}
    if not isinstance(tables.get(name), dict):
        return
    table = tables[name]
    options = {
        option.lstrip("-"): param.name
        for param in command.params
        if isinstance(param, click.Option)
        for option in (*param.opts, *param.secondary_opts)
    }
    groups = command.commands if isinstance(command, click.Group) else {}
    found = {}
    for key, value in table.items():
        if key in groups and isinstance(value, dict):
            found[key] = value
            continue
        param = options.get(key.replace("_", "-"))
        if param is None:
            from cantrip_acp.files.toml_file import TomlFile

            file = TomlFile.read(config_dir() / "settings.toml")
            raise file.error(f"unknown option of {name} {key!r}{nearest(key, [*options, *groups])}", name, key)
        found[param] = value
    ctx.default_map = {**tables, name: found}
