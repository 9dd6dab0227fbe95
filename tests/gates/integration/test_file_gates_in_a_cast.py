"""The tests of `tests/gates/unit/test_file_gates_in_a_cast.py` that start processes."""

from __future__ import annotations

from pathlib import Path

from cantrip_acp.types.events import GateCalled, GateFinished
from tests.gates.unit.test_file_gates_in_a_cast import cantrip


async def test_a_small_session(workspace: Path) -> None:
    calls = [
        {"gate": "write_file", "args": {"path": "src/app.py", "content": "x = 1\n"}},
        {"gate": "list_dir", "args": {"depth": 2}},
        {"gate": "edit_file", "args": {"path": "src/app.py", "old_text": "x = 1", "new_text": "x = 2"}},
        {"gate": "read_file", "args": {"path": "src/app.py", "limit": 5}},
        {"gate": "search", "args": {"pattern": "x = \\d"}},
        {"gate": "read_file", "args": {"path": "../../etc/passwd"}},
        {"gate": "read_file", "args": {}},
        {"gate": "read_file", "args": {"path": "src/app.py", "offset": 0}},
        {"gate": "write_file", "args": {"path": "a", "content": "b", "mode": "x"}},
        {"gate": "search", "args": {"pattern": 5}},
    ]
    called: list[GateCalled] = []
    finished: list[GateFinished] = []
    async with cantrip(workspace, *calls).cast_stream("work") as stream:
        async for event in stream:
            if isinstance(event, GateCalled):
                called.append(event)
            elif isinstance(event, GateFinished):
                finished.append(event)
    results = [(f.record.result, f.record.is_error) for f in finished]
    assert results[:5] == [
        ("created src/app.py (1 line, 6 bytes)", False),
        (["src/", "src/app.py"], False),
        ("edited src/app.py at line 1", False),
        ("x = 2\n", False),
        ("src/app.py:1:x = 2", False),
    ]
    for (result, is_error), says in zip(
        results[5:10],
        ["outside the folder", "missing required argument 'path'", "offset", "mode", "pattern"],
        strict=True,
    ):
        assert is_error
        assert says in result
    assert [c.title for c in called[:5]] == [
        "Write src/app.py",
        "List .",
        "Edit src/app.py",
        "Read src/app.py (1–5)",
        "Search 'x = \\\\d'",
    ]
    assert [c.kind for c in called[:5]] == ["edit", "read", "edit", "read", "search"]
    assert finished[2].diffs[0].old_text == "x = 1\n"
    assert called[2].locations[0].path == str(workspace / "src/app.py")
