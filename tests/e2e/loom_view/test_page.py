"""The page in a real browser: what it shows, and how it is used."""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal, Turn
from cantrip_acp.files.descriptors import is_ready
from cantrip_acp.loom.view import View, serve, write_html
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.records import ForkRecord, Record
from tests.support.browser import Watch
from tests.support.command_line import recipe, run, start
from tests.support.images import png
from tests.support.loom_trees import grow, turn
from tests.support.loom_trees import start as begun

pytestmark = pytest.mark.timeout(400)


def chosen(watch: Watch) -> str:
    return watch.page.inner_text(".row.selected")


def goes_to(watch: Watch, view: View, turn: str, title: str) -> None:
    watch.open(view.link(turn))
    watch.page.wait_for_selector(f"h2:text-is('{title}')")


def test_the_tree(watch: Watch, view: View) -> None:
    page = watch.open(view.url)
    page.wait_for_selector(".sums:has-text('12 turns')")
    rows = page.locator(".row")
    assert rows.count() == 19
    texts = rows.all_inner_texts()
    assert "Mend the failing test" in texts[1]
    assert "fork" in texts[4]
    assert [row for row in texts if "A query that failed" in row]
    levels = [int(rows.nth(i).get_attribute("aria-level") or 0) for i in range(rows.count())]
    assert levels[:7] == [1, 1, 2, 2, 3, 4, 4]
    for part in ("15k", "2 errors", "$0.0273"):
        assert part in page.inner_text(".sums")
    # The title is what was asked for, and the newest answer is open.
    assert page.title().startswith("Mend the failing test")
    assert page.title().endswith(" · loom")
    assert "Mend the failing test" in page.inner_text("header")
    assert page.get_attribute("header [title$='sample.loom.jsonl']", "title")
    # The token is out of sight, and the page opens again without it.
    assert "token" not in page.url
    page.reload()
    page.wait_for_selector(".row.selected")
    watch.clean()


def test_the_colours_of_an_output(watch: Watch, view: View) -> None:
    goes_to(watch, view, "t_000013", "Turn 4")
    page = watch.page
    output = page.locator(".output").first
    assert output.locator(".stream.out pre").inner_text() == "a \U0001f600 3 passed in 0.02s\n"
    assert output.locator(".sgr-fg-2").all_inner_texts() == ["3 passed"]
    assert output.locator(".stream.err .sgr-bold.sgr-under").inner_text().strip() == "bold"


def test_a_turn(watch: Watch, view: View) -> None:
    goes_to(watch, view, "t_000001", "Turn 1")
    page = watch.page
    body = page.inner_text(".details")
    for part in (
        "Let me run the tests first.",
        "cd stats && python -m pytest -q",
        "1 failed",
        "exit 1",
        "1 warning",
        "4.20 s",
        "940",
    ):
        assert part in body
    assert page.locator(".output .sgr-fg-1").first.inner_text() == "F"
    assert "a title" not in body
    assert page.locator("pre.code .word-keyword").first.inner_text() == "def"
    page.click("summary:text('Thinking')")
    assert "The intent names stats.py" in page.inner_text(".thinking")
    page.click("summary:text('The record itself')")
    page.wait_for_selector(".raw pre")
    assert '"tokens_prompt": 940' in page.inner_text(".raw pre")
    watch.shot("turn")
    watch.clean()


def test_changes_errors_and_data(watch: Watch, view: View) -> None:
    goes_to(watch, view, "t_000003", "Turn 3")
    page = watch.page
    assert page.locator(".line.removed").all_inner_texts() == ["-    return xs[len(xs) // 2]\n"]
    assert page.locator(".line.added").count() == 4
    goes_to(watch, view, "t_000007", "Turn 5")
    assert "failed" in page.inner_text(".gate.failed header")
    assert page.locator(".title .badge").first.inner_text() == "continues"
    goes_to(watch, view, "t_000008", "Turn 6")
    assert '"passed": 3' in page.inner_text(".gate .answer")
    assert "right at the first try" in page.inner_text(".given")
    watch.clean()


