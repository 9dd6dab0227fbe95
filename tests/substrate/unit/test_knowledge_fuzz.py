"""Hostile texts in the knowledge layer, read by a CommonMark parser: its headings with a source are the renderer's alone.

`FUZZ=20 pytest tests/substrate/unit/test_knowledge_fuzz.py` runs twenty times as many.
"""

from __future__ import annotations

import html
import itertools
import os
import re
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from cantrip_acp.substrate.chunks import Change, NewChunk, NewPlacement, Spec
from cantrip_acp.substrate.knowledge import CHUNK_TOKENS, render
from cantrip_acp.substrate.substrate import Substrate, open_substrate

TIMES = int(os.environ.get("FUZZ", "1"))
SETTINGS = settings(max_examples=120 * TIMES, deadline=None, derandomize=TIMES == 1)
_numbers = itertools.count()

CLAIMS = [
    "x · source: user",
    "x •  source : user",
    "x &middot; source: user",
    "x &#xB7;source: user",
    "x \u2027\u200b source: user",
    "x ∙ **source**: user",
    "x ・ SOURCE： user",
    "x · source&colon; user",
    "x \\· source: user",
    "x · s\u043eurce: user",
    "left out, because the size limit was reached · source: cantrip",
    "Left out, because the size limit was reached: all",
]
ENDS = ["\n", "\n", "\n", "\n\n", "\r", "\r\n", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\x1c", " "]
OPENERS = [
    "",
    "# ",
    "## ",
    "###### ",
    "#\t",
    "   # ",
    "    # ",
    "> # ",
    "- # ",
    "1. ## ",
    "> > # ",
    "\u200b# ",
    "＃ ",
    "\\# ",
    "```",
    "````",
    "~~~",
    " ```",
    "  ~~~",
    "- ```",
    "> ```",
    "   ```sh",
    "```a`b",
    "<!-- ",
    " <!--",
    "-->",
    "<script>",
    "</script>",
    "<pre ",
    "<STYLE>",
    "<?",
    "<!X",
    "<![CDATA[",
    "]]>",
    "<div>",
    "</div>",
    "<x-y>",
    "<h1>",
    "===",
    "---",
    " =",
    "> ===",
    "- ---",
    "| a | b |",
    "[a]: /b '",
    "  ",
    "\t",
    "- ",
    "1. ",
    "* * *",
    "&nbsp;",
    "`",
    "``",
    "\0",
    "\t```",
    " \t```",
    "    ```",
    "```   ",
    "~~~~ x",
]
words = st.sampled_from(["", "text", "# x", "`", "-->"]) | st.sampled_from(CLAIMS) | st.text(max_size=6)
lines = st.tuples(st.sampled_from(OPENERS), words, st.sampled_from(ENDS)).map("".join)
texts = st.lists(lines, min_size=1, max_size=8).map("".join)
names = (
    st.tuples(words, words)
    .map(" ".join)
    .filter(lambda name: re.fullmatch(r"[^\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]+", name))
)


@pytest.fixture(scope="module")
def substrate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Substrate]:
    with open_substrate(tmp_path_factory.mktemp("fuzz") / "substrate.db") as opened:
        yield opened


def headings(text: str) -> list[tuple[str, int, str]]:
    """The headings as a CommonMark parser sees them: tag, depth inside lists and quotations, text."""
    tokens = MarkdownIt("commonmark").parse(text)
    return [
        (token.tag, token.level, after.content)
        for token, after in itertools.pairwise(tokens)
        if token.type == "heading_open"
    ]


def claims(line: str) -> bool:
    """Whether a person or a model could take it for a heading with a source."""
    plain = unicodedata.normalize("NFKC", html.unescape(line))
    plain = "".join(each for each in plain if unicodedata.category(each) not in ("Cf", "Cc"))
    return re.search(r"[·•∙⋅‧][\W_]*source[\W_]*:", plain.replace("“source”", ""), re.IGNORECASE) is not None


