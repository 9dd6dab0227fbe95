"""A client session whose agent runs in the same process, over memory streams."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.acp.client.client import AgentRefused
from cantrip_acp.acp.server import serve
from cantrip_acp.cli.render.client_output import ClientText, loom_of
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.cli.session.client_session import ClientSession
from cantrip_acp.cli.session.permissions import Policy
from cantrip_acp.loom.loom import Loom
from tests.support.command_line import recipe

WRITER = """
crystal:
  provider: scripted
  responses:
    - tool_calls: [{gate: write_file, args: {path: one.txt, content: "first"}}]
    - {content: Written.}
circle:
  gates: [done, write_file]
  wards: [{max_turns: 3}]
"""


def client(folder: Path, state: Path, output: ClientText | None = None, **options: Any) -> ClientSession:
    async def in_process(reader: Any, writer: Any) -> None:
        await serve(reader, writer, recipe=str(folder / "r.cantrip.yaml"), state_dir=state)

    shown = output or ClientText(Screen(), Screen(sys.stderr), folder=folder)
    return ClientSession(in_process, shown, folder=folder, **options)


@pytest.mark.parametrize(("rule", "written"), [("once", True), ("never", False)])
def test_a_prompt_with_a_permission(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: Any, written: bool
) -> None:
    recipe(tmp_path, WRITER)
    with client(tmp_path, tmp_path / "state", policy=Policy(rule)) as session:
        opened = session.open(mode="ask")
        outcome = session.turn("Write it.")
        assert outcome.stop_reason == "end_turn"
        loom = loom_of(opened.meta)
    assert "Written." in capsys.readouterr().out
    assert (tmp_path / "one.txt").exists() is written
    assert loom is not None
    with Loom.open(loom) as held:
        assert [(start.intent, end.reason) for start, end in held.casts() if end] == [("Write it.", "text")]


def test_an_error_of_the_agent_is_an_error_of_the_client(tmp_path: Path) -> None:
    recipe(tmp_path, WRITER)
    with client(tmp_path, tmp_path / "state") as session:
        session.open()
        with pytest.raises(AgentRefused, match="unknown mode"):
            session.set_mode("nonsense")


class Impatient(ClientText):
    """The user leaves at the first word."""

    def show_update(self, session_id: str, update: Mapping[str, Any]) -> None:
        if update["sessionUpdate"] == "agent_message_chunk":
            raise KeyboardInterrupt
        super().show_update(session_id, update)


def test_the_end_of_the_block_ends_a_running_prompt(tmp_path: Path) -> None:
    recipe(
        tmp_path, WRITER.replace("- tool_calls", "- chunks: [One, two, three]\n      delay_ms: 20000\n      tool_calls")
    )
    output = Impatient(Screen(), Screen(sys.stderr), folder=tmp_path)
    with client(tmp_path, tmp_path / "state", output=output) as session:
        loom = loom_of(session.open().meta)
        with pytest.raises(KeyboardInterrupt):
            session.turn("Write it.")
    with Loom.open(str(loom)) as held:
        assert [end.reason for _, end in held.casts() if end] == ["cancelled"]
