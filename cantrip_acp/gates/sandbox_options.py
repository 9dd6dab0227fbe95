"""What the wards of a circle say to its sandboxes: the options for commands, and the paths and options for cells."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from cantrip_acp.files.paths import within
from cantrip_acp.gates.wards import Wards
from cantrip_acp.sandbox import SandboxOptions, real_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cantrip_acp.sandbox import Sandbox


def sandbox_options(wards: Wards) -> SandboxOptions:
    """The options of a sandbox for commands: the wards of the same names. Without a network there is a proxy that lists no host."""
    values = {option.name: getattr(wards, option.name) for option in fields(SandboxOptions)}
    return SandboxOptions(**values | {"bash_network": wards.bash_network or ()})


async def command_sandbox(wards: Wards, workspace: Path | None, folders: Sequence[Path]) -> Sandbox:
    """A sandbox for commands of gates, as those of the bash medium have it. Raises `SandboxMissing`, `DefinitionError`."""
    from cantrip_acp.files.paths import persistent_home, private_folders
    from cantrip_acp.sandbox import Sandbox, ensure_checked

    await ensure_checked()

    def make() -> Sandbox:
        return Sandbox(
            sandbox_options(wards),
            workspace,
            home_source=persistent_home(workspace) if wards.bash_home == "persistent" else None,
            private=private_folders(),
            more_readable=tuple(os.path.realpath(folder) for folder in folders),
        )

    return await anyio.to_thread.run_sync(make)


@dataclass(frozen=True, slots=True)
class CodePaths:
    """Real paths that code cells can use, and the options of their sandbox. ``workspace`` is None if cells do not see it.

    ``folder`` is the workspace if cells see a part of it: relative paths start there.
    """

    readable: tuple[str, ...]
    writable: tuple[str, ...]
    workspace: str | None
    folder: str | None
    options: SandboxOptions


def code_paths(wards: Wards, workspace: Path | str | None) -> CodePaths:
    """Resolve the wards `code_readable_paths` and `code_writable_paths`. By default cells see nothing of the workspace.

    Raises `DefinitionError` for a path that does not exist or leads out of the workspace.
    """
    writable = real_paths(wards.code_writable_paths, workspace, "code_writable_paths", writing=True)
    readable = tuple(
        p for p in real_paths(wards.code_readable_paths, workspace, "code_readable_paths") if p not in writable
    )
    own = os.path.realpath(workspace) if workspace is not None else None
    seen = own if own is not None and own in (*readable, *writable) else None
    return CodePaths(
        readable=tuple(p for p in readable if p != seen),
        writable=writable,
        workspace=seen,
        folder=own if own is not None and any(within(p, own) for p in (*readable, *writable)) else None,
        options=replace(
            sandbox_options(wards),
            bash_writable_paths=writable,
            bash_network=False,
            git_writes=False,
            bash_timeout_ms=wards.code_timeout_ms,
            bash_max_output_bytes=wards.code_max_output_bytes,
        ),
    )
