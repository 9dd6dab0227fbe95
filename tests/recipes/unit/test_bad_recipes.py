"""Every kind of bad recipe is refused with file, line, column, key and what to do."""

from pathlib import Path

import pytest

from cantrip_acp.recipes import load
from cantrip_acp.types.errors import DefinitionError, RecipeError
from tests.support.recipe_writer import write

GOOD = "circle:\n  gates: [done]\n  wards:\n    - max_turns: 3\n"

# text, then what the first line of the error says after the file's name
BAD = [
    ("", ":1:1: the file is empty"),
    ("# only a comment\n", ":1:1: the file is empty"),
    ("---\n...\n", ": a recipe must be a mapping with the keys name, crystal, call and circle, not nothing"),
    ("just words", ":1:1: a recipe must be a mapping with the keys name, crystal, call and circle, not 'just words'"),
    ("- a\n- b\n", ":1:1: a recipe must be a mapping with the keys name, crystal, call and circle, not a list"),
    ("a: [1, 2\nb: 3\n", ":1:4: not YAML: this [ has no ] (noticed on line 2)"),
    ("a: 'open\n", ":2:1: not YAML: "),
    ("a: b: c\n", ":1:5: not YAML: mapping values are not allowed here"),
    ("circle:\n\tgates: [done]\n", ":2:1: a tab is used for indentation; YAML allows only spaces"),
    ("circle:\n  gates: [done]\n  \twards: []\n", ":3:3: a tab is used for indentation"),
    (GOOD + "name: a\nname: b\n", ":6:1: duplicate key 'name': it is already on line 5"),
    (GOOD + "call: {top_p: 1, top_p: 1}\n", ":5:18: duplicate key 'top_p'"),
    (GOOD + "name: \xff".replace("\xff", "\x07"), ":5:7: there is a control character here"),
    (GOOD.encode() + b"# \xc3\xa4\nname: \xff\xfe\n", ":6:7: not UTF-8 (byte 0xff)"),
    (GOOD.encode("utf-16"), ":1:1: not UTF-8 (byte 0xff)"),
    (GOOD + "---\n" + GOOD, ":5:1: a second document begins here"),
    (GOOD + "1: x\n", ":5:1: this key is 1; a key must be a text"),
    (GOOD + "? [a]\n: x\n", ":5:3: this key is a list or mapping"),
    (GOOD + 'name: "\\ud800"\n', ":5:7: this text contains an escape for half of a surrogate pair"),
    (GOOD + "name: *nobody\n", ":5:7: alias *nobody has no anchor before it"),
    (GOOD + "crystals: &a {x: *a}\n", ":5:18: alias *a is inside the value that it repeats"),
    (GOOD + "call:\n  <<: {top_p: 1}\n", ":6:3: merge keys (<<) are not part of YAML 1.2"),
    (GOOD + "name: !!python/name:os.system x\n", ":5:7: the tag !!python/name:os.system has no meaning in a recipe"),
    (GOOD + "call: {temperature: .nan}\n", ":5:21: .nan is not a finite number"),
    (GOOD + "call: {temperature: 1e999}\n", ":5:21: 1e999 is not a finite number"),
    ("x: " + "[" * 200 + "]" * 200, ":1:103: nested more than 100 levels deep"),
    ("crystal: ollama:m\n", ":1:1: cantrip requires a circle"),
    ("circle:\n", ":1:1: circle: cantrip requires a circle: a mapping with gates and wards"),
    (GOOD + "call:\n", ":5:1: call: cantrip requires a call"),
    (GOOD + "call: null\n", ":5:7: call: cantrip requires a call"),
    (GOOD + "crystal: ~\n", ":5:10: crystal: cantrip requires a crystal"),
    ("circle:\n  wards: [{max_turns: 3}]\n", ":1:1: circle: circle must have a done gate"),
    ("circle:\n  gates: [echo]\n  wards: [{max_turns: 3}]\n", ":2:3: circle.gates: circle must have a done gate"),
    (
        "call: {require_done: on}\ncircle:\n  gates: [echo]\n  wards: [{max_turns: 3}]\n",
        ":3:3: circle.gates: cantrip with require_done must have a done gate",
    ),
    (
        "circle:\n  gates: [echo]\n  wards: [{max_turns: 3}, {require_done_tool: true}]\n",
        ":2:3: circle.gates: cantrip with require_done must have a done gate",
    ),
    (
        GOOD + "call: {tool_choice: none, require_done_tool: true}\n",
        ":5:8: call.tool_choice: tool_choice: none cannot be used with require_done_tool",
    ),
    (
        "call: {tool_choice: none}\ncircle:\n  gates: [done]\n  wards: [{max_turns: 3}, {require_done_tool: true}]\n",
        ":1:8: call.tool_choice: tool_choice: none cannot be used with require_done_tool",
    ),
    ("circle:\n  gates: [done]\n", ":1:1: circle: cantrip must have at least one truncation ward"),
    (
        "circle:\n  gates: [done]\n  wards: [{max_depth: 1}]\n",
        ":3:3: circle.wards: cantrip must have at least one truncation ward",
    ),
    (
        "circle:\n  gates: [done]\n  wards:\n    - max_turns: 3\n    - remove_gate: done\n",
        ":5:20: circle.wards[1].remove_gate: circle must have a done gate: do not remove it",
    ),
    (
        "circle:\n  gates: [done]\n  wards:\n    - max_turns: 3\n    - max_turn: 4\n",
        ":5:7: circle.wards[1].max_turn: unknown ward 'max_turn'; did you mean 'max_turns'?",
    ),
    (
        "circle:\n  gates: [done]\n  wards:\n    - max_turns: ten\n",
        ":4:18: circle.wards[0].max_turns: must be a whole number of at least 1, not 'ten'",
    ),
    (
        "circle:\n  gates: [done]\n  wards:\n    - max_turns: 3\n      max_depth: 1\n",
        ":4:7: circle.wards[0]: a ward must be a mapping of one name to its value; this ward has 2 keys",
    ),
    ("circle:\n  gates: [done]\n  wards: {max_turns: 3}\n", ":3:10: circle.wards: must be a list, not a mapping"),
    (
        "circle:\n  gates: [done, raed_file]\n  wards: [{max_turns: 3}]\n",
        ":2:17: circle.gates[1]: unknown gate 'raed_file'; did you mean 'read_file'?",
    ),
    (
        "circle:\n  gates: [done, {name: read_file, rot: x}]\n  wards: [{max_turns: 3}]\n",
        ":2:35: circle.gates[1].rot: unknown key in gate: 'rot'; did you mean 'root'?",
    ),
    (
        "circle:\n  gates: [done, done]\n  wards: [{max_turns: 3}]\n",
        ":2:17: circle.gates[1]: gate 'done' is listed twice",
    ),
    (
        GOOD.replace("circle:\n", "circle:\n  medum: bash\n"),
        ":2:3: circle.medum: unknown key in circle: 'medum'; did you mean 'medium'?",
    ),
    (
        GOOD.replace("circle:\n", "circle:\n  max_turn: 3\n"),
        ":2:3: circle.max_turn: unknown key in circle: 'max_turn'; max_turns is a ward: write `- max_turns: …` under circle.wards",
    ),
    (
        GOOD.replace("circle:\n", "circle:\n  medium: bsh\n"),
        ":2:11: circle.medium: unknown medium 'bsh'; did you mean 'bash'?",
    ),
    (GOOD + "nmae: x\n", ":5:1: nmae: unknown key in recipe: 'nmae'; did you mean 'name'?"),
    (
        GOOD + "call: {temprature: 1}\n",
        ":5:8: call.temprature: unknown key in call: 'temprature'; did you mean 'temperature'?",
    ),
    (GOOD + "call: {temperature: hot}\n", ":5:21: call.temperature: must be a number from 0 to 2, not 'hot'"),
    (
        GOOD + "call:\n  system_prompt: a\n  system_prompt_file: b\n",
        ":7:3: call.system_prompt_file: system_prompt and system_prompt_file cannot be used together",
    ),
    (GOOD + "crystal: antropic:x\n", ":5:10: crystal: unknown provider 'antropic'; did you mean 'anthropic'?"),
    (GOOD + "crystal: anthropic\n", ":5:10: crystal: must be anthropic:MODEL, not 'anthropic'"),
    (GOOD + "crystal: {provider: anthropic}\n", ":5:1: crystal: missing required key 'model' in crystal"),
    (GOOD + "crystal: {provider: scripted}\n", ":5:1: crystal: a scripted crystal needs responses, or script"),
    (
        GOOD + "crystal:\n  provider: scripted\n  responses:\n    - contnt: x\n",
        ":8:7: crystal.responses[0].contnt: unknown key in response: 'contnt'; did you mean 'content'?",
    ),
    (
        GOOD + "crystal:\n  provider: scripted\n  responses:\n    - tool_calls: [{gat: done}]\n",
        ":8:20: crystal.responses[0].tool_calls[0]: missing required key 'gate' in tool call",
    ),
    (
        GOOD + "loom: {store: mysql}\n",
        ":5:15: loom.store: must be memory, jsonl, sqlite:FILE or postgresql://…, not 'mysql'",
    ),
    (
        GOOD + "loom: {store: 'mysql://me:s3cret@host/db'}\n",
        ":5:15: loom.store: must be memory, jsonl, sqlite:FILE or postgresql://…, not 'mysql://me:***@host/db'",
    ),
]