def test_rewards_of_every_kind_and_pinned_files(watch: Watch, view: View) -> None:
    goes_to(watch, view, "t_000013", "Turn 4")
    page = watch.page
    given = page.locator(".given li").all_inner_texts()
    assert len(given) == 4
    assert "relative" in given[2]
    assert "verifier" in given[3]
    assert "no answer" in given[3]
    # What counts is the last one that is a number and no comparison.
    assert "+0.25" in chosen(watch)
    goes_to(watch, view, "t_000003", "Turn 3")
    assert "c0ffeec0ffee" in page.inner_text(".details")
    assert "big.bin: too large" in page.inner_text(".details")
    watch.clean()


def test_a_cast_and_its_picture(watch: Watch, view: View) -> None:
    page = watch.open(view.url)
    page.click(".row.cast >> nth=0")
    page.wait_for_selector("h2:text-is('Cast')")
    picture = page.wait_for_selector(".details img")
    assert picture is not None
    assert picture.evaluate("e => e.naturalWidth") == 48
    text = page.inner_text(".details")
    assert "median took the upper middle of an even count." in text
    assert "pytest -q" in text
    watch.clean()


def test_search_and_filters(watch: Watch, view: View) -> None:
    page = watch.open(view.url)
    page.keyboard.press("/")
    page.keyboard.type("MEDIAN")
    page.wait_for_selector(".found:has-text('9 turns found')")
    assert page.locator(".row mark").count() == 9
    watch.shot("search")
    page.keyboard.press("Enter")
    page.wait_for_selector("h2:text-is('Turn 1')")
    page.keyboard.press("Escape")
    assert page.locator(".row").count() == 19
    for query, count in (("is:error", 2), ("gate:edit_file", 2), ("reward:>0", 2), ("reason:max_turns", 1), ("median is:error", 2),
                         ("is:fold", 1), ("nowhere to be found", 0)):  # fmt: skip
        page.fill("input[type=search]", query)
        page.wait_for_selector(f".found:has-text('{count} turn{'' if count == 1 else 's'} found')")
        assert page.locator(".row").count() == count
    page.fill("input[type=search]", "is:bogus")
    page.wait_for_selector(".found:has-text('not understood: is:bogus')")
    page.click("text=Clear (Esc)")
    page.select_option(".filter", "is:error")
    page.wait_for_selector(".found:has-text('2 turns found')")
    watch.clean()


def test_by_the_keyboard_alone(watch: Watch, view: View) -> None:
    page = watch.open(view.url)
    page.keyboard.press("Home")
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    assert "Let me run the tests" in chosen(watch)
    page.keyboard.press("ArrowLeft")
    assert "Mend the failing test" in chosen(watch)
    page.keyboard.press("ArrowLeft")
    assert page.locator(".row").count() == 7
    assert page.get_attribute(".row.selected", "aria-expanded") == "false"
    page.keyboard.press("ArrowRight")
    assert page.locator(".row").count() == 19
    page.keyboard.press("e")
    assert "error" in chosen(watch)
    page.keyboard.press("e")
    page.wait_for_selector("h2:text-is('Turn 5')")
    page.keyboard.press("E")
    page.wait_for_selector("h2:text-is('Turn 1')")
    page.keyboard.press("r")
    assert "+0.25" in chosen(watch)
    page.keyboard.press("End")
    assert "A query that failed" in chosen(watch)
    page.keyboard.press("Home")
    assert "the call and its circle" in chosen(watch)
    page.wait_for_selector("h2:text-is('Call')")
    assert "You mend small projects." in page.inner_text(".details")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.className") == "details"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.className") == "tree"
    page.keyboard.press("[")
    assert page.locator(".row").count() == 4
    page.keyboard.press("]")
    assert page.locator(".row").count() == 19
    page.keyboard.press("?")
    assert page.evaluate("document.querySelector('dialog').open")
    assert "next error" in page.inner_text("dialog")
    page.keyboard.press("Escape")
    assert not page.evaluate("document.querySelector('dialog').open")
    watch.clean()


