"""Sessions in the substrate: what real clients sent is rebuilt from chunks, and chunks agree with the loom."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import ScriptedCrystal
from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.openai.responses_api import OpenAICrystal
from cantrip_acp.loom.loom import Loom
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.substrate import recorder
from cantrip_acp.substrate.projects import Project, session_id, sync
from cantrip_acp.substrate.recorder import SessionRecorder, catch_up, differences
from cantrip_acp.substrate.substrate import Substrate, open_substrate
from tests.support import anthropic_replies, openai_replies
from tests.support.provider_server import Wire
from tests.support.session_messages import anthropic_messages, openai_messages, session_chunks
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "AGENTS.md").write_text("Run the tests.")
    (folder / "a.txt").write_text("alpha")
    return folder


def cantrip(
    workspace: Path, state: Path, crystal: Crystal, loom: Loom, *, medium: str = "conversation", memory: str = ""
) -> Cantrip:
    file = workspace.parent / "r.cantrip.yaml"
    file.write_text(
        "call: {system_prompt: Help.}\n"
        f"circle: {{medium: {medium}, gates: [done, read_file, call_agent], wards: [{{max_turns: 9}}, {{max_depth: 1}}]}}\n"
        + (f"memory: {memory}\n" if memory else "")
    )
    return build(load(file, state_dir=state), workspace=workspace, loom=loom, crystal=crystal)


def chat_crystal(url: str) -> OpenAICrystal:
    return OpenAICrystal(Endpoint("openai", "gpt-5", f"{url}/v1", Secret("sk-test"), options={"api": "chat"}))


def opened(state: Path, made: Cantrip) -> Substrate:
    """The substrate, after all that was recorded is in it."""
    for each in made.contributors:
        assert not isinstance(each, SessionRecorder) or each.flush()
    return open_substrate(state / "substrate.db")


def without_marks(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages without cache points, and with texts as blocks."""
    found: list[dict[str, Any]] = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        plain = [{key: value for key, value in block.items() if key != "cache_control"} for block in blocks]
        for block in plain:
            if block["type"] == "tool_result" and isinstance(block["content"], list):
                block["content"] = "".join(each["text"] for each in block["content"])
        found.append({"role": message["role"], "content": plain})
    return found


async def test_messages_to_anthropic_are_rebuilt_from_chunks(workspace: Path, state: Path) -> None:
    replies = anthropic_replies
    two = replies.stream(
        replies.start(),
        replies.text(0, "I look."),
        replies.use(1, "read_file", json.dumps({"path": "a.txt"}), id="toolu_1"),
        replies.use(2, "read_file", json.dumps({"path": "none.txt"}), id="toolu_2"),
        replies.stop("tool_use"),
    )
    with Wire([two, replies.says("It says alpha."), replies.says("Again alpha.")]) as wire, Loom.memory() as loom:
        made = cantrip(workspace, state, replies.crystal(wire.url), loom)
        async with made.invoke() as entity:
            await entity.cast("What is in a.txt?")
            await entity.cast("And now?")
        sent = wire.requests[-1].json()["messages"]
        with opened(state, made) as substrate:
            rebuilt = anthropic_messages(substrate, entity.id)
            assert rebuilt[-1] == {"role": "assistant", "content": [{"type": "text", "text": "Again alpha."}]}
            assert without_marks(rebuilt[:-1]) == without_marks(sent)
            assert differences(substrate, loom) == []