@pytest.mark.parametrize(("text", "says"), BAD, ids=[says[:60] for _, says in BAD])
def test_it_is_refused_with_its_place(tmp_path: Path, text: str | bytes, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(RecipeError) as caught:
        load(path)
    first = caught.value.places[0]
    assert first.startswith(f"{path}:"), first
    assert says in first, first
    # A terminal and an editor find file, line and column at the beginning.
    assert all(part.isdigit() for part in first.removeprefix(f"{path}:").split(":")[:2])


def test_toml_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    path = write(tmp_path, "name = 1\n", "r.cantrip.toml")
    with pytest.raises(RecipeError, match=r":1:1: recipes are written in YAML; `cantrip recipe convert FILE`"):
        load(path)
    write(tmp_path, "name = 1\n", ".cantrip/old.cantrip.toml")
    with pytest.raises(DefinitionError, match=r"cantrip recipe convert .*/\.cantrip/old\.cantrip\.toml"):
        load("old", tmp_path)


def test_every_problem_is_named_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "nmae: x\ncircle:\n  gates: [dne]\n  wards: [{max_turns: 0}]\n")
    with pytest.raises(RecipeError) as caught:
        load(path)
    assert [p.removeprefix(f"{path}:").split(" ")[0] for p in caught.value.places] == ["1:1:", "3:11:", "4:23:"]
    assert str(caught.value).count("\n") == 2


