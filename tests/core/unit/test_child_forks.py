"""A turn of a child goes on, and runs again, with the child's own call and circle (§3.4, CALL-4, COMP-1, LOOM-4, LOOM-10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.core.forking.replay import replay
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.gates.contract import Gate
from cantrip_acp.loom.query.listing import Listing, ThreadFilter
from cantrip_acp.types.errors import DefinitionError
from cantrip_acp.types.records import Turn
from tests.support.fixtures.core import INSTANT, done

SCHEMA = {"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]}


class Tree:
    """A parent with the gates ``peek`` and ``other``, and a child that has ``other`` alone and asks for ``peek`` too."""

    def __init__(self, request: Mapping[str, Any] | None = None, kid: Sequence[Mapping[str, Any]] = (), **options: Any):
        self.called: list[tuple[str, str]] = []
        self.loom = Loom.memory()
        kid = kid or [self.call("other", n="1"), self.call("peek", n="2"), done("kid")]
        asked = {
            "intent": "look",
            "system_prompt": "KID",
            "gates": ["other"],
            "wards": {"max_turns": 5},
            **(request or {}),
        }
        options = {"responses": [self.call("call_agent", **asked), done("over")], "children": [kid], **options}
        self.cantrip = self.made(**options)

    @staticmethod
    def call(gate: str, **args: Any) -> dict[str, Any]:
        return {"tool_calls": [{"gate": gate, "args": args}]}

    def made(
        self,
        gates: Sequence[Any] = ("peek", "other", "call_agent", "read_file"),
        responses: Sequence[Mapping[str, Any]] = ({"content": "x"},),
        children: Sequence[Any] = (),
        workspace: Path | None = None,
        **wards: Any,
    ) -> Cantrip:
        own = [self.gate(name) if name in ("peek", "other") else name for name in gates]
        circle = Circle("conversation", ["done", *own], {"max_turns": 9, "max_depth": 2, **wards}, workspace=workspace)
        crystal = ScriptedCrystal(list(responses), children=list(children), record_inputs=True)
        return Cantrip(crystal, Call(system_prompt="PARENT"), circle, loom=self.loom, retry=INSTANT)

    def gate(self, name: str) -> Gate:
        def handle(args: Mapping[str, Any], _: Any) -> str:
            self.called.append((name, args["n"]))
            return f"{name} {args['n']}"

        return Gate(name, f"The gate {name}.", SCHEMA, handle)

    async def cast(self) -> list[Turn]:
        """The child's turns."""
        result = await self.cantrip.cast("go")
        self.called.clear()
        return [t for t in self.loom.turns() if t.role == "crystal" and t.entity_id != result.entity_id]


async def test_a_resumed_turn_of_a_child_has_the_messages_and_the_tools_of_the_child() -> None:
    tree = Tree()
    turns = await tree.cast()
    crystal = ScriptedCrystal([done("again")], record_inputs=True)
    result = await tree.cantrip.with_crystal(crystal).resume(turns[0].id)
    assert result.result == "again"
    (asked,) = crystal.invocations
    assert [m.content for m in asked.messages if m.kind == "call"] == ["KID"]
    assert {tool.name for tool in asked.tools} == {"done", "other"}
    (new,) = [t for t in tree.loom.turns() if t.entity_id == result.entity_id]
    # The same call and circle are the same cantrip, so exports and `loom context` show the child's own.
    assert new.cantrip_id == turns[0].cantrip_id


async def test_a_fork_of_a_child_may_spawn_no_more_than_the_child_could() -> None:
    tree = Tree({"gates": ["other", "call_agent"], "max_depth": 0})
    turns = await tree.cast()
    async with await tree.cantrip.fork(turns[0].id) as entity:
        assert entity.circle.wards.max_depth == 0
        assert entity.circle.wards.max_turns == 5
        assert "call_agent" not in entity.circle.gates


async def test_a_replay_of_a_child_calls_nothing_that_the_child_had_not() -> None:
    tree = Tree()
    turns = await tree.cast()
    again = await replay(tree.cantrip, tree.loom, turns[-1].id)
    assert (again.turns, again.divergence) == (3, None)
    assert tree.called == [("other", "1")]


async def test_an_export_of_a_fork_has_the_childs_own_call() -> None:
    tree = Tree()
    turns = await tree.cast()
    async with await tree.cantrip.with_crystal(ScriptedCrystal([done("again")])).fork(turns[0].id) as entity:
        await entity.cast("more")
        leaf = entity.last_turn
    record = tree.loom.cantrip(tree.loom.turn(leaf).cantrip_id)
    assert record is not None
    assert record.call["system_prompt"] == "KID"


async def test_the_list_of_threads_calls_it_a_fork() -> None:
    tree = Tree()
    turns = await tree.cast()
    async with await tree.cantrip.with_crystal(ScriptedCrystal([done("again")])).fork(turns[0].id) as entity:
        await entity.cast("more")
        leaf = entity.last_turn
    lines = {line.leaf: line for line in Listing(tree.loom).lines(ThreadFilter())}
    assert (lines[leaf].forked_from, lines[leaf].parent) == (turns[0].id, None)
    assert lines[turns[-1].id].parent is not None
    assert lines[turns[-1].id].forked_from is None


