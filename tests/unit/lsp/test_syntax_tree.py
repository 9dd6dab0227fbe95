"""What stands where: for every text that the loader reads, the tree says the same places; for the rest it says something."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_acp.core.errors import RecipeError
from cantrip_acp.lsp.recipes.syntax.chunks import Chunks
from cantrip_acp.lsp.recipes.syntax.tree import Node, parse
from cantrip_acp.lsp.recipes.syntax.yaml_tree import Pieces
from cantrip_acp.lsp.server.positions import Text
from cantrip_acp.recipes.parse import document, yaml_text

HERE = Path(document.__file__).parent
SHIPPED = sorted([*HERE.glob("builtin/*.cantrip.*"), *HERE.glob("templates/*.cantrip.*")])

YAML = """\
# A comment.
name: "quoted: é𝄞"
crystals:
  'cheap one': anthropic:claude
  other: {provider: scripted, responses: [{content: 'a''b'},
    {content: "c\\"d"}]}
call:
  system_prompt: |
    # no comment
    gates: [no]

      deeper
  stop:
  - one
  - two
circle:
  medium: bash
  gates:
    - done
    - name: read_file   # why
      root: a b
    -
      name: search
  wards:
    - max_turns: 3
    - {bash_network: [a.example, b.example]}
folding:
  summarizer: a long
    text
"""

TOML = """\
# A comment.
name = "quoted = é𝄞"
[crystals]
"cheap one" = 'anthropic:claude'
other = {provider = "scripted", responses = [{content = "a"}, {content = "b"}]}
[call]
system_prompt = \"\"\"
[no.table]
key = 1
\"\"\"
[circle]
medium = "bash"
gates = [
  "done", # why
  {name = "read_file", root = "a b"},
]
[[circle.wards]]
max_turns = 3
[[circle.wards]]
bash_network = ["a.example"]
"""


def same(source: str, name: str) -> None:
    held = document.parse(source.encode(), Path(name))
    text, root = Text(source), parse(source, toml=name.endswith("toml"))
    for path, place in held.places.keys.items():
        node = root.find(path)
        assert node is not None, path
        assert node.key_span is not None, path
        assert node.key_span[0] == text.place(*place), path
    for path, place in held.places.values.items():
        node = root.find(path)
        assert node is not None, path
        # A table of TOML has no one place where it begins.
        if not (name.endswith("toml") and node.kind in ("mapping", "list")):
            assert node.span[0] == text.place(*place), path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_the_recipes_that_ship(path: Path) -> None:
    same(path.read_text(encoding="utf-8"), path.name)


@pytest.mark.parametrize(("source", "name"), [(YAML, "a.cantrip.yaml"), (TOML, "a.cantrip.toml")])
def test_every_way_to_write_a_value(source: str, name: str) -> None:
    same(source, name)
    same(source.replace("\n", "\r\n"), name)


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_any_damage_still_has_a_tree(data: st.DataObject) -> None:
    toml = data.draw(st.booleans())
    source = TOML if toml else YAML
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(source)))
        end = min(len(source), start + data.draw(st.integers(0, 30)))
        source = source[:start] + data.draw(st.text(alphabet="a:-=[]{}\"'| #\n\r\t.,é", max_size=8)) + source[end:]
    root = parse(source, toml=toml)
    for node in root.walk():
        assert 0 <= node.span[0] <= node.span[1] <= len(source)
        assert node.key_span is None or 0 <= node.key_span[0] <= node.key_span[1] <= len(source)


def shape(node: Node) -> object:
    return (
        node.kind,
        node.span,
        node.key,
        node.key_span,
        node.value,
        node.path,
        [shape(child) for child in node.children],
    )


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_a_tree_of_pieces_is_the_tree_of_the_whole(data: st.DataObject) -> None:
    lines = (YAML + "more: x\n" * 3).splitlines(keepends=True)
    pieces = Pieces()
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.sampled_from(["drop", "twice", "word", "last"])):
            case "drop" if len(lines) > 5:
                del lines[at]
            case "twice":
                lines.insert(at, lines[at])
            case "word":
                lines[at] = lines[at].rstrip("\n") + "x\n"
            case _:
                pass
        source = "".join(lines)
        read = pieces.read(source)
        try:
            document.parse(source.encode(), Path("a.cantrip.yaml"))
        except RecipeError:
            continue  # what is broken may be cut in another way
        assert shape(read) == shape(parse(source, toml=False))


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_pieces_read_as_the_whole_does(data: st.DataObject) -> None:
    """Random edits: what is put together from pieces is what a fresh parse says, wherever both take the text."""
    lines = YAML.replace("anthropic:claude", "anthropic:claude\n  more: human").splitlines(keepends=True)
    chunks = Chunks()
    agreed = 0
    for _ in range(data.draw(st.integers(2, 8))):
        at = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.sampled_from(["drop", "twice", "word", "indent"])):
            case "drop" if len(lines) > 5:
                del lines[at]
            case "twice":
                lines.insert(at, lines[at])
            case "word":
                lines[at] = lines[at].rstrip("\n") + "x\n"
            case _:
                lines[at] = "  " + lines[at]
        source = "".join(lines)
        try:
            fast = chunks.read(source, "a")
        except RecipeError:
            continue
        if fast is None:
            continue
        try:
            data_whole, places = yaml_text.read(source, "a")
        except RecipeError:
            continue
        agreed += 1
        if fast[0] == data_whole:
            assert fast[1].keys == places.keys
            assert fast[1].values == places.values
