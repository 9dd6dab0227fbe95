"""What a child may be: never more than its parent (COMP-1, COMP-6, COMP-7, WARD-1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Circle, ScriptedCrystal
from cantrip_acp.core.delegation.child_circle import circle_for
from cantrip_acp.core.delegation.request import Request
from cantrip_acp.gates.contract import GateReply
from cantrip_acp.types.errors import ChildRefused
from tests.support.scripted_children import call, done, first_result, parent, turns


def asked(circle: Circle, **args: Any) -> Circle:
    return circle_for(circle, Request.of({"intent": "x", **args}))


@pytest.fixture
def circle(tmp_path: Path) -> Circle:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "data" / "out").symlink_to(tmp_path / "secret")
    return Circle(
        "conversation",
        ["done", "echo", {"name": "read_file", "root": "data"}, "list_dir", "call_agent"],
        [
            {"max_turns": 9},
            {"max_depth": 3},
            {"bash_writable_paths": ["data"]},
            {"bash_network": ["pypi.org", "example.org"]},
            {"remove_gate": "echo"},
        ],
        workspace=tmp_path,
    )


def test_a_child_has_all_of_its_parents_gates_but_those_that_are_gone(circle: Circle) -> None:
    assert list(asked(circle).gates) == ["done", "read_file", "list_dir", "call_agent"]
    assert list(asked(circle, gates=["list_dir"]).gates) == ["list_dir", "done"]
    assert list(asked(circle, gates=["call_entity"], max_depth=0).gates) == ["done"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"gates": ["write_file"]}, "cannot grant gate 'write_file': this circle does not have it"),
        ({"gates": ["echo"]}, "cannot grant gate 'echo'"),
        ({"gates": ["read_context"]}, "cannot grant gate 'read_context': it comes with context"),
        ({"gates": [{"name": "read_file", "root": "."}]}, "cannot grant gate 'read_file' below '.'"),
        ({"gates": [{"name": "read_file", "root": "/etc"}]}, "cannot grant gate 'read_file' below '/etc'"),
        ({"gates": [{"name": "read_file", "root": "data/../secret"}]}, "cannot grant gate 'read_file' below"),
        ({"gates": [{"name": "read_file", "root": "data/out"}]}, "cannot grant gate 'read_file' below"),
        ({"gates": [{"name": "read_file", "root": "database"}]}, "cannot grant gate 'read_file' below"),
        ({"gates": [{"name": "done", "root": "data"}]}, "cannot grant gate 'done' with a root: it does not use files"),
        ({"gates": [{"name": "read_file", "follow": True}]}, "cannot grant gate 'read_file' with 'follow'"),
        ({"gates": [{"root": "data"}]}, "a gate must be a name, or a mapping with a name"),
        ({"wards": {"bash_writable_paths": ["."]}}, "cannot grant ward bash_writable_paths"),
        ({"wards": {"bash_writable_paths": ["/"]}}, "cannot grant ward bash_writable_paths"),
        ({"wards": {"bash_writable_paths": ["data/out"]}}, "cannot grant ward bash_writable_paths"),
        ({"wards": {"code_readable_paths": ["data"]}}, "cannot grant ward code_readable_paths"),
        ({"wards": {"code_writable_paths": ["data"]}}, "cannot grant ward code_writable_paths"),
        ({"wards": {"bash_network": True}}, "cannot grant ward bash_network true"),
        ({"wards": {"bash_network": ["pypi.org", "evil.example"]}}, "cannot grant ward bash_network"),
        ({"wards": {"bash_home": "persistent"}}, "cannot grant ward bash_home 'persistent'"),
        ({"wards": {"allow_compile_modules": ["m"]}}, "cannot grant ward allow_compile_modules"),
        ({"wards": {"allow_compile_paths": ["data"]}}, "cannot grant ward allow_compile_paths"),
        ({"wards": [{"max_truns": 4}]}, "unknown ward 'max_truns'; did you mean 'max_turns'?"),
        ({"medium": "telepathy"}, "the child cannot have this medium"),
    ],
)
def test_what_is_wider_than_the_parents_is_refused(circle: Circle, args: dict[str, Any], says: str) -> None:
    with pytest.raises(ChildRefused) as refused:
        asked(circle, **args)
    assert says in str(refused.value)


def test_what_is_narrower_is_granted(circle: Circle, tmp_path: Path) -> None:
    child = asked(
        circle,
        gates=[{"name": "read_file", "root": "data/deep", "ephemeral": True}],
        wards=[{"bash_writable_paths": ["data/deep"]}, {"bash_network": ["pypi.org"]}, {"max_turns": 50}],
    )
    assert child.gates["read_file"].dependencies["root"] == tmp_path / "data" / "deep"
    assert child.gates["read_file"].ephemeral
    assert child.wards.bash_writable_paths == (str(tmp_path / "data" / "deep"),)
    assert child.wards.bash_network == ("pypi.org",)
    assert (child.wards.max_turns, child.wards.max_depth) == (9, 2)


def test_wards_that_are_not_declared_are_the_parents(circle: Circle) -> None:
    child = asked(circle, wards=[{"max_seconds": 3}])
    own = {**circle.wards.declared(), "max_depth": 2, "max_seconds": 3}
    assert child.wards.declared() == own


def test_a_parents_own_limits_beyond_the_defaults_are_kept() -> None:
    wide = Circle(
        "code",
        ["done", "call_agent"],
        [{"max_turns": 5}, {"code_timeout_ms": 900_000}, {"code_memory_mb": 8_000}],
    )
    child = asked(wide)
    assert (child.wards.code_timeout_ms, child.wards.code_memory_mb) == (900_000, 8_000)
    assert asked(wide, wards=[{"code_timeout_ms": 999_999_999}]).wards.code_timeout_ms == 900_000


@pytest.mark.parametrize(
    ("gates", "wards", "medium", "sees"),
    [
        (["done", "call_agent"], [], "conversation", False),
        (["done", "call_agent"], [], "bash", True),
        (["done", "call_agent", "read_file"], [], "code", True),
        (["done", "call_agent", {"name": "read_file", "root": "data"}], [], "code", False),
        (["done", "call_agent"], [{"bash_writable_paths": ["workspace"]}], "code", True),
    ],
)
def test_a_shell_shows_the_workspace_only_to_who_could_read_it(
    tmp_path: Path, gates: list, wards: list, medium: str, sees: bool
) -> None:
    of = Circle(medium, gates, [{"max_turns": 3}, *wards], workspace=tmp_path)
    assert (asked(of, medium="bash").workspace is not None) == sees


CEILINGS: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
    ({"child_medium_allowlist": ["conversation"]}, {"medium": "bash"}, "child_medium_allowlist"),
    ({"child_medium_allowlist": ["conversation"]}, {}, None),
    ({"child_gate_allowlist": ["echo"]}, {"gates": ["echo"]}, None),
    ({"child_gate_allowlist": ["echo"]}, {"gates": ["echo", "list_dir"]}, "child_gate_allowlist"),
    ({"child_gate_allowlist": ["echo"]}, {}, "child_gate_allowlist"),
    ({"child_gate_denylist": ["list_dir"]}, {"gates": ["echo"]}, None),
    ({"child_gate_denylist": ["list_dir"]}, {}, "child_gate_denylist"),
    ({"child_max_turns_ceiling": 4}, {"wards": [{"max_turns": 4}]}, None),
    ({"child_max_turns_ceiling": 4}, {"wards": [{"max_turns": 5}]}, "child_max_turns_ceiling"),
    ({"child_max_turns_ceiling": 4}, {}, "child_max_turns_ceiling"),
    ({"child_max_turns_ceiling": 20}, {}, None),
    ({"child_max_depth_ceiling": 0}, {"max_depth": 0}, None),
    ({"child_max_depth_ceiling": 0}, {"max_depth": 1}, "child_max_depth_ceiling"),
    ({"child_max_depth_ceiling": 0}, {}, None),
]


@pytest.mark.parametrize(("ward", "args", "refused"), CEILINGS, ids=[f"{w}-{a}" for w, a, _ in CEILINGS])
async def test_declaration_wards_refuse_and_never_rewrite(
    tmp_path: Path, ward: dict[str, Any], args: dict[str, Any], refused: str | None
) -> None:
    spell = parent(
        call("call_agent", intent="x", **args),
        done("went on"),
        gates=["done", "echo", "list_dir", "call_agent"],
        wards=[ward],
        workspace=tmp_path,
        children=[[done("child")]],
    )
    assert (await spell.cast("go")).result == "went on"
    record = first_result(spell)
    if refused is None:
        assert (record.result, record.is_error) == ("child", False)
        return
    assert record.is_error
    assert f"child refused by {refused}" in record.result
    assert record.annotations == {"child_refused": refused}
    # Nothing was born, so the turn was not divided.
    assert len(turns(spell)) == 2


async def test_a_ceiling_holds_for_children_of_children() -> None:
    down = call("call_agent", intent="down", wards=[{"max_turns": 3}])
    spell = parent(
        down,
        done(),
        wards=[{"max_depth": 3}, {"child_max_turns_ceiling": 3}],
        children=[{"responses": [call("call_agent", intent="deeper", wards=[{"max_turns": 8}]), done("x")]}],
    )
    await spell.cast("go")
    assert "child refused by child_max_turns_ceiling" in turns(spell)[1].observation.results[0].result


async def test_children_are_counted_over_the_whole_tree() -> None:
    many = call("call_agent_batch", requests=["a", "b", "c"])
    spell = parent(
        call("call_agent", intent="first"),
        many,
        call("call_agent", intent="last"),
        call("call_agent", intent="one too many"),
        done(),
        wards=[{"max_depth": 2}, {"max_children_total": 4}],
        children=[
            {"responses": [call("call_agent", intent=i) for i in "gh"] + [done("x")], "children": [[done()], [done()]]},
            [done("last")],
        ],
    )
    await spell.cast("go")
    said = [r.result for t in turns(spell) for r in t.observation.results if r.gate.startswith("call_agent")]
    assert said[-3:-1][0].startswith("child refused by max_children_total: this entity may have 4 children in all")
    assert "this call asks for 3 more" in said[-3]
    assert said[-2] == "last"
    assert said[-1].startswith("child refused by max_children_total")


async def test_depth_is_counted_down_and_ends() -> None:
    down = call("call_agent", intent="down", max_depth=9)
    spell = parent(
        down,
        done("top"),
        wards=[{"max_depth": 2}],
        children=[{"responses": [down, done("1")], "children": [[down, done("2")]]}],
    )
    await spell.cast("go")
    record = next(r for t in turns(spell) for r in t.observation.results if r.is_error)
    assert "gate not available: 'call_agent'" in record.result
    assert "max_depth is 0" in record.result
    offered = {len(q.tools) for q in spell.crystal.invocations}
    assert offered == {4}


async def test_a_child_may_have_another_crystal_by_its_name() -> None:
    other = ScriptedCrystal([done("the other")])
    spell = parent(
        call("call_agent", intent="x", crystal="other"),
        call("call_agent", intent="x", crystal="nobody"),
        done(),
        crystals={"other": other},
    )
    await spell.cast("go")
    said = [r for t in turns(spell) for r in t.observation.results if r.gate == "call_agent"]
    assert [r.result for r in said] == ["the other", "there is no crystal 'nobody' for children (there are: other)"]
    assert other.queries == 1
    tool = next(t for t in spell.crystal.invocations[0].tools if t.name == "call_agent")
    assert "their crystal may be yours or 'other'" in tool.description


async def test_what_asks_before_a_gate_acts_asks_for_children_too() -> None:
    asked: list[tuple[str, str]] = []

    async def ask(invocation: Any, proceed: Any) -> GateReply:
        asked.append((invocation.gate.name, invocation.context.entity_id))
        if invocation.gate.name == "echo":
            return GateReply("not allowed", is_error=True)
        return await proceed(invocation)  # type: ignore[no-any-return]

    pinned = [0]

    async def pin(info: Any) -> list[Any]:
        pinned[0] += 1
        return []

    spell = parent(
        call("call_agent", intent="x"),
        done(),
        children=[[call("echo", text="secretly"), done("child")]],
        interceptors=[ask],
        contributors=[pin],
    )
    await spell.cast("go")
    root, child = turns(spell)[0].entity_id, turns(spell)[1].entity_id
    assert asked == [("call_agent", root), ("echo", child), ("done", child), ("done", root)]
    assert turns(spell)[1].observation.results[0].result == "not allowed"
    assert pinned == [1]
