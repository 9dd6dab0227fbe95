"""What stands where: for every text that the loader reads, the tree says the same places; for the rest it says something."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_acp.lsp.recipes.syntax.tree import parse
from cantrip_acp.lsp.server.positions import TextDocument
from cantrip_acp.recipes.parse import document

HERE = Path(document.__file__).parents[1]
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


def same(source: str, name: str) -> None:
    held = document.parse(source.encode(), Path(name))
    text, root = TextDocument(source), parse(source)
    for path, place in held.places.keys.items():
        node = root.find(path)
        assert node is not None, path
        assert node.key_span is not None, path
        assert node.key_span[0] == text.offset_at(*place), path
    for path, place in held.places.values.items():
        node = root.find(path)
        assert node is not None, path
        assert node.span[0] == text.offset_at(*place), path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_the_recipes_that_ship(path: Path) -> None:
    same(path.read_text(encoding="utf-8"), path.name)


def test_every_way_to_write_a_value() -> None:
    same(YAML, "a.cantrip.yaml")
    same(YAML.replace("\n", "\r\n"), "a.cantrip.yaml")


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_any_damage_still_has_a_tree(data: st.DataObject) -> None:
    source = YAML
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(source)))
        end = min(len(source), start + data.draw(st.integers(0, 30)))
        source = source[:start] + data.draw(st.text(alphabet="a:-=[]{}\"'| #\n\r\t.,é", max_size=8)) + source[end:]
    root = parse(source)
    for node in root.walk():
        assert 0 <= node.span[0] <= node.span[1] <= len(source)
        assert node.key_span is None or 0 <= node.key_span[0] <= node.key_span[1] <= len(source)
