"""In a code circle the folded turns are a variable (§6.8)."""

from __future__ import annotations

from typing import Any

from cantrip_acp import Cantrip, Circle, ScriptedCrystal


def spell(*cells: str) -> Cantrip:
    crystal = ScriptedCrystal([{"code": cell} for cell in cells], record_inputs=True)
    circle = Circle("code", ["done"], [{"max_turns": 30}])
    return Cantrip(crystal, circle=circle, folding={"trigger_after_turns": 3, "keep_turns": 1})


async def test_what_was_folded_is_at_hand_as_data() -> None:
    cantrip = spell(
        "secret = 'in turn one'\nprint(secret * 100)",
        "try: folded_turns\nexcept NameError: print('nothing is folded yet')",
        "x = 3",
        "print(len(folded_turns), folded_turns[0]['utterance']['code'].splitlines()[0], folded_turns)",
        "try: folded_turns[2]\nexcept IndexError as e: print(e)",
        "done([len(folded_turns), [t['sequence'] for t in folded_turns], folded_turns[0]['observation']['output']['stdout'][:11]])",
    )
    result = await cantrip.cast("go")
    assert result.result == [4, [1, 2, 3, 4], "in turn one"]
    crystal: Any = cantrip.crystal
    seen = "\n".join(m.content or "" for m in crystal.invocations[3].messages)
    assert "[Folded: turns 1-2]" in seen
    assert "whole in the variable `folded_turns`" in seen
    turns = [t for t in cantrip.loom.turns() if t.role == "crystal"]
    outputs = [t.observation.output.stdout for t in turns if t.observation.output is not None]
    assert outputs[1] == "nothing is folded yet\n"
    assert outputs[3].startswith("2 secret = 'in turn one' <folded_turns: 2 turns")
    assert "there is no turn 2" in outputs[4]


async def test_a_new_worker_is_told_again_what_is_folded() -> None:
    cantrip = spell("a = 1", "b = 2", "c = 3", "import os; os._exit(3)", "done(len(folded_turns))")
    assert (await cantrip.cast("go")).result == 2


async def test_a_fork_has_them_too() -> None:
    cantrip = spell("a = 1", "b = 2", "c = 3", "d = 4", "done(0)")
    await cantrip.cast("go")
    origin = [t for t in cantrip.loom.turns() if t.role == "crystal"][3].id
    for state in ("replay", "auto"):
        other = cantrip.with_crystal(ScriptedCrystal([{"code": "done([a, b, c, d, len(folded_turns)])"}]))
        async with await other.fork(origin, state=state) as entity:  # type: ignore[arg-type]
            assert (await entity.cast("on")).result[:4] == [1, 2, 3, 4]