def test_an_alias_bomb_costs_nothing(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(RecipeError, match="aliases repeat more than 100,000 values"):
        load(write(tmp_path, "\n".join(lines)))


def test_a_ladder_of_aliases_is_too_deep(tmp_path: Path) -> None:
    lines = ["a0: &a0 x", *(f"a{i}: &a{i} [[[*a{i - 1}]]]" for i in range(1, 60))]
    with pytest.raises(RecipeError, match="nested more than 100 levels deep"):
        load(write(tmp_path, "\n".join(lines)))


def test_aliases_within_reason_are_read(tmp_path: Path) -> None:
    text = "crystals:\n  a: &m {provider: ollama, model: x}\n  b: *m\n" + GOOD
    assert load(write(tmp_path, text)).data["crystals"]["b"] == {"provider": "ollama", "model": "x"}


def test_too_large(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="too large"):
        load(write(tmp_path, b"#" * (3 * 1024 * 1024)))


@pytest.mark.parametrize(
    ("name", "says"),
    [("none.cantrip.yaml", "no such file"), ("folder.cantrip.yaml", "this is a folder"), ("x/y.yaml", "no such")],
)
def test_what_cannot_be_read(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "folder.cantrip.yaml").mkdir()
    with pytest.raises(DefinitionError, match=says) as caught:
        load(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "p.cantrip.yaml")
    with pytest.raises(DefinitionError, match="not a regular file"):
        load(tmp_path / "p.cantrip.yaml")


def test_secrets_are_in_no_error(tmp_path: Path) -> None:
    text = GOOD + "crystal:\n  provider: openai\n  model: m\n  headers: {authorization: [s3cret-value]}\n"
    with pytest.raises(RecipeError) as caught:
        load(write(tmp_path, text))
    assert "headers.authorization: must be a text" in str(caught.value)
    assert "s3cret" not in str(caught.value)
