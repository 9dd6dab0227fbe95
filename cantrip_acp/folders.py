"""The user's own folders: where state is kept, and where recipes and settings are looked for."""

from __future__ import annotations

import os
from pathlib import Path

APP = "cantrip"


def state_dir(chosen: str | os.PathLike[str] | None = None) -> Path:
    """``chosen``, else ``$CANTRIP_STATE_DIR``, else the platform's state folder; absolute, and not made here."""
    return _folder(chosen, "CANTRIP_STATE_DIR", "state")


def config_dir(chosen: str | os.PathLike[str] | None = None) -> Path:
    """``chosen``, else ``$CANTRIP_CONFIG_DIR``, else the platform's configuration folder."""
    return _folder(chosen, "CANTRIP_CONFIG_DIR", "config")


def _folder(chosen: str | os.PathLike[str] | None, variable: str, kind: str) -> Path:
    given = chosen if chosen is not None else os.environ.get(variable)
    if given:
        return Path(given).expanduser().absolute()
    import platformdirs

    # The platform's own rules where XDG does not say otherwise; a relative XDG path counts as unset there.
    found = platformdirs.user_state_path(APP) if kind == "state" else platformdirs.user_config_path(APP)
    return Path(found)


def private(folder: Path) -> Path:
    """The folder, made where it is missing, for this user alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