def test_the_keys_that_it_shows_are_those_it_has(watch: Watch, view: View) -> None:
    page = watch.open(view.url)
    unknown = page.evaluate(
        """async () => {
            const { KEYS } = await import('./keys.js');
            return KEYS.filter(([shown, , keys]) => shown && !keys.length).length + KEYS.length * 0;
        }"""
    )
    assert unknown == 0


def test_every_control_has_a_name_and_can_be_reached(watch: Watch, view: View) -> None:
    goes_to(watch, view, "t_000001", "Turn 1")
    page = watch.page
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, [role=tree], [role=separator], canvas')]
            .filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim())).map((e) => e.outerHTML)"""
    )
    assert nameless == []
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"
            )
        )
    order = [
        "search turns",
        "add a filter",
        "Next error (e)",
        "Keys (?)",
        "turns",
        "width of the list",
        "copy the id t_000001",
    ]
    places = [seen.index(name) for name in order]
    assert places == sorted(places)
    active = page.evaluate("document.querySelector('.tree').getAttribute('aria-activedescendant')")
    assert page.locator(f"#{active}").get_attribute("aria-selected") == "true"


def test_two_threads_side_by_side(watch: Watch, view: View) -> None:
    goes_to(watch, view, "t_forked", "Turn 3")
    page = watch.page
    page.keyboard.press("c")
    page.wait_for_selector(".pair")
    page.wait_for_selector(".compared-turns .line.removed")
    # Each message stands before the turns that answer it.
    assert page.locator(".pair.shared").count() == 3
    assert page.locator(".pair").count() == 12
    assert "2 turns in common" in page.inner_text(".compared-turns")
    # The message is the first difference.
    assert "Mend it with the standard library instead." in page.inner_text(".compared-turns .line.removed")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".compared-turns .line.removed:has-text('import statistics')")
    watch.shot("compare")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector(".compared-turns:has-text('This turn is in both threads.')")
    page.keyboard.press("Escape")
    assert page.locator(".compare").is_hidden()
    watch.clean()


def compares(watch: Watch, view: View) -> Any:
    """The page of two looms, where the comparison covers the list."""
    watch.origin = view.url.split("/#")[0]
    watch.page.goto(view.url)
    watch.page.wait_for_selector(".pair.selected")
    return watch.page


def thread(name: str, *said: str) -> list[Record]:
    """A cast of its own entity; each turn has one of these texts."""
    made: list[Record] = [Turn(f"{name}0", None, "c", name, None, role="call"), begun(f"k{name}", name, "Do it", 1)]
    made += [turn(f"{name}{i}", f"{name}{i - 1}", name, f"k{name}", i, said=text) for i, text in enumerate(said, 1)]
    return made


def test_equal_turns_of_two_looms_are_folded_and_the_first_difference_is_in_view(watch: Watch, tmp_path: Path) -> None:
    before, after = [f"Step {i}." for i in range(40)], [f"Later {i}." for i in range(5)]
    paths = tmp_path / "a.loom.jsonl", tmp_path / "b.loom.jsonl"
    # The two have no turn in common, and say the same except for a turn and for one that only the second has.
    for path, name, middle in ((paths[0], "a", ["Left."]), (paths[1], "b", ["Right.", "More."])):
        with Loom.open(path) as loom:
            for record in thread(name, *before, *middle, *after):
                loom.append(record)
    with serve(*paths) as view:
        page = compares(watch, view)
        page.wait_for_selector(".compared-turns .line.removed:has-text('Left.')")
        assert [" ".join(row.split()) for row in page.locator(".pair").all_inner_texts()] == [
            "40 equal turns",
            "0 Left. 500 ms 0 Right. 500 ms",
            "— 0 More. 500 ms",
            "5 equal turns",
        ]
        assert "Right." in page.inner_text(".compared-turns .line.added")
        watch.shot("compare-folded")
        # From below one comes to the last of the folded turns.
        page.locator(".pairs").press("ArrowUp")
        page.wait_for_selector(".compared-turns:has-text('This turn is equal in both threads.'):has-text('Step 39.')")
        assert page.locator(".pair.folded").count() == 1
        page.locator(".pair.folded").click()
        page.wait_for_selector(".compared-turns:has-text('Later 0.')")
        assert page.locator(".pair.folded").count() == 0
    watch.clean()


def test_two_looms_side_by_side_are_followed(watch: Watch, tmp_path: Path) -> None:
    paths = tmp_path / "a.loom.jsonl", tmp_path / "b.loom.jsonl"
    records = thread("a", "One.", "Two.", "Three.", "Four.")
    with Loom.open(paths[0]) as left, Loom.open(paths[1]) as right:
        for record in records[:5]:
            left.append(record)
        # A fork begins with a copy of the turns, and goes on as another entity.
        for record in [*records[:4], ForkRecord("f", "a2", "b", "none")]:
            right.append(record)
        with serve(*paths) as view:
            page = compares(watch, view)
            page.wait_for_selector(".compared-turns .line.removed:has-text('Three.')")
            rows = page.locator(".pair")
            assert rows.count() == 4
            assert "—" in rows.last.inner_text()
            right.append(begun("kb", "b", "Do it otherwise", 5))
            right.append(turn("b3", "a2", "b", "kb", 6, said="Otherwise."))
            page.wait_for_selector(".pair:has-text('Otherwise.')")
            page.wait_for_selector(".pair .message:has-text('Do it otherwise')")
            left.append(records[5])
            page.wait_for_selector(".pair:has-text('Four.')")
            # What is looked at stays.
            page.wait_for_selector(".compared-turns .line.added:has-text('Otherwise.')")
            watch.shot("compare-followed")
            assert page.is_visible(".live")
    watch.clean()


def test_two_looms_are_shown_side_by_side(watch: Watch, tmp_path: Path) -> None:
    whole = tmp_path / "whole.loom.jsonl"
    grow(Loom.open(whole)).close()
    # A fork of a session has a loom of its own, which begins with a copy of the same turns.
    for name, without in (("a", ("u2", "u3", "v2", "x1")), ("b", ("t2", "call4", "w1", "t3", "v2", "x1"))):
        lines = [
            line for line in whole.read_text().splitlines() if not any(f'"id":"{turn}"' in line for turn in without)
        ]
        (tmp_path / f"{name}.loom.jsonl").write_text("\n".join(lines) + "\n")
    before = (tmp_path / "a.loom.jsonl").read_bytes()
    process = start("loom", "view", "a.loom.jsonl", "b.loom.jsonl", "--no-browser", cwd=tmp_path)
    try:
        assert process.stdout is not None
        assert is_ready(process.stdout, 60)
        page, address = watch.page, process.stdout.readline().strip()
        watch.origin = address.split("/#")[0]
        # The comparison covers the list at once.
        page.goto(address)
        page.wait_for_selector(".compare .pair")
        # The message of both, a turn of both, the message of the fork and two turns.
        assert page.locator(".pair").count() == 5
        assert page.locator(".pair.shared").count() == 2
        assert [page.get_by_label(f"{side} thread").inner_text() != "" for side in ("left", "right")] == [True, True]
        page.locator(".pair").nth(4).click()
        page.wait_for_selector(".compared-turns:has-text('NEEDLE')")
        watch.shot("two-looms")
        page.keyboard.press("Escape")
        assert page.locator(".compare").is_hidden()
        # The tree has the turns of both once, and a fork continues the loom that has the turn.
        page.wait_for_selector(".sums:has-text('6 turns')")
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        for turn_id, name in (("t3", "a"), ("u3", "b")):
            page.evaluate(f"location.hash = '#turn={turn_id}'")
            page.wait_for_selector(f".id:text-is('{turn_id}')")
            page.keyboard.press("x")
            page.wait_for_selector(".toast.shown:has-text('copied')")
            assert f" {name}.loom.jsonl {turn_id} " in page.evaluate("navigator.clipboard.readText()")
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert (tmp_path / "a.loom.jsonl").read_bytes() == before
    done = run("loom", "view", "a.loom.jsonl", "b.loom.jsonl", "--html", "both.html", cwd=tmp_path)
    assert done.status == 0, done.err
    page.goto((tmp_path / "both.html").as_uri())
    page.wait_for_selector(".compared-turns:has-text('1 turn in common')")
    (tmp_path / "text.loom.jsonl").write_text("nothing\n")
    done = run("loom", "view", "a.loom.jsonl", "text.loom.jsonl", "--html", "both.html", cwd=tmp_path)
    assert (done.status, "text.loom.jsonl: this is not a loom" in done.err) == (2, True), done.err


def test_links_to_turns(watch: Watch, view: View) -> None:
    goes_to(watch, view, "t_000008", "Turn 6")
    page = watch.page
    assert page.url.endswith("#turn=t_000008")
    page.evaluate("location.hash = '#turn=t_forked'")
    page.wait_for_selector(".id:text-is('t_forked')")
    # An editor may put the turn behind whatever address it has.
    watch.open(f"{view.url}#turn=t_000003")
    page.wait_for_selector(".id:text-is('t_000003')")
    page.evaluate("location.hash = '#turn=t_nowhere'")
    page.wait_for_selector(".toast:has-text('no turn')")
    watch.clean()
    page.goto("about:blank")
    watch.open(f"{view.url}&turn=t_gone")
    # There is no such turn, so the newest answer is open.
    assert "The changelog says what changed for users." in chosen(watch)


def test_what_is_copied(watch: Watch, view: View, sample: Path) -> None:
    goes_to(watch, view, "t_000002", "Turn 2")
    page = watch.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.keyboard.press("x")
    page.wait_for_selector(".toast:has-text('copied')")
    command = page.evaluate("navigator.clipboard.readText()")
    assert command == f'cantrip loom fork {sample} t_000002 "Your intent" --recipe RECIPE'
    page.keyboard.press("y")
    page.wait_for_selector(".toast:has-text('The link')")
    assert page.evaluate("navigator.clipboard.readText()") == view.link("t_000002")
    quoted = page.evaluate("import('./turn.js').then((m) => m.forkCommand(\"/a b/it's $(rm).jsonl\", 't_1'))")
    assert quoted.startswith("cantrip loom fork '/a b/it'\\''s $(rm).jsonl' t_1 ")


def test_a_reward_from_the_page(watch: Watch, view: View, sample: Path) -> None:
    goes_to(watch, view, "t_000003", "Turn 3")
    page = watch.page
    page.keyboard.press("w")
    page.keyboard.type("0.75")
    page.keyboard.press("Tab")
    page.keyboard.type("neat <b>change</b>")
    page.keyboard.press("Enter")
    page.wait_for_selector(".given:has-text('neat <b>change</b>')")
    page.wait_for_selector(".row.selected:has-text('★ +0.75')")
    with Loom.open(sample, readonly=True) as loom:
        assert loom.turn("t_000003").reward == 0.75
    with Loom.open(sample):
        page.fill(".number", "1")
        page.click("button:text('Reward')")
        page.wait_for_selector(".state:has-text('a session is writing this loom')")
    watch.clean()


def test_dark_light_and_kept(watched: Callable[..., Watch], view: View) -> None:
    for scheme, other in (("light", "dark"), ("dark", "light")):
        watch = watched(scheme=scheme)
        page = watch.open(view.url)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.keyboard.press("t")
        changed = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground != changed
        page.reload()
        page.wait_for_selector(".row.selected")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == changed
        assert page.evaluate("document.documentElement.dataset.theme") == other
        watch.shot(f"tree-{other}")


def test_on_a_narrow_page(watched: Callable[..., Watch], view: View) -> None:
    watch = watched(width=380, height=720)
    page = watch.open(view.url)
    assert page.locator(".details").is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.click(".row >> nth=2")
    page.keyboard.press("Enter")
    page.wait_for_selector("h2:text-is('Turn 1')")
    assert page.locator(".tree").is_hidden()
    assert page.evaluate("document.querySelector('.details').scrollWidth <= innerWidth")
    watch.shot("narrow")
    page.click(".back")
    assert page.locator(".tree").is_visible()
    watch.clean()


def test_damage_is_shown(watch: Watch, sample: Path) -> None:
    lines = sample.read_bytes().splitlines(keepends=True)
    sample.write_bytes(b"".join([*lines[:6], b"{nonsense\n", *lines[6:]]) + b'{"type": "turn", "id": "t_torn')
    with serve(sample) as view:
        page = watch.open(view.url)
        page.wait_for_selector(".damage:has-text('2 places could not be read')")
        page.click(".damage summary")
        assert "line 7" in page.inner_text(".damage")
    watch.clean()


ASKING = """
crystal:
  provider: scripted
  responses:
    - content: I ask two
      tool_calls:
        - {gate: call_agent, args: {intent: Count apples.}}
        - {gate: call_agent, args: {intent: Count pears.}}
    - tool_calls: [{gate: done, args: {answer: two counts}}]
  children:
    - [{tool_calls: [{gate: echo, args: {text: red}}]}, {tool_calls: [{gate: done, args: {answer: three}}]}]
    - [{tool_calls: [{gate: done, args: {answer: four}}]}]
