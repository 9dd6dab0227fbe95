"""A loaded session shows what the live one showed: the same events, the same translator, so the same updates.

The differences that remain are those that `acp.render.loaded_session` lists; `shown` takes them out.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_acp import Call, Cantrip, Circle, ScriptedCrystal
from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.protocol import ClientAbilities
from cantrip_acp.acp.render.event_translator import Translator
from cantrip_acp.acp.render.loaded_session import final_states, loaded_updates
from cantrip_acp.crystals.contract import Delta, Emit, Query, Response
from cantrip_acp.gates.contract import Gate, GateReply
from cantrip_acp.loom.loom import Loom
from cantrip_acp.types.errors import CantripError, CrystalError
from cantrip_acp.types.messages import Attachment
from tests.support.images import png

IMAGE = Attachment("image", "image/png", base64.b64encode(png()).decode())
SHOOT = Gate("shoot", "", {"type": "object"}, lambda a, c: GateReply("taken", attachments=(IMAGE,)))
GATES = ["done", "read_file", "write_file", "edit_file", "list_dir", "plan", "call_agent", "call_agent_batch", SHOOT]
WARDS: list[Any] = [{"max_turns": 9}, {"max_depth": 2}, {"bash_writable_paths": ["workspace"]}]
CLIENTS = [ClientAbilities(), ClientAbilities(notices=True), ClientAbilities(compaction=True, display_terminal=False)]


class Breaking(ScriptedCrystal):
    """Breaks off in the middle of its first answers."""

    def __init__(self, *args: Any, breaks: int = 0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.breaks = breaks

    async def query(self, query: Query, emit: Emit) -> Response:
        if self.breaks:
            self.breaks -= 1
            await emit(Delta("thought", "Perhaps"))
            await emit(Delta("text", "Half an answ"))
            raise CrystalError("the stream was cut", status=503)
        return await super().query(query, emit)


def shown(updates: Sequence[acp.Update]) -> list[Any]:
    """Updates without what differs: pieces and ids of messages, states in between, notices, retries and usage."""
    out: list[Any] = []
    last: tuple[Any, ...] = ()
    for update in final_states(updates):
        if isinstance(update, acp.AgentMessageChunk | acp.AgentThoughtChunk):
            message_id = update.message_id or ""
            if message_id.endswith((":retry", ":notice")):
                continue
            text = update.content.text
            if last == (type(update), message_id):
                text = out.pop()[1] + text
            last = (type(update), message_id)
            out.append((type(update).__name__, text))
        elif not isinstance(update, acp.Notice | acp.UsageUpdate | acp.UserMessageChunk):
            last = ()
            data = msgspec.to_builtins(update)
            if children := (data.get("_meta") or {}).get("cantrip", {}).get("children"):
                # Children that ran beside each other are loaded one after the other.
                children.sort(key=lambda action: str(action["number"]))
            out.append(data)
    return out


async def live_and_loaded(
    folder: Path,
    casts: Sequence[Sequence[dict[str, Any]]],
    client: ClientAbilities,
    medium: str = "conversation",
    **more: Any,
) -> tuple[list[Any], list[Any]]:
    loom = Loom.memory()
    breaks, children, show = more.pop("breaks", 0), more.pop("children", ()), more.pop("show", shown)
    crystal = Breaking([step for cast in casts for step in cast], breaks=breaks, children=children)
    circle = Circle(medium=medium, gates=GATES, wards=WARDS, workspace=folder)
    cantrip = Cantrip(crystal, Call(), circle, loom=loom, **more)
    live: list[Any] = []
    async with cantrip.invoke() as entity:
        for number, _ in enumerate(casts):
            translator, updates = Translator(client), list[acp.Update]()
            try:
                async with entity.stream(f"Intent {number}") as stream:
                    async for event in stream:
                        updates += translator.translate(event)
            except CantripError:
                pass
            live += show([*updates, *translator.close()])
        loaded: list[Any] = []
        prompt: list[acp.Update] = []
        for update in loaded_updates(entity, client):
            if isinstance(update, acp.UserMessageChunk):
                loaded += show(prompt)
                prompt = []
            prompt.append(update)
        loaded += show(prompt)
    return live, loaded


def calls(*pairs: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args} for gate, args in pairs], **more}


PLAN = ("plan", {"entries": [{"content": "Look", "status": "completed"}, {"content": "Write"}]})
BATCH = ("call_agent_batch", {"requests": ["Look here.", "Look there.", "Fail."]})
CHILDREN = [
    {"responses": [calls(("write_file", {"path": "child.txt", "content": "c\n"})), {"content": "Seen here."}]},
    {"responses": [calls(("read_file", {"path": "none"})), calls(("call_agent", {"intent": "Deeper."})), {"content": "There."}],
     "children": [{"responses": [{"content": "Deep."}]}]},
    {"responses": [{"error": {"status": 400, "message": "no"}}]},
]  # fmt: skip
SESSIONS: dict[str, Any] = {
    "texts": [[{"thinking": "Hm.", "content": "One."}], [{"content": "Two."}]],
    "files": [[
        calls(("write_file", {"path": "a.txt", "content": "one\n"}), ("read_file", {"path": "none"}), content="First."),
        calls(("edit_file", {"path": "a.txt", "old_text": "one", "new_text": "two"}), ("list_dir", {})),
        calls(("done", {"answer": "made it"})),
    ]],
    "wrong calls": [[calls(("nothing", {}), ("read_file", {"wrong": 1}), ("done", {})), {"content": "Over."}]],
    "calls after done": [[calls(("done", {"answer": "x"}), ("list_dir", {}))]],
    "data as answer": [[calls(("done", {"answer": {"a": [1, 2]}}))]],
    "plans and images": [[calls(PLAN, ("shoot", {})), calls(PLAN), {"content": "End."}]],
    "children": [[calls(BATCH, ("list_dir", {})), {"content": "All."}]],
    "an error": [[calls(("list_dir", {})), {"error": {"status": 400, "message": "no"}}], [{"content": "Again."}]],
}  # fmt: skip


@pytest.mark.parametrize("client", CLIENTS, ids=["plain", "notices", "compaction"])
@pytest.mark.parametrize("name", list(SESSIONS))
async def test_the_same_updates(tmp_path: Path, name: str, client: ClientAbilities) -> None:
    live, loaded = await live_and_loaded(tmp_path, SESSIONS[name], client, children=CHILDREN)
    assert loaded == live
    assert live


@pytest.mark.parametrize("client", CLIENTS, ids=["plain", "notices", "compaction"])
async def test_attempts_that_broke_off(tmp_path: Path, client: ClientAbilities) -> None:
    live, loaded = await live_and_loaded(tmp_path, SESSIONS["texts"], client, breaks=2)
    # The ids of void messages are not recorded.
    for update in (*live, *loaded):
        assert "Half an answ" in str(live)
        if isinstance(update, dict):
            update.pop("_meta", None)
    assert loaded == live


@pytest.mark.parametrize("client", CLIENTS, ids=["plain", "notices", "compaction"])
async def test_folds(tmp_path: Path, client: ClientAbilities) -> None:
    steps = [*[calls(("list_dir", {}), content=f"Step {n}.") for n in range(4)], {"content": "Done."}]
    folding = {"trigger_after_turns": 3, "keep_turns": 1}
    live, loaded = await live_and_loaded(tmp_path, [steps, steps[-1:]], client, folding=folding)
    assert loaded == live
    assert client.notices or "summary now replaces turn" in str(live) or "[Folded: turns 1-" in str(live)


CALL = st.sampled_from([
    ("read_file", {"path": "a.txt"}), ("write_file", {"path": "a.txt", "content": "x\ny\n"}), ("list_dir", {}), ("nothing", {}),
    ("edit_file", {"path": "a.txt", "old_text": "x", "new_text": "z"}), ("shoot", {}), PLAN, ("call_agent", {"intent": "Look."}),
    ("done", {"answer": "made it"}), ("done", {}), ("read_file", {"wrong": 1}),
])  # fmt: skip
STEP = st.builds(
    lambda thinking, content, chosen: {"thinking": thinking, "content": content, **(calls(*chosen) if chosen else {})},
    st.sampled_from(["", "Hm.", "a\nb"]),
    st.sampled_from(["", "Words.", "made it", "  spaces\n"]),
    st.lists(CALL, max_size=3),
)


@settings(max_examples=60)
@given(st.lists(st.lists(STEP, min_size=1, max_size=4), min_size=1, max_size=3), st.sampled_from(CLIENTS))
def test_any_session(tmp_path: Path, casts: list[list[dict[str, Any]]], client: ClientAbilities) -> None:
    (tmp_path / "a.txt").unlink(missing_ok=True)
    children = [{"responses": [{"content": "Seen.", "repeat": True}]}]
    casts = [[{**step, "when": f"Intent {n}"} for step in cast] for n, cast in enumerate(casts)]
    live, loaded = anyio.run(lambda: live_and_loaded(tmp_path, casts, client, children=children * 50))
    assert loaded == live
