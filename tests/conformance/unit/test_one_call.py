"""What a case of a suite cannot show, since it has one circle: one call in two circles (CALL-3)."""

from __future__ import annotations

from cantrip_acp import Call, Cantrip, Circle, ScriptedCrystal


async def test_one_call_serves_in_two_circles() -> None:
    call = Call(system_prompt="You are the same.")
    crystal = ScriptedCrystal([{"content": "a"}, {"content": "b"}], record_inputs=True)
    for gates in (["done", "echo"], ["done", "read_file"]):
        await Cantrip(crystal, call, Circle(gates=gates, wards=[{"max_turns": 2}])).cast("go")
    first, second = crystal.invocations
    assert [m.content for m in first.messages] == [m.content for m in second.messages] == ["You are the same.", "go"]
    assert [t.name for t in first.tools] == ["done", "echo"]
    assert [t.name for t in second.tools] == ["done", "read_file"]
    assert first.params is second.params is call