circle:
  gates: [done, echo, call_agent]
  wards: [{max_turns: 5}, {max_depth: 1}]
"""


def test_children_lie_below_the_turn_that_spawned_them(watch: Watch, tmp_path: Path) -> None:
    where = tmp_path / "asking.loom.jsonl"
    assert run("cast", recipe(tmp_path, ASKING), "Count fruit.", "--loom", where, cwd=tmp_path).status == 0
    with serve(where) as view:
        page = watch.open(view.url)
        page.wait_for_selector(".row:has-text('two counts')")
        rows = page.locator(".row")
        seen = [
            (rows.nth(i).get_attribute("aria-level"), rows.nth(i).locator(".label").inner_text())
            for i in range(rows.count())
        ]
        casts = [(level, text) for level, text in seen if text.startswith("Count")]
        assert casts == [("1", "Count fruit."), ("3", "Count apples."), ("3", "Count pears.")]
        apples = seen.index(("3", "Count apples."))
        assert [level for level, _ in seen[apples + 1 : apples + 4]] == ["4", "4", "4"]
        assert [text for _, text in seen[apples + 1 : apples + 4]] == ["the call and its circle", "red", "three"]
        assert seen[-1] == ("2", "two counts")
        assert page.locator(".row.cast .badge:text-is('child')").count() == 2
        page.click(".row.cast:has-text('Count apples.') .twist")
        assert rows.count() == len(seen) - 3
    watch.clean()


def test_without_the_token_it_says_so(watch: Watch, view: View) -> None:
    for address in (view.url.split("#")[0], f"{view.url.split('#')[0]}#token=wrong"):
        watch.origin = view.url.split("/#")[0]
        watch.page.goto("about:blank")
        watch.page.goto(address)
        watch.page.wait_for_selector("text=This page needs its whole address")
        assert watch.page.locator(".row").count() == 0
    assert watch.foreign in ([], ["about:blank"] * 2)


def test_one_file_shows_the_same(watch: Watch, sample: Path, tmp_path: Path) -> None:
    target = tmp_path / "sample.html"
    assert run("loom", "view", sample, "--html", target, cwd=tmp_path).status == 0
    watch.origin = target.as_uri()
    page = watch.page
    page.goto(f"{target.as_uri()}#turn=t_000003")
    page.wait_for_selector("h2:text-is('Turn 3')")
    assert page.locator(".row").count() == 19
    assert page.locator(".line.added").count() == 4
    assert page.locator("form.reward").count() == 0
    page.keyboard.press("/")
    page.keyboard.type("median")
    page.wait_for_selector(".found:has-text('9 turns found')")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.click(".row.cast >> nth=0")
    page.wait_for_selector(".details img")
    page.keyboard.press("c")
    page.wait_for_selector(".pair")
    assert [url for url in watch.foreign if not url.startswith(target.as_uri())] == []
    assert watch.errors == []


def test_a_file_that_exists_is_replaced_whole(sample: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.html"
    target.write_text("old")
    assert write_html(sample, target) == 14
    assert target.read_text().startswith("<!doctype html>")
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []
    done = run("loom", "view", sample, "--html", tmp_path / "none" / "x.html", cwd=tmp_path)
    assert done.status == 2
    assert "cannot write" in done.err


UNKNOWN = """
crystal:
  provider: scripted
  responses: [{content: The answer., usage: {prompt_tokens: null, completion_tokens: null}}]
