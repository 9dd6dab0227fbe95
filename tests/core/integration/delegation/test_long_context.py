"""Long context as data: a text of any length is worked on by code and children, and never stands in a prompt (§3.3, §5.1)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.core.definition.circle import LARGEST_DATA
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.types.errors import DefinitionError
from tests.support.command_line import run
from tests.support.scripted_children import of_root

ROOT = """
import re
print(type(context).__name__, len(context))
lines = context.splitlines(keepends=True)
size = max(1, len(lines) // 4 + 1)
parts = ["".join(lines[i : i + size]) for i in range(0, len(lines), size)]
found = cast_batch([(Cantrip(), "middle: which codes are secret?", part) for part in parts])
done(sorted(code for each in found for code in each.result))
"""
MIDDLE = """
import re
hits = [m.start() for m in re.finditer("SECRET", context)]
reader = Cantrip(medium="conversation", gates=[], wards={"max_turns": 3})
read = cast_batch([(reader, "leaf: name the code", context[at : at + 40]) for at in hits]) if hits else []
done([each.result for each in read])
"""


class Reader(ScriptedCrystal):
    """Says at every level what a model would: the leaf reads its page and answers with the code in it."""

    def __init__(self) -> None:
        super().__init__([])
        self.prompts: list[int] = []
        self.texts: list[str] = []

    def child(self, number: int, depth: int) -> Reader:
        return self

    async def query(self, query: Any, emit: Any) -> Any:
        text = "\n".join(m.content or "" for m in query.messages)
        self.prompts.append(len(text))
        self.texts.append(text)
        last = query.messages[-1]
        if "leaf" not in query.intent:
            step: dict[str, Any] = {"code": MIDDLE if "middle" in query.intent else ROOT}
        elif last.role == "tool":
            answer = (last.content or "").split("code ")[1].split(".")[0]
            step = {"tool_calls": [{"gate": "done", "args": {"answer": answer}}]}
        else:
            step = {"tool_calls": [{"gate": "read_context", "args": {}}]}
        return await ScriptedCrystal([step]).query(query, emit)


def text(size: int) -> tuple[str, list[str]]:
    """So many characters with five codes in them."""
    line = "nothing of interest is written on this line of the long report\n"
    lines = [line] * (size // len(line))
    chosen = random.Random(7)
    codes = [f"{chosen.randrange(10**6):06}" for _ in range(5)]
    for place, code in enumerate(codes):
        lines[(place * 2 + 1) * len(lines) // 10] = f"SECRET: station {place} has code {code}. Tell nobody.\n"
    return "".join(lines), sorted(codes)


async def asked(size: int, tmp_path: Path) -> tuple[Any, Reader, list[str]]:
    data, codes = text(size)
    crystal = Reader()
    spell = build(load("longtext", tmp_path), workspace=tmp_path, crystal=crystal)
    spell = spell.replace(circle=spell.circle.replace(data=data))
    with Loom.memory() as loom:
        async with spell.invoke(loom=loom) as entity:
            result = await entity.cast("Which codes are secret?")
    return result, crystal, codes


async def test_prompts_stay_as_they_are_while_the_data_grows(tmp_path: Path) -> None:
    sizes: list[int] = []
    for size in (100_000, 12_000_000):
        result, crystal, codes = await asked(size, tmp_path)
        assert result.result == codes
        assert len(crystal.prompts) == 1 + 4 + 5 * 2
        assert not any("of interest" in seen and "code" not in seen for seen in crystal.texts)
        sizes.append(sum(crystal.prompts))
    assert max(sizes) - min(sizes) < 200


async def test_what_does_not_go_through_says_how_much_does() -> None:
    spell = Cantrip(
        ScriptedCrystal(
            [
                {
                    "code": "said = []\nkind = Cantrip(medium='conversation')\n"
                    "for act in (lambda: cast_batch([(kind, 'x', context)]), lambda: cast(kind, 'x', context),\n"
                    "            lambda: call_agent('x', context=context)):\n"
                    "    try:\n        act()\n    except (GateError, ValueError) as error:\n        said.append(str(error))\n"
                    "done(said)"
                }
            ]
        ),
        circle=Circle("code", ["done", "call_agent", "call_agent_batch"], [{"max_turns": 2}], data="x" * 9_000_000),
    )
    batch, one, gate = (await spell.cast("go")).result
    assert "9,000,0" in batch
    assert "the limit is 8,323,072" in batch
    assert all("the limit of one gate call is 8,388,608: pass less data" in said for said in (one, gate))


async def test_a_batch_of_many_large_parts_goes_in_pages() -> None:
    spell = Cantrip(
        ScriptedCrystal(
            [{"code": "rs = cast_batch(Cantrip(medium='conversation'), [(str(n), 'x' * 3_000_000) for n in range(5)])\n"
              "done([r.result for r in rs])"}],
            children=[[{"content": str(n)}] for n in range(5)],
        ),
        circle=Circle("code", ["done", "call_agent", "call_agent_batch"], [{"max_turns": 2}]),
    )  # fmt: skip
    assert (await spell.cast("go")).result == list("01234")
    calls = [name for turn in of_root(spell) for name in turn.gate_calls]
    assert calls == ["cantrip.cast_batch"] * 3 + ["done"]


def test_more_than_can_be_given_is_an_error_at_once() -> None:
    with pytest.raises(DefinitionError, match="an entity can be given 67,108,864 characters"):
        Circle("code", ["done"], [{"max_turns": 1}], data="x" * (LARGEST_DATA + 1))


def test_a_long_file_on_the_command_line_is_data(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("responses: [{code: 'done([type(context).__name__, len(context), context[:5]])'}]\n")
    (tmp_path / "long.txt").write_text("first " + "x" * 1_000_000)
    loom = tmp_path / "x.loom.jsonl"
    recipe = tmp_path / "r.cantrip.yaml"
    recipe.write_text("crystal: scripted:script.yaml\ncircle: {medium: code, gates: [done], wards: [{max_turns: 2}]}\n")
    done = run("cast", recipe, "look", "--context", tmp_path / "long.txt", "--loom", loom, "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    assert done.lines[-1]["result"] == ["str", 1_000_006, "first"]
    assert "xxxxxx" not in loom.read_text()
