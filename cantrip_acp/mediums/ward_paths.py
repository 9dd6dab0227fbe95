"""What a sandbox would refuse of the paths and hosts in wards, without starting one (`cantrip recipe check`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cantrip_acp.files.hidden_paths import existing
from cantrip_acp.files.paths import within_any
from cantrip_acp.gates.wards import Wards
from cantrip_acp.sandbox import AllowedHosts, check_root, machine
from cantrip_acp.types.errors import DefinitionError

_READ, _CODE, _BASH = "code_readable_paths", "code_writable_paths", "bash_writable_paths"
_OF_MEDIUM = {"code": (_READ, _CODE), "bash": (_BASH,)}


def ward_problems(wards: Wards, workspace: Path, medium: str) -> Iterator[tuple[str, str, bool]]:
    """Yield each problem with paths and hosts in wards: the ward, what is wrong, and whether something is only missing in
    this workspace."""
    if isinstance(wards.bash_network, tuple):
        try:
            AllowedHosts.of(wards.bash_network)
        except DefinitionError as error:
            yield "bash_network", str(error), False
    if medium in _OF_MEDIUM and within_any(os.path.realpath(workspace), existing(wards.hidden_paths)):
        yield "hidden_paths", f"{workspace} is the workspace itself; name what to hide in it", False
    home = machine().home
    for ward in _OF_MEDIUM.get(medium, ()):
        for path in getattr(wards, ward):
            real = os.path.realpath(os.path.join(workspace, path))
            try:
                check_root(real, home, ward, writing=ward != _READ)
            except DefinitionError as error:
                yield ward, str(error), False
                continue
            if not os.path.exists(real):
                yield ward, f"{path} does not exist", True
            elif ward != _READ and not os.path.isdir(real):
                yield ward, f"{path} is not a folder", False