circle: {gates: [done], wards: [{max_turns: 2}]}
"""


def test_unknown_usage_is_shown_as_unknown(watch: Watch, tmp_path: Path) -> None:
    path = tmp_path / "unknown.loom.jsonl"
    assert run("cast", recipe(tmp_path, UNKNOWN), "Go.", "--loom", path, cwd=tmp_path).status == 0
    with Loom.open(path, readonly=True) as loom:
        leaf = loom.leaves()[-1]
    with serve(path) as view:
        goes_to(watch, view, leaf, "Turn 1")
        body = watch.page.inner_text(".details")
        assert "not known" in body
        assert "$0" not in body + watch.page.inner_text(".sums")
        # The number of each count is a dash, not 0.
        shown = " ".join(body.split())
        for name in ("Input", "Output", "Cost"):
            assert f"{name} —" in shown, shown
        watch.clean()


def _images(folder: Path) -> Path:
    """A loom in which `read_file` read an image."""
    (folder / "shot.png").write_bytes(png())
    path = folder / "images.jsonl"
    calls = [{"gate": "read_file", "args": {"path": "shot.png"}}]
    crystal = ScriptedCrystal([{"tool_calls": calls}, {"content": "Red."}])
    circle = Circle(gates=["read_file", "done"], wards=[{"max_turns": 4}], workspace=folder)
    with Loom.open(path) as loom, ThreadPoolExecutor(1) as thread:
        # Playwright runs an event loop in this thread.
        thread.submit(Cantrip(crystal, Call(), circle, loom=loom).cast_sync, "What is on shot.png?").result()
    return path


def test_the_image_of_a_gates_result(watch: Watch, tmp_path: Path) -> None:
    path = _images(tmp_path)
    with Loom.open(path, readonly=True) as loom:
        turn = next(t.id for t in loom.turns() if t.role == "crystal")
    with serve(path) as view:
        page = watch.open(view.link(turn))
        image = page.locator("article[aria-label='gate read_file'] figure img")
        image.wait_for()
        assert image.get_attribute("src") == "data:image/png;base64," + base64.b64encode(png()).decode()
        assert image.get_attribute("alt") == "shot.png"
        # The browser has decoded it: nothing in the page's policy forbids it.
        assert image.evaluate("i => i.decode().then(() => [i.naturalWidth, i.naturalHeight])") == [1, 1]
        watch.clean()


async def group_of_answers(where: Path) -> None:
    """Three answers to one question, two of them graded; a query that failed; and a cast that a resumed batch began again."""
    loom = Loom.open(where)
    circle = Circle("conversation", ["done"], [{"max_turns": 3}])
    answers = ["the harbour", {"place": "the lighthouse", "sure": True}, "the market"]
    said = [
        {"content": "Let me consider.", "tool_calls": [{"gate": "done", "args": {"answer": answer}}]}
        for answer in answers
    ]
    cantrip = Cantrip(ScriptedCrystal(said), circle=circle, loom=loom)
    for _ in answers:
        await cantrip.cast("Where do they meet?")
    _, sure, market = [turn.id for turn in loom.turns() if turn.reason == "done"]
    loom.annotate_reward(sure, 1.0)
    loom.annotate_reward(market, 0.25)
    refused = ScriptedCrystal([{"error": {"status": 400, "message": "the model is gone"}}])
    with pytest.raises(CrystalError):
        await Cantrip(refused, circle=circle, loom=loom).cast("Who comes first?")
    for intent in ("Begun again.", "Given up."):
        slow = ScriptedCrystal([{"content": "late", "chunks": ["la", "te"], "delay_ms": 60_000}])
        with anyio.move_on_after(1):
            await Cantrip(slow, circle=circle, loom=loom).cast(intent)
    await Cantrip(ScriptedCrystal([{"content": "Here it is."}]), circle=circle, loom=loom).cast("Begun again.")
    loom.close()


def test_the_answers_of_a_group_are_compared_at_a_glance(watched: Callable[..., Watch], tmp_path: Path) -> None:
    where = tmp_path / "group.loom.jsonl"
    with ThreadPoolExecutor(1) as aside:
        # The browser has the event loop of this thread.
        aside.submit(anyio.run, group_of_answers, where).result()
    with serve(where) as view:
        watch = watched()
        page = watch.open(view.url)
        page.wait_for_selector(".row.cast:has-text('Given up.')")
        # The header counts a cast that failed before it had a turn, and what was stopped.
        page.wait_for_selector(".sums:has-text('1 error')")
        assert "1 cancelled" in page.inner_text(".sums")
        # What was begun again later is no entry of its own.
        assert page.locator(".row.cast:has-text('Begun again.')").count() == 1
        # The rows of a group show answers, with rank and score.
        casts = [row.inner_text().split("\n") for row in page.locator(".row.cast").all()[:3]]
        assert [row[:2] for row in casts] == [
            ["—/3", "the harbour"],
            ["1/3", '{"place": "the lighthouse", "sure": true}'],
            ["2/3", "the market"],
        ]
        labels = [each.inner_text() for each in page.locator(".row:not(.cast) .label").all()]
        assert "the market" in labels
        page.locator(".row.cast").nth(2).click()
        table = page.locator(".ranks tbody tr")
        page.wait_for_selector(".ranks .this")
        ranks = [[cell.strip() for cell in row.locator("td").all_inner_texts()] for row in table.all()]
        assert ranks == [
            ["1", "+1", '{"place": "the lighthouse", "sure": true}', "done"],
            ["2", "+0.25", "the market", "done"],
            ["—", "—", "the harbour", "done"],
        ]
        assert page.locator(".ranks .this").inner_text().startswith("2")
        watch.shot("ranks")
        page.locator(".ranks .answer").first.click()
        page.wait_for_selector(".ranks .this:has-text('lighthouse')")
        assert page.locator("h2").first.inner_text().startswith("Turn")
        watch.clean()
    narrow = watched(width=360, scheme="dark")
    with serve(where) as view:
        page = narrow.open(view.url)
        page.click(".row.cast:has-text('the market')")
        page.keyboard.press("Enter")
        page.wait_for_selector(".ranks")
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        narrow.shot("ranks-narrow")
        narrow.clean()
