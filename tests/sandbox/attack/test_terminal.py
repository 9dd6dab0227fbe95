"""The user's terminal: a command that is started from one neither reads it, types into it nor takes it over.

Each is run from a program whose controlling terminal is a real one (a pty), as `cantrip cast` in a shell is.
"""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.sandbox.attack.attack import BROKE, PYTHON, TRIED
from tests.sandbox.attack.attack_scene import Scene
from tests.support.ordinary_user import ROOT

_DRIVER = """
import asyncio, contextlib, os, subprocess, sys
from unittest import mock
from cantrip_acp.sandbox.launch import process_tree as process
from cantrip_acp.sandbox import Sandbox
from cantrip_acp.sandbox import SandboxOptions
from tests.sandbox.attack.weakened_sandbox import calls, option

os.close(os.open("/dev/tty", os.O_RDWR))  # There is one, for this program.
folder, command, weak = sys.argv[1:]
original = subprocess.Popen


def popen(*args, **more):
    return original(*args, **{**more, "start_new_session": False})


async def main():
    with contextlib.ExitStack() as stack:
        if weak == "weak":
            stack.enter_context(mock.patch.object(process.subprocess, "Popen", popen))
            stack.enter_context(option("--new-session").removed(None))
            stack.enter_context(calls("ioctl").removed(None))
        options = SandboxOptions(bash_timeout_ms=20000)
        outcome = await Sandbox(options, folder).run(command)
        print(outcome.stdout, outcome.stderr)


asyncio.run(main())
"""

ATTACKS = {
    "open it": "exec 3<>/dev/tty && broke opened",
    "write to it": "echo typed > /dev/tty && broke wrote",
    "find it among one's descriptors": "for n in 0 1 2 3 4 5 6 7 8 9; do [ -t $n ] && broke $n; done",
    "see its name": 'python3 -c "import os; os.ctermid(); os.close(os.open(os.ctermid(), 2))" 2>/dev/null && broke saw',
    "type into it": "python3 - <<'EOF'\n"
    + PYTHON
    + "import fcntl, termios\n"
    + "try: fcntl.ioctl(os.open('/dev/tty', os.O_RDWR), termios.TIOCSTI, b'x'); broke('typed')\n"
    + "except OSError as error: print(error)\nEOF",
    "take it over": "python3 - <<'EOF'\n"
    + PYTHON
    + "import fcntl, termios\n"
    + "try:\n    os.tcsetpgrp(os.open('/dev/tty', os.O_RDWR), os.getpgrp()); broke('taken')\n"
    + "except OSError as error: print(error)\nEOF",
}
_UNPROVABLE = {
    "type into it": "this kernel's settings forbid it",
    "take it over": "the process group of another namespace has no number there",
    "find it among one's descriptors": "a command's own descriptors are pipes, whatever else is taken away",
}


def run(program: str, scene: Scene, weak: str = "strong") -> tuple[str, bytes]:
    """What the command printed, and what appeared on the terminal."""
    command = f"broke() {{ printf '%s%s %s\\n' BROKE -OUT \"$*\"; }}\n{program}\nprintf '%s%s\\n' TRI ED"
    outer, inner = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", _DRIVER, str(scene.workspace), command, weak],
            cwd=scene.workspace,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=inner,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.set_blocking(outer, False)
        try:
            shown = os.read(outer, 1000)
        except (BlockingIOError, OSError):
            shown = b""
    finally:
        os.close(outer)
        os.close(inner)
    assert done.returncode == 0, done.stderr
    assert TRIED in done.stdout, done.stdout + done.stderr
    return done.stdout, shown


@pytest.mark.parametrize("name", ATTACKS)
def test_held(name: str, scene: Scene) -> None:
    said, shown = run(ATTACKS[name], scene)
    assert BROKE not in said
    assert shown == b""


@pytest.mark.parametrize("name", ATTACKS)
def test_control(name: str, scene: Scene) -> None:
    """Without a session of its own, and without the filter's rule for terminals."""
    said, shown = run(ATTACKS[name], scene, "weak")
    if BROKE not in said:
        assert name in _UNPROVABLE, said
        pytest.skip(f"unprovable here: {_UNPROVABLE[name]}")
    assert b"typed" in shown or name != "write to it"


def test_a_fresh_one_is_not_the_users(scene: Scene) -> None:
    """What a command may well do: make a terminal of its own (`script`, `expect`), which is nobody else's."""
    made = Path(scene.workspace / "made.py")
    made.write_text("import os, pty; os.write(1, str(pty.spawn(['echo', 'in a terminal'])).encode())\n")
    said, shown = run("python3 made.py", scene)
    assert "in a terminal" in said
    assert shown == b""
