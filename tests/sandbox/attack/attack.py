"""What an attack is: something real that is tried inside, and the one defence that stops it.

Each is run twice in the same sandbox. As it is, the attack must fail, and the host must be as it was. With its one defence
taken away (`weaken`), the same attack must succeed, or else it would show nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cantrip_acp.sandbox import Outcome
from tests.sandbox.attack.attack_scene import Scene
from tests.sandbox.attack.weakened_sandbox import Defence

BROKE = "BROKE" + "-OUT"
"""What an attack prints when it got what it wanted. Its programs spell it in two pieces, so that a shown text is none."""
TRIED = "TRI" + "ED"
"""What every attack prints at its end, so that one that never ran is not taken for one that failed."""

_SHELL = """
broke() { printf '%s%s %s\\n' BROKE -OUT "$*"; }
tried() { printf '%s%s\\n' TRI ED; }
"""
PYTHON = """
import ctypes, errno, mmap, os, socket, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def broke(*words): print("BROKE" + "-OUT", *words, flush=True)
def syscall(number, *args):
    ctypes.set_errno(0)
    back = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    return back, ctypes.get_errno()
"""
_HEREDOC = "END-OF-THE-ATTACK"


@dataclass(frozen=True)
class Attack:
    """``program`` is shell, or Python where ``python`` says so; ``@NAME@`` in it are facts of the scene.

    It succeeded where it says so (``broke``), or where the host shows it (``host``). ``outer`` says why the machine around
    the sandbox may stop it even without the defence: then it is unprovable here, and only then. ``ends``: the program is
    expected to be killed, and prints nothing at its end.
    """

    name: str
    program: str
    defence: Defence
    python: bool = False
    host: Callable[[Scene], bool] | None = None
    prepare: Callable[[Scene], None] | None = None
    wards: Mapping[str, Any] = field(default_factory=dict)
    writable: bool = True
    outer: str | None = None
    ends: bool = False
    timeout_ms: int = 20_000

    def command(self, scene: Scene) -> str:
        """The attack as one command of the bash medium."""
        text = scene.fill(self.program)
        if not self.python:
            return f"{_SHELL}{text}\ntried"
        return f"{_SHELL}python3 - <<'{_HEREDOC}'\n{PYTHON}\n{text}\n{_HEREDOC}\ntried"

    def cell(self, scene: Scene) -> str:
        """The attack as one cell of the code medium: Python as it is, shell by a subprocess."""
        if self.python:
            return f"{PYTHON}\n{scene.fill(self.program)}\nprint('TRI' + 'ED')"
        return f"import subprocess\nsubprocess.run(['bash', '-c', {self.command(scene)!r}])"

    def succeeded(self, scene: Scene, text: str) -> bool:
        return BROKE in text or (self.host is not None and self.host(scene))


async def held(attack: Attack, scene: Scene) -> None:
    """Run it in the sandbox as it is, and look at the host."""
    if attack.prepare is not None:
        attack.prepare(scene)
    scene.hold_s = 10.0
    before = scene.picture()
    outcome = await scene.run(attack)
    assert attack.ends or TRIED in outcome.stdout, f"the attack never ran to its end: {outcome}"
    scene.compare(before)
    assert not attack.succeeded(scene, outcome.stdout), f"{attack.name} succeeded: {outcome}"
    assert scene.secret not in outcome.stdout + outcome.stderr


async def control(attack: Attack, scene: Scene) -> str | None:
    """Run it without its one defence; it must succeed. Gives the reason where that cannot be shown on this machine."""
    if attack.prepare is not None:
        attack.prepare(scene)
    with attack.defence.removed(scene):
        outcome: Outcome = await scene.run(attack)
    if attack.succeeded(scene, outcome.stdout):
        return None
    words = f"{attack.name} did not succeed without {attack.defence.name}: {outcome}"
    assert attack.outer is not None, words
    return attack.outer