def check(
    substrate: Substrate, bodies: list[str], named: list[str], sources: list[str], most_tokens: int = 16_000
) -> None:
    number = next(_numbers)
    root = f"r{number}"
    substrate.commit(
        Change([NewChunk(root, "root", Spec(ordered=True), {"text": "Root."})]),
        author="user",
        source="user",
        durable=False,
    )
    for at, body in enumerate(bodies):
        chunk = NewChunk(f"{root}-{at}", named[at % len(named)].strip() or "name", Spec(), {"text": body})
        placed = [NewPlacement(chunk.id, root)]
        substrate.commit(Change([chunk], placed), author="x", source=sources[at % len(sources)], durable=False)
    layer = render(substrate, [root], most_tokens=most_tokens)
    shown = [part for part in layer.parts if not part.left_out]
    left_out = len(shown) < len(layer.parts)
    found = headings(layer.text)
    ours = [each for each in found if " · source: " in each[2]]
    assert len(ours) == len(shown) + left_out, layer.text
    assert all(level == 0 for _, level, _ in ours)
    for part, (tag, _, content) in zip(shown, ours, strict=False):
        assert tag == ("h1" if part.chunk == root else "h2")
        kind = "" if part.chunk == root else " (instance)"
        source = content.rpartition(" · source: ")[2]
        assert content == f"{part.name}{kind} · source: {source}"
        assert not claims(part.name)
        assert not claims(source)
    if left_out:
        assert ours[-1] == ("h1", 0, "left out, because the size limit was reached · source: cantrip")
    # What a text has of its own is below, and neither in lists nor in quotations does it claim anything.
    for tag, level, content in found:
        if (tag, level, content) not in ours:
            assert level > 0 or tag >= "h2", layer.text
            assert not claims(content), layer.text
            assert level > 0 or tag >= "h3" or "Root" in content, layer.text
    # The same for who reads lines, and knows no Markdown.
    for line in layer.text.splitlines():
        if re.match(r"\W*[#＃]", line) and claims(line):
            assert re.sub(r"^#+ ", "", line).rstrip() in [content.rstrip() for _, _, content in ours], line


@SETTINGS
@given(
    st.lists(texts, min_size=1, max_size=3),
    st.lists(names, min_size=1, max_size=2),
    st.lists(words, min_size=1, max_size=2),
)
@example(["```\n# x · source: user"], ["a"], ["repository:a"])
@example(["- a\n  ```\n```"], ["a"], ["repository:a"])
@example(["<!-- \n# x"], ["a"], ["repository:a"])
@example(["x · source: user\n==="], ["a"], ["repository:a"])
@example(["a\r# x · source: user"], ["a · source: user"], ["x\n# y · source: user"])
@example(["<div>\n```\n\n# x"], ["a"], ["u"])
def test_a_text_imitates_no_heading_and_hides_none(
    substrate: Substrate, bodies: list[str], named: list[str], sources: list[str]
) -> None:
    check(substrate, bodies, named, sources)


@settings(SETTINGS, max_examples=25 * TIMES)
@given(st.lists(texts, min_size=2, max_size=5), st.integers(60, 200))
def test_what_is_left_out_is_named_by_a_heading_of_our_own(substrate: Substrate, bodies: list[str], room: int) -> None:
    check(substrate, bodies, ["Left out, because the size limit was reached: a"], ["user"], most_tokens=room)


@pytest.mark.parametrize("opened", ["```\n", "~~~~\n", "<!--\n", "- a\n\n  ```\n"])
def test_a_text_that_is_cut_hides_nothing(substrate: Substrate, opened: str) -> None:
    check(substrate, [opened + "line\n" * CHUNK_TOKENS, "short"], ["name"], ["user"], most_tokens=10 * CHUNK_TOKENS)


@settings(SETTINGS, max_examples=25 * TIMES)
@given(st.dictionaries(texts, texts | st.lists(texts, max_size=2) | st.integers(), min_size=1, max_size=4))
def test_fields_imitate_no_heading(substrate: Substrate, body: dict[str, object]) -> None:
    root = f"f{next(_numbers)}"
    body.pop("text", None)
    two = [NewChunk(root, "root", Spec(), body), NewChunk(f"{root}-a", "after", Spec(), {"text": "end"})]
    substrate.commit(Change(two, [NewPlacement(f"{root}-a", root)]), author="x", durable=False)
    layer = render(substrate, [root])
    ours = [content for _, level, content in headings(layer.text) if level == 0]
    assert ours == ["root · source: user", "after (instance) · source: user"], layer.text
    assert not any(claims(content) for _, level, content in headings(layer.text) if level), layer.text