async def test_messages_to_openai_are_rebuilt_from_chunks(workspace: Path, state: Path) -> None:
    replies = openai_replies
    first = replies.chat_stream(
        {"content": "I look."},
        replies.call_delta(0, "callOne01", "read_file", '{"path": "a.txt"}'),
        replies.call_delta(1, "callTwo02", "read_file", '{"path": "none.txt"}'),
        finish="tool_calls",
    )
    with Wire([first, replies.said("It says alpha.")]) as wire, Loom.memory() as loom:
        made = cantrip(workspace, state, chat_crystal(wire.url), loom)
        async with made.invoke() as entity:
            await entity.cast("What is in a.txt?")
        sent = [
            message
            for message in wire.requests[-1].json()["messages"]
            if message["role"] not in ("system", "developer")
        ]
        with opened(state, made) as substrate:
            rebuilt = openai_messages(substrate, entity.id)
            assert rebuilt[-1] == {"role": "assistant", "content": "It says alpha."}
            assert rebuilt[:-1] == sent


async def test_children_folds_commands_and_cancelled_casts_agree_with_the_loom(workspace: Path, state: Path) -> None:
    child = [{"tool_calls": [{"gate": "done", "args": {"answer": "from the child"}}]}]
    responses: list[Any] = [
        {"bash": "echo one; cantrip_call_agent 'Help me.'; echo two"},
        {"tool_calls": [{"gate": "done", "args": {"answer": "finished"}}]},
    ]
    with Loom.memory() as loom:
        crystal = ScriptedCrystal(responses, children=[child])
        made = cantrip(workspace, state, crystal, loom, medium="bash", memory="{culture: true, sessions: 2}")
        async with made.invoke() as entity:
            await entity.cast("Do it.")
        with opened(state, made) as substrate:
            assert differences(substrate, loom) == []
            kinds = [kind for kind, _ in session_chunks(substrate, entity.id)]
            assert kinds[:3] == ["prompt", "context", "tool-call"]
            result = next(chunk for kind, chunk in session_chunks(substrate, entity.id) if kind == "tool-result")
            assert "from the child" in result.text
            assert "two" in result.text
            session = substrate.scope(session_id(entity.id))
            (below,) = [each.chunk for each in session.placed if each.kind == "relates"]
            assert [
                chunk.text for kind, chunk in session_chunks(substrate, below.body["entity"]) if kind == "prompt"
            ] == ["Help me."]
            prompt = next(chunk for kind, chunk in session_chunks(substrate, entity.id) if kind == "prompt")
            assert prompt.body["outcome"] == {"reason": "done", "text": "finished"}
            assert [each.chunk.id for each in substrate.scope(Project.of(workspace).sessions).placed] == [
                session.chunk.id
            ]


ODD = {
    "more than a chunk holds": ("Go.", "read_file", json.dumps({"path": "x" * 2_000_000})),
    "deeper than a chunk can be": ("Go.", "read_file", f'{{"path": {"[" * 60 + "]" * 60}}}'),
    "no JSON": ("Go.", "read_file", '{"path": NaN}'),
    "half of a character": ("Go.", "read_file", '{"path": "\\ud800"}'),
    "a number that is too large": ("Go.", "read_file", f'{{"path": {10**400}}}'),
    "no name of a gate": ("Go.", "\x01", "{}"),
    "nothing to see": ("\u200b", "\u200b", "{}"),
    "an intent that is not UTF-8": ("\udcff go", "read_file", "{}"),
}


@pytest.mark.parametrize("odd", ODD)
async def test_a_session_is_recorded_whatever_its_model_writes(workspace: Path, state: Path, odd: str) -> None:
    intent, gate, args = ODD[odd]
    responses = [{"tool_calls": [{"gate": gate, "args": args}]}, {"content": "\x01" * 300_000}]
    with Loom.memory() as loom:
        made = cantrip(workspace, state, ScriptedCrystal(responses), loom)
        async with made.invoke() as entity:
            await entity.cast(intent)
        with opened(state, made) as substrate:
            assert differences(substrate, loom) == []
            kinds = [kind for kind, _ in session_chunks(substrate, entity.id)]
            assert kinds == ["prompt", "tool-call", "tool-result", "answer"]


