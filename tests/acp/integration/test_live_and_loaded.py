"""The tests of `tests/acp/unit/test_live_and_loaded.py` that start processes."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cantrip_acp.acp.protocol import ClientAbilities
from cantrip_acp.types.styled import Styled
from tests.acp.unit.test_live_and_loaded import CHILDREN, live_and_loaded
from tests.acp.unit.test_output_colours import CODE, cells

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


COLOURED: dict[str, list[list[dict[str, Any]]]] = {
    "bash": [
        [{"bash": r"printf '\033[31mred\033[0m plain \033[1;38;5;200mbo'; sleep 0.1; printf 'ld\n10 %%\r\033[32m20 %%\n'"},
         {"bash": "printf '\\033[31mred\\n'; "
                  "cantrip_call_agent_batch '[\"Look here.\"]' >/dev/null; printf 'still red\\n'; cantrip_done x"}],
    ],
    "code": [[{"code": "print('\\033[31mred')\ncall_agent_batch(['Look here.'])\nprint('still red')"}, {"code": "done(1)"}]],
}  # fmt: skip


@pytest.mark.sandbox
@pytest.mark.parametrize("medium", list(COLOURED))
async def test_programs_in_colours(tmp_path: Path, medium: str) -> None:
    client = ClientAbilities(display_terminal=True, output_styles=True)
    live, loaded = await live_and_loaded(
        tmp_path, COLOURED[medium], client, medium, children=CHILDREN, show=msgspec.to_builtins
    )
    came: dict[str, str] = {}
    for update in live:
        if piece := (update.get("_meta") or {}).get("terminal_output"):
            data = piece["data"]
            # What a line said before it was finished is no output.
            data = data.removeprefix("\r\x1b[K") if CODE.sub("", data).endswith("\n") else "" if "\r" in data else data
            came[piece["terminal_id"]] = came.get(piece["terminal_id"], "") + data
    ran, again = (
        [
            cells(Styled(update["rawOutput"]["output"], tuple(update["_meta"]["cantrip"]["styles"])).coded())
            for update in updates
            if "styles" in ((update.get("_meta") or {}).get("cantrip") or {})
        ]
        for updates in (live, loaded)
    )
    red = "\x1b[31m"
    assert ran == again
    assert ran == [cells(each) for each in came.values() if "\x1b" in each]
    assert ran[-1][:5] == [(c, red) for c in "redst"]
    assert "Seen here." in str(loaded)
    if medium == "bash":
        assert ran[0][:5] == [("r", red), ("e", red), ("d", red), (" ", ""), ("p", "")]
        assert ("l", "\x1b[1;38;5;200m") in ran[0]
        assert ran[0][-4:] == [(c, "\x1b[1;32m") for c in "20 %"]
    assert "\\x1b" not in str(loaded)
