"""The tests of `tests/unit/acp/test_live_and_loaded.py` that start processes."""

from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.acp.protocol import ClientAbilities
from tests.unit.acp.test_live_and_loaded import CHILDREN, live_and_loaded

PROGRAMS: dict[str, list[list[dict[str, Any]]]] = {
    "bash": [
        [{"bash": "echo out; echo err >&2; cantrip_write_file a.txt x; exit 3"}, {"bash": "cantrip_plan '[]'; kill -9 $$"},
         {"bash": "echo a; cantrip_call_agent_batch '[\"Look here.\", \"Look there.\"]'; cat a.txt"},
         {"tool_calls": [{"gate": "bash", "args": {"command": "echo 1"}}, {"gate": "list_dir", "args": {}},
                         {"gate": "bash", "args": {"command": "cantrip_call_agent Fail.; cantrip_done fin"}}]}],
    ],
    "code": [
        [{"code": "print('out'); write_file('a.txt', 'x'); 7"}, {"code": "1 / 0"},
         {"code": "print('a')\ncall_agent_batch(['Look here.', 'Look there.'])"}, {"code": "done(read_file('a.txt'))"}],
    ],
}  # fmt: skip


@pytest.mark.sandbox
@pytest.mark.parametrize("medium", list(PROGRAMS))
async def test_programs(tmp_path: Path, medium: str) -> None:
    live, loaded = await live_and_loaded(tmp_path, PROGRAMS[medium], ClientAbilities(), medium, children=CHILDREN)
    assert loaded == live
    assert "failed" in str(live)