async def test_a_loom_is_recorded_later_and_only_once(workspace: Path, state: Path, tmp_path: Path) -> None:
    with Loom.open(tmp_path / "x.loom.jsonl") as loom:
        made = cantrip(workspace, state, ScriptedCrystal([{"content": "Hello."}]), loom, memory="{record: false}")
        async with made.invoke() as entity:
            await entity.cast("Hi.")
        assert not (state / "substrate.db").exists()
        with open_substrate(tmp_path / "later.db") as substrate:
            assert differences(substrate, loom)[0] == f"{session_id(entity.id)}: not recorded"
            assert catch_up(substrate, loom) > 0
            assert differences(substrate, loom) == []
            assert catch_up(substrate, loom) == 0
            assert [chunk.text for _, chunk in session_chunks(substrate, entity.id)] == ["Hi.", "Hello."]


async def test_each_session_is_the_source_of_its_own_chunks(workspace: Path, state: Path, tmp_path: Path) -> None:
    """Also if the records of several are committed together."""
    with Loom.open(tmp_path / "x.loom.jsonl") as loom:
        script = ScriptedCrystal([{"content": "Hello."}, {"content": "Hello again."}])
        made = cantrip(workspace, state, script, loom, memory="{record: false}")
        for intent in ("Hi.", "Hi again."):
            async with made.invoke() as entity:
                await entity.cast(intent)
        with open_substrate(tmp_path / "later.db") as substrate:
            catch_up(substrate, loom)
            for start in loom.cast_starts().values():
                chunks = [chunk for _, chunk in session_chunks(substrate, start.entity_id)]
                assert {chunk.source for chunk in chunks} == {session_id(start.entity_id)}


def test_sessions_that_see_at_once_that_a_document_and_a_skill_are_gone(workspace: Path, tmp_path: Path) -> None:
    document, skill = workspace / "CLAUDE.md", workspace / ".cantrip" / "skills" / "one" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    with open_substrate(tmp_path / "s.db") as first, open_substrate(tmp_path / "s.db") as second:
        with ThreadPoolExecutor(2) as pool:
            for _ in range(30):
                for each in (document, skill):
                    each.write_text("Read me.")
                project = sync(first, workspace)
                for each in (document, skill):
                    each.unlink()
                list(pool.map(lambda each: sync(each, workspace), (first, second)))
                names = [each.chunk.name for each in first.scope(project.documents).placed]
                assert (names, first.scope(project.skills).placed) == (["AGENTS.md"], ())


async def test_the_next_session_hears_of_the_last_and_finds_it(workspace: Path, state: Path) -> None:
    def answer(words: str) -> ScriptedCrystal:
        return ScriptedCrystal([{"content": words}])

    for words in ("The port is 4711.", "I know."):
        with Loom.memory() as loom:
            made = cantrip(workspace, state, answer(words), loom, memory="{culture: true, sessions: 2}")
            async with made.invoke() as entity:
                await entity.cast("Which port?")
                messages = [message.content or "" for message in entity.context.messages]
            opened(state, made).close()
    assert any('asked: "Which port?" → text: "The port is 4711."' in text for text in messages)
    with opened(state, made) as substrate:
        assert "4711" in substrate.search("port 4711")[0].chunk.text


async def test_a_cast_is_committed_at_once_when_it_ends(
    workspace: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_LINGER_S", 600.0)
    calls = [{"tool_calls": [{"gate": "read_file", "args": {"path": "a.txt"}}]}] * 5
    with Loom.memory() as loom:
        made = cantrip(workspace, state, ScriptedCrystal([*calls, {"content": "It says alpha."}]), loom)
        async with made.invoke() as entity:
            await entity.cast("What is in a.txt?")
        with open_substrate(state / "substrate.db") as substrate:
            author = session_id(entity.id)

            def commits() -> int:
                return sum(each.author == author for each in substrate.log())

            # Nobody flushes. The turns wait for the end of the cast, which a commit of its own would cost more than.
            await wait_until(commits)
            assert commits() == 1
            assert len(session_chunks(substrate, entity.id)) == 12
