"""The same attacks as cells of the code medium: the same sandbox around another program."""

from __future__ import annotations

import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from tests.sandbox.attack import test_config_files as test_history
from tests.sandbox.attack import test_files, test_kernel, test_network, test_processes, test_setid, test_unix_sockets
from tests.sandbox.attack.attack import TRIED, Attack
from tests.sandbox.attack.attack_scene import Scene

ATTACKS = [
    attack
    for table in (test_kernel, test_network, test_processes, test_files, test_history, test_setid)
    for attack in table.ATTACKS
    # What needs a ward of commands, a scene of its own or a workspace that is shown only is tried from the shell.
    if attack.writable and not attack.wards and attack.prepare is None and not attack.ends
]
CONTROLS = [a for a in ATTACKS if a.outer is None and a.python and "without the network" not in a.name][::4]


async def run(attack: Attack, scene: Scene) -> str:
    """One cell in the default circle, and what came of it."""
    wards = {"max_turns": 2, "code_timeout_ms": 20_000}
    if attack.writable:
        wards |= {"code_readable_paths": ["workspace"], "code_writable_paths": ["workspace"]}
    made = Cantrip(
        ScriptedCrystal(
            [{"tool_calls": [{"gate": "python", "args": {"code": attack.cell(scene)}}]}, {"content": "over"}]
        ),
        Call(),
        Circle("code", ["done"], wards, workspace=scene.workspace),
        loom=Loom.memory(),
    )
    await made.cast("go")
    assert made.loom is not None
    turn = next(t for t in made.loom.turns() if t.role == "crystal")
    output = turn.observation.output
    assert output is not None
    return f"{output.stdout}{output.stderr}{output.error or ''}"


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_held(attack: Attack, scene: Scene) -> None:
    before = scene.picture()
    text = await run(attack, scene)
    assert TRIED in text or "Error" in text, text
    scene.compare(before)
    assert not attack.succeeded(scene, text), text
    assert scene.secret not in text


@pytest.mark.parametrize("attack", CONTROLS, ids=lambda a: a.name)
async def test_control(attack: Attack, scene: Scene) -> None:
    with attack.defence.removed(scene):
        text = await run(attack, scene)
    assert attack.succeeded(scene, text), text


UNIX = [
    a
    for a in test_unix_sockets.ATTACKS
    if a.name in ("a relative path", "a hard link", "an address that changes meanwhile")
]


@pytest.mark.parametrize("attack", UNIX, ids=lambda a: a.name)
async def test_unix_sockets(attack: Attack, scene: Scene) -> None:
    assert attack.prepare is not None
    attack.prepare(scene)
    text = await run(attack, scene)
    assert TRIED in text, text
    assert not attack.succeeded(scene, text), text


@pytest.mark.parametrize("attack", UNIX, ids=lambda a: a.name)
async def test_control_of_unix_sockets(attack: Attack, scene: Scene) -> None:
    assert attack.prepare is not None
    attack.prepare(scene)
    with attack.defence.removed(scene):
        text = await run(attack, scene)
    assert attack.succeeded(scene, text), text


async def test_by_default_no_file_of_the_workspace_is_seen(scene: Scene) -> None:
    attack = Attack("read", "print(os.listdir('@WORK@'))", test_kernel.ATTACKS[0].defence, python=True, writable=False)
    text = await run(attack, scene)
    assert "README.md" not in text
    shown = Attack("read", "print(os.listdir('@WORK@'))", test_kernel.ATTACKS[0].defence, python=True)
    assert "README.md" in await run(shown, scene)