async def test_a_recipe_without_what_the_child_had_is_refused() -> None:
    tree = Tree()
    turns = await tree.cast()
    poorer = tree.made(gates=["peek"])
    for going_on in (poorer.fork(turns[0].id), replay(poorer, tree.loom, turns[-1].id)):
        with pytest.raises(DefinitionError) as caught:
            await going_on
        said = str(caught.value)
        assert "cannot grant gate 'other'" in said
        assert "a recipe that allows what the child had (medium conversation; gates" in said
    assert tree.called == []


async def test_a_recipe_that_allows_less_now_narrows_the_child() -> None:
    tree = Tree()
    turns = await tree.cast()
    async with await tree.made(max_turns=2).fork(turns[0].id) as entity:
        assert entity.circle.wards.max_turns == 2


async def test_the_folder_of_a_gate_stays_that_of_the_child(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("inside")
    (tmp_path / "b.txt").write_text("outside")
    kid = [Tree.call("read_file", path="a.txt"), done("kid")]
    tree = Tree({"gates": [{"name": "read_file", "root": "in"}]}, kid, workspace=tmp_path)
    turns = await tree.cast()
    assert str(turns[0].observation.results[0].result).find("inside") >= 0
    crystal = ScriptedCrystal(
        [Tree.call("read_file", path="../b.txt"), Tree.call("read_file", path="a.txt"), done("x")]
    )
    async with await tree.cantrip.with_crystal(crystal).fork(turns[0].id) as entity:
        await entity.cast("read")
        outside, inside = [
            t.observation.results[0] for t in tree.loom.turns() if t.entity_id == entity.id and t.role == "crystal"
        ][:2]
    assert outside.is_error
    assert not inside.is_error


async def test_the_data_of_a_child_are_there_again() -> None:
    kid = [Tree.call("read_context"), done("kid")]
    tree = Tree({"gates": [], "context": {"key": "treasure"}}, kid)
    turns = await tree.cast()
    crystal = ScriptedCrystal([Tree.call("read_context"), done("x")])
    async with await tree.cantrip.with_crystal(crystal).fork(turns[0].id) as entity:
        await entity.cast("read")
        read = next(t for t in tree.loom.turns() if t.entity_id == entity.id and t.role == "crystal")
    assert "treasure" in str(read.observation.results[0].result)


async def test_data_that_the_loom_does_not_have_are_an_error() -> None:
    tree = Tree({"gates": [], "context": "x" * 100_000}, [done("kid")])
    turns = await tree.cast()
    with pytest.raises(DefinitionError, match="does not have the data that its parent gave it"):
        await tree.cantrip.fork(turns[0].id)


async def test_a_grandchild_too() -> None:
    deep = [Tree.call("other", n="3"), done("deep")]
    kid = [Tree.call("call_agent", intent="deeper", system_prompt="DEEP", gates=["other"]), done("kid")]
    tree = Tree({"gates": ["other", "call_agent"]}, children=[{"responses": kid, "children": [deep]}])
    turns = await tree.cast()
    deepest = next(t for t in turns if t.gate_calls == ("other",))
    crystal = ScriptedCrystal([done("again")], record_inputs=True)
    await tree.cantrip.with_crystal(crystal).resume(deepest.id)
    (asked,) = crystal.invocations
    assert [m.content for m in asked.messages if m.kind == "call"] == ["DEEP"]
    assert {tool.name for tool in asked.tools} == {"done", "other"}


async def test_another_medium_needs_a_recipe_that_may_have_children() -> None:
    tree = Tree({"medium": "bash", "gates": ["other"]}, [done("kid")])
    turns = await tree.cast()
    with pytest.raises(DefinitionError, match="it worked in the medium bash, and this circle has conversation"):
        await tree.made(gates=["other"]).fork(turns[0].id)
    async with await tree.cantrip.fork(turns[0].id) as entity:
        assert entity.circle.medium.name == "bash"


async def test_a_session_that_continues_from_a_childs_turn() -> None:
    tree = Tree()
    turns = await tree.cast()
    crystal = ScriptedCrystal([done("x"), done("again")], record_inputs=True)
    for at in (turns[0].id, None):
        found = resume_entity(tree.cantrip.with_crystal(crystal), tree.loom, "e_session", at=at)
        assert (found.entity.cantrip.call.system_prompt, set(found.entity.circle.gates)) == ("KID", {"done", "other"})
        if at is not None:
            await found.entity.cast("more")
        await found.entity.close()


async def test_a_fork_of_a_child_has_the_crystal_of_its_cantrip_not_the_childs() -> None:
    tree = Tree()
    kid = ScriptedCrystal([done("kid")], record_inputs=True)
    kid.model = "small"
    parent = tree.cantrip.replace(crystals={"kid": kid})
    asked = Tree.call("call_agent", intent="look", system_prompt="KID", crystal="kid")
    first = parent.with_crystal(ScriptedCrystal([asked, done("over")]))
    result = await first.cast("go")
    (turn,) = [t for t in tree.loom.turns() if t.role == "crystal" and t.entity_id != result.entity_id]
    assert turn.metadata.model == "small"
    own = ScriptedCrystal([done("again")], record_inputs=True)
    await first.with_crystal(own).resume(turn.parent_id)
    (query,) = own.invocations
    assert query.messages[0].content == "KID"
    assert len(kid.invocations) == 1
