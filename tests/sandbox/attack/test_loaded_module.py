"""The same attacks as functions of a module that was loaded by `compile_and_load`: its worker has the sandbox of cells."""

from __future__ import annotations

import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from tests.sandbox.attack.attack import TRIED, Attack
from tests.sandbox.attack.attack_scene import Scene
from tests.sandbox.attack.test_code_cell import ATTACKS as ALL

ATTACKS = ALL[::3]
CONTROLS = [a for a in ATTACKS if a.outer is None and a.python and "without the network" not in a.name][::3]


async def run(attack: Attack, scene: Scene) -> str:
    """One call of a module's function, and what came of it: what it printed is told with its failure."""
    body = attack.cell(scene)
    source = f"def attack():\n    exec({body!r}, {{}})\n    raise RuntimeError('over')\n"
    wards = {"max_turns": 1, "code_timeout_ms": 20_000, "allow_compile_modules": ["attacker"]}
    wards |= {"code_readable_paths": ["workspace"], "code_writable_paths": ["workspace"]}
    load = {"gate": "compile_and_load", "args": {"module": "attacker", "source": source}}
    made = Cantrip(
        ScriptedCrystal([{"tool_calls": [load, {"gate": "attack", "args": {}}]}]),
        circle=Circle("conversation", ["done", "compile_and_load"], wards, workspace=scene.workspace),
        loom=Loom.memory(),
    )
    await made.cast("go")
    loaded, called = list(made.loom.turns())[-1].observation.results
    assert not loaded.is_error, loaded.result
    return str(called.result)


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
