"""The capability block: generated from gates, wards and medium, and the same on every query (CIRCLE-11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantrip_acp import Call, Cantrip, Circle, ScriptedCrystal
from cantrip_acp.gates.contract import Gate
from cantrip_acp.mediums.code.medium import CodeMedium


def look(path: str, deep: bool = False, kinds: list[str] | None = None) -> str:
    """Look at a path.

    A second line that is not for the block.
    """
    return path


def text(wards: dict | None = None, **options: object) -> str:
    circle = Circle(
        CodeMedium(**options), ["done", Gate.of(look)], {"max_turns": 3, **(wards or {})}, workspace=Path("/w")
    )  # type: ignore[arg-type]
    assert circle.presentation is not None
    return circle.presentation


def test_gates_with_their_signatures() -> None:
    assert "- `look(path: str, deep: bool = False, kinds: list | None = None)`: Look at a path." in text()
    assert "second line" not in text()
    assert "- `done(answer)`:" in text()


def test_wards_are_said() -> None:
    said = text({"code_timeout_ms": 1500, "code_memory_mb": 300, "code_max_output_bytes": 5000})
    for words in ("1.5 seconds", "300 MiB", "5,000 bytes", "no network", "(/w) are not visible"):
        assert words in said
    said = text({"code_readable_paths": ["data"], "code_writable_paths": ["out"]})
    assert "Readable: /w/data. Readable and writable: /w/out; version control data (.git)" in said
    said = text({"code_readable_paths": ["workspace"], "code_timeout_ms": 1000, "bash_network": ["example.org"]})
    for words in ("/w (the workspace, where cells begin)", "1 second,", "(bash_network is for shell commands alone)"):
        assert words in said
    assert "bash_network" not in text()


def test_the_loom_is_said_where_it_is_shown() -> None:
    assert "`loom`" in text(loom=True)
    assert "`loom`" not in text()


@pytest.mark.anyio
async def test_the_same_on_every_query() -> None:
    crystal = ScriptedCrystal([{"code": "1"}, {"code": "2"}, {"code": "done(3)"}], record_inputs=True)
    await Cantrip(crystal, Call(system_prompt="You."), Circle("code", ["done"], {"max_turns": 5})).cast("go")
    heads = [[(m.role, m.kind, m.content) for m in q.messages[:3]] for q in crystal.invocations]
    assert heads[0] == heads[1] == heads[2]
    assert [kind for _, kind, _ in heads[0]] == ["call", "capabilities", "intent"]
    assert {t.name for q in crystal.invocations for t in q.tools} == {"python"}
