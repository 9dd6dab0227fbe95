"""Ten thousand turns, and turns that come while one looks: bounded work, whatever the loom's size."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cantrip_acp import Loom
from cantrip_acp.loom.view import serve, write_html
from cantrip_acp.types.records import Turn, Utterance
from tests.support import view_looms as looms
from tests.support.browser import Watch
from tests.support.command_line import recipe, start

pytestmark = pytest.mark.timeout(400)
TURNS = 10_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A loom of ten thousand turns."""
    return looms.large(tmp_path_factory.mktemp("large") / "large.loom.jsonl", TURNS)


def walked(watch: Watch) -> None:
    """To the end and back by every way; there are never more rows than can be seen, and a few."""
    page = watch.page
    page.wait_for_selector(".sums:has-text('10,000 turns')")
    watch.until("document.querySelector('.sums').innerText.includes('103 errors')")
    most = 60
    assert page.locator(".row").count() < most
    page.keyboard.press("End")
    page.wait_for_selector(".row.selected:has-text('echo step 9999')")
    assert page.locator(".row").count() < most
    page.keyboard.press("Home")
    for share in (0.1, 0.37, 0.5, 0.93):
        page.evaluate(f"(t => t.scrollTop = t.scrollHeight * {share})(document.querySelector('.tree'))")
        expected = int((TURNS + TURNS / 50) * share)
        watch.until(
            """(wanted) => { const rows = [...document.querySelectorAll('.row')];
                return rows.length && rows.every((r) => !r.querySelector('.waiting'))
                    && rows.some((r) => Math.abs(Number(r.ariaPosInSet) - wanted) < 60); }""",
            arg=expected,
        )
        assert page.locator(".row").count() < most
    assert page.evaluate("document.querySelectorAll('*').length") < 2_500


def test_ten_thousand_turns(watch: Watch, large: Path) -> None:
    asked: list[str] = []
    with serve(large) as view:
        watch.page.on("request", lambda request: asked.append(request.url))
        page = watch.open(view.url)
        walked(watch)
        page.keyboard.press("/")
        page.keyboard.type("a needle in")
        page.wait_for_selector(".found:has-text('1 turn found')")
        watch.until("!document.querySelector('.found').innerText.includes('searched')")
        for _ in range(20):
            # A key that comes while the list is drawn goes nowhere. There is one turn to go to.
            page.keyboard.press("Enter")
            # playwright is not imported where it is missing, so its error has no name here.
            with suppress(Exception):
                page.wait_for_selector("h2:text-is('Turn 49')", timeout=3_000)
                break
        page.wait_for_selector("h2:text-is('Turn 49')")
        page.keyboard.press("Escape")
        page.wait_for_selector(".row.selected:has-text('a needle')")
        page.fill("input[type=search]", "is:error")
        page.wait_for_selector(".found:has-text('103 turns found')")
        watch.open(view.link("t_00007777"))
        page.wait_for_selector(".row.selected:has-text('echo step 7777')")
        watch.shot("large")
    watch.clean()
    # Bodies are asked for where they are looked at: a page in sight at a time, never the whole loom.
    bodies = [url for url in asked if "/api/turn?" in url]
    assert len(bodies) < 20
    lines = [url for url in asked if "/api/rows?" in url]
    assert all(url.count("%2C") < 200 for url in lines)


def test_frames_while_scrolling_do_bounded_work(watch: Watch, large: Path) -> None:
    """What a frame costs is what it changes: rows come and go by the dozen, and elements are used again."""
    with serve(large) as view:
        page = watch.open(view.url)
        watch.until("document.querySelector('.sums').innerText.includes('103 errors')")
        made = page.evaluate(
            """async () => {
                const tree = document.querySelector('.tree');
                let made = 0, most = 0;
                const create = document.createElement.bind(document);
                document.createElement = (tag) => { made += 1; return create(tag); };
                for (let frame = 0; frame < 60; frame += 1) {
                    const before = made;
                    tree.scrollTop += 3 * 32;
                    await new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)));
                    most = Math.max(most, made - before);
                }
                document.createElement = create;
                return { made, most };
            }"""
        )
        # Three new rows a frame, and at times all that are in sight when their lines come in.
        assert made["most"] < 60 * 16 * 2
        assert made["made"] < 60 * 60 * 16


