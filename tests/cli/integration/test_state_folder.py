"""The state folder is for its user alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.support.command_line import GREETER, run


@pytest.mark.parametrize("named", [False, True], ids=["by default", "by an option"])
def test_others_see_nothing_of_the_state(named: bool, tmp_path: Path) -> None:
    (tmp_path / "greeter.cantrip.yaml").write_text(GREETER)
    home = tmp_path / "home"
    state = home / ".local/state/cantrip" if not named else home / "deep/state"
    env = {"HOME": str(home), "CANTRIP_STATE_DIR": "", "XDG_STATE_HOME": ""}
    old = os.umask(0o022)
    try:
        option = ["--state-dir", str(state)] if named else []
        done = run("cast", "greeter.cantrip.yaml", "go", *option, cwd=tmp_path, **env)
    finally:
        os.umask(old)
    assert done.status == 0, done.err
    folders = [state, *(each for each in state.rglob("*") if each.is_dir())]
    assert len(folders) > 1
    assert {stat.S_IMODE(each.stat().st_mode) for each in folders} == {0o700}
    # What is above belongs to all programs of the user.
    assert stat.S_IMODE(state.parent.stat().st_mode) == 0o755