def test_ten_thousand_turns_in_one_file(watch: Watch, large: Path, tmp_path: Path) -> None:
    target = tmp_path / "large.html"
    assert write_html(large, target) == TURNS + 1
    watch.origin = target.as_uri()
    watch.page.goto(f"{target.as_uri()}#turn=t_00009000")
    watch.page.wait_for_selector(".row.selected:has-text('echo step 9000')")
    walked(watch)
    watch.page.keyboard.press("/")
    watch.page.keyboard.type("a needle in")
    watch.page.wait_for_selector(".found:has-text('1 turn found')")
    assert watch.errors == []


SLOW = """
name: slow
crystal:
  provider: scripted
  responses:
    - {content: step one, tool_calls: [{gate: echo, args: {text: one}}], delay_ms: 600}
    - {content: step two, tool_calls: [{gate: echo, args: {text: two}}], delay_ms: 600}
    - {content: step three, tool_calls: [{gate: echo, args: {text: three}}], delay_ms: 600}
    - {content: step four, tool_calls: [{gate: done, args: {answer: all told}}], delay_ms: 900}
circle:
  gates: [done, echo]
  wards: [{max_turns: 9}]
"""


@pytest.mark.parametrize("address", ["live.loom.jsonl", "sqlite:live.db"])
def test_live_while_a_cast_writes(watched: Callable[..., Watch], tmp_path: Path, address: str) -> None:
    where = address.replace("live", str(tmp_path / "live"))
    if not where.startswith("sqlite:"):
        with Loom.open(where) as loom:
            loom.begin("c_before", {}, {}, "e_before")
    else:
        Loom.open(where).close()
    casting = start("cast", recipe(tmp_path, SLOW), "Count to four.", "--loom", where, cwd=tmp_path)
    try:
        with serve(where) as view:
            watches = [watched(), watched(width=900)]
            for watch in watches:
                watch.origin = view.url.split("/#")[0]
                watch.page.goto(view.url)
            for watch in watches:
                page = watch.page
                page.wait_for_selector(".row.cast:has-text('Count to four.')")
                page.wait_for_selector(".row:has-text('step two')")
                page.wait_for_selector(".row:has-text('all told')")
                page.wait_for_selector(".row.cast .badge.good:text-is('done')")
                page.wait_for_selector(".sums:has-text('4 turns')")
                watch.clean()
        _, err = casting.communicate(timeout=60)
        assert casting.returncode == 0, err
    finally:
        if casting.poll() is None:
            casting.kill()
            casting.communicate()


def test_following_goes_to_what_is_new(watch: Watch, sample: Path) -> None:
    with serve(sample) as view:
        page = watch.open(view.url)
        page.wait_for_selector(".sums:has-text('12 turns')")
        page.keyboard.press("f")
        page.wait_for_selector(".follow[aria-pressed=true]")
        with Loom.open(sample) as loom:
            loom.append(
                Turn(
                    "t_newest", "t_forked", "c_sample", "e_fork", "r_fork", sequence=9, utterance=Utterance("just now")
                )
            )
            page.wait_for_selector(".row.selected:has-text('just now')")
        page.wait_for_selector(".id:text-is('t_newest')")
    page.wait_for_selector(".live.lost", state="attached")
    watch.page.wait_for_selector(".toast:has-text('the server has ended')")


def test_the_server_is_up_before_a_large_loom_is_read(large: Path) -> None:
    began = time.monotonic()
    with serve(large) as view:
        answered = time.monotonic() - began
        assert view.url
    # By far more than it takes; what matters is that it does not grow with the loom.
    assert answered < 10
