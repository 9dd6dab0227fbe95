"""The page of a batch in a real browser, from a file: what it shows, filters, sorts and links to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_acp import Loom
from cantrip_acp.tuplespace.receipts import make_receipt
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.tuples import Pattern, new_tuple, now_iso
from tests.support.browser import Watch
from tests.support.command_line import run
from tests.support.tuples import acknowledge

pytestmark = pytest.mark.timeout(400)
Watched = Callable[..., Watch]

RECIPE = """\
name: review
crystal:
  provider: scripted
  responses:
    - {when: broken, error: {message: "the provider refused the request"}, repeat: true}
    - {when: endless, content: hm, tool_calls: [{gate: echo, args: {text: x}}], repeat: true}
    - when: search
      tool_calls: [{gate: done, args: {answer: "Two bugs in feature/search: an index from 1, and a lost lock."}}]
      usage: {prompt_tokens: 900, completion_tokens: 80, cost: 0.02}
      repeat: true
    - tool_calls: [{gate: done, args: {answer: "No bug found."}}]
      usage: {prompt_tokens: 300, completion_tokens: 20, cost: 0.004}
      repeat: true
circle: {medium: conversation, gates: [done, echo], wards: [{max_turns: 2}]}
"""
INTENTS = [
    "Review the change in feature/login.",
    {"intent": "Review the change in feature/search.", "id": "search"},
    "This one is broken.",
    {"intent": "An endless one <img src=x onerror=alert(1)></script>", "id": "endless"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A batch with successes, failures and rewards, and its page."""
    folder = tmp_path_factory.mktemp("batch")
    (folder / "review.cantrip.yaml").write_text(RECIPE)
    (folder / "intents.jsonl").write_text("".join(json.dumps(each) + "\n" for each in INTENTS))
    env = {"CANTRIP_STATE_DIR": str(folder / "state")}
    words = [
        "cast-batch",
        "review.cantrip.yaml",
        "intents.jsonl",
        "--samples",
        "2",
        "--max-retries",
        "0",
        "--loom",
        "work.loom.jsonl",
    ]
    done = run(*words, "--json", cwd=folder, **env)
    assert done.status == 1, done.err
    with Loom.open(folder / "work.loom.jsonl") as loom:
        for number, row in enumerate(each for each in done.lines if each["state"] == "done"):
            leaf = loom.last_turn(row["cast"]["entity_id"])
            assert leaf is not None
            loom.annotate_reward(leaf, 0.25 * number, by="test")
    again = run(*words, "--report", "results.html", cwd=folder, **env)
    assert again.status == 1, again.err
    return folder


def opened(watch: Watch, file: Path) -> Watch:
    watch.origin = "file://"
    watch.page.goto(file.as_uri())
    watch.page.wait_for_selector(".cast-row.selected")
    return watch


def column(watch: Watch, number: int) -> list[str]:
    return [row.locator("> *").nth(number).inner_text() for row in watch.page.locator(".cast-row").all()]


def sort(watch: Watch, key: str) -> None:
    watch.page.click(f".columns [data-key={key}]")


def test_results_rewards_and_costs(watched: Watched, folder: Path) -> None:
    watch = opened(watched(), folder / "results.html")
    page = watch.page
    assert page.title() == "review · batch"
    sums = page.inner_text(".sums")
    for part in ("8 casts", "4 failed", "$0.048", "mean reward"):
        assert part in sums
    assert sorted(column(watch, 0)) == ["done"] * 4 + ["failed"] * 4
    assert "search: Review the change in feature/search." in column(watch, 1)
    assert any("Two bugs" in text for text in column(watch, 3))
    assert sorted(filter(None, column(watch, 4))) == ["+0.25", "+0.5", "+0.75", "0"]
    page.click(".cast-row:has-text('search') >> nth=0")
    details = page.inner_text(".details")
    for part in ("Two bugs in feature/search", "$0.02", "980", "done", "cantrip loom view", "cantrip tuple rd sha256:"):
        assert part in details
    assert "null" not in page.inner_text("#app")
    watch.shot("batch-page")
    watch.clean()


def test_the_heads_stand_above_their_columns(watched: Watched, folder: Path) -> None:
    watch = opened(watched(), folder / "results.html")
    edges = "selector => [...document.querySelector(selector).children].map(e => Math.round(e.getBoundingClientRect().right))"
    heads, cells = (watch.page.evaluate(edges, selector) for selector in (".columns", ".cast-row"))
    numbers = (2, 4, 5, 6, 7)
    assert [heads[n] for n in numbers] == [cells[n] for n in numbers]


def test_filters_and_sorting(watched: Watched, folder: Path) -> None:
    watch = opened(watched(), folder / "results.html")
    page = watch.page
    sort(watch, "usd")
    costs = column(watch, 5)
    assert [cost for cost in costs if cost] == ["$0.0040", "$0.0040", "$0.0200", "$0.0200"]
    assert costs[-1] == ""
    sort(watch, "usd")
    # What is not known stays last.
    assert column(watch, 5)[:2] == ["$0.0200", "$0.0200"]
    assert column(watch, 5)[-1] == ""
    sort(watch, "usd")
    sort(watch, "reward")
    assert column(watch, 4)[:4] == ["0", "+0.25", "+0.5", "+0.75"]
    page.select_option(".filter", "failed")
    assert set(column(watch, 0)) == {"failed"}
    assert "4 casts found" in page.inner_text(".found")
    page.fill("input[type=search]", "refused")
    watch.until("document.querySelectorAll('.cast-row').length === 2")
    page.click(".cast-row >> nth=0")
    assert "2 ×" in page.inner_text(".reasons")
    page.keyboard.press("Escape")
    watch.until("document.querySelectorAll('.cast-row').length === 8")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    watch.clean()


def test_each_cast_leads_to_its_thread(watched: Watched, folder: Path) -> None:
    watch = opened(watched(), folder / "results.html")
    page = watch.page
    page.click(".cast-row:has-text('search') >> nth=0")
    page.click("a.thread")
    page.wait_for_selector(".row.selected")
    page.wait_for_selector("text=Two bugs in feature/search")
    assert re.search(r"/results-looms/0-work\.html#turn=t_", page.url)
    watch.clean()


def test_light_and_dark_and_narrow(watched: Watched, folder: Path) -> None:
    dark = opened(watched(scheme="dark"), folder / "results.html")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert dark.page.evaluate(ground) == "rgb(20, 23, 28)"
    dark.shot("batch-page-dark")
    dark.page.keyboard.press("t")
    assert dark.page.evaluate(ground) == "rgb(255, 255, 255)"
    narrow = opened(watched(width=400, height=700), folder / "results.html")
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= 400
    narrow.page.click(".cast-row >> nth=1")
    narrow.page.wait_for_selector(".details .facts")
    narrow.shot("batch-page-narrow")
    narrow.page.click(".back")
    narrow.page.wait_for_selector(".cast-row")
    dark.clean()
    narrow.clean()


def test_many_tuples_that_wait_run_and_are_done(watched: Watched, tmp_path: Path) -> None:
    store = open_store(tmp_path / "space.db")
    works = [new_tuple("build", [{"yool": "a.b", "args": {"intent": f"Number {n}"}}]) for n in range(20_000)]
    store.put(works)
    for claim in store.claim(Pattern(), "w", lease_s=60, count=200)[:150]:
        now = now_iso()
        acknowledge(
            store,
            claim,
            make_receipt(
                yool="a.b",
                tuple_id=claim.work.id,
                started_at=now,
                ended_at=now,
                exit=0,
                cost={"usd": 1.0},
                result={"a": 1},
            ),
        )
    store.close()
    done = run("tuple", "report", "--lane", "build", "--space", "space.db", "--out", "page.html", cwd=tmp_path)
    assert (done.status, done.out) == (0, "page.html  20,000 tuples\n")
    watch = opened(watched(), tmp_path / "page.html")
    assert "20,000 casts" in watch.page.inner_text(".sums")
    assert watch.page.locator(".cast-row").count() < 100
    watch.page.select_option(".filter", "claimed")
    assert "50 casts found" in watch.page.inner_text(".found")
    watch.clean()
    assert run("tuple", "report", "--lane", "no", "--space", "space.db", "--out", "no.html", cwd=tmp_path).status == 1
    shown = run("tuple", "report", "--json", "--no-looms", "--space", "space.db", "--out", "no.html", cwd=tmp_path)
    assert shown.lines == [{"file": "no.html", "tuples": 20_000}]


def test_a_loom_that_is_gone_is_said(watched: Watched, folder: Path, tmp_path: Path) -> None:
    env = {"CANTRIP_STATE_DIR": str(folder / "state")}
    loom = folder / "work.loom.jsonl"
    loom.rename(tmp_path / "elsewhere.loom.jsonl")
    try:
        assert run("tuple", "report", "--out", str(tmp_path / "page.html"), cwd=folder, **env).status == 0
    finally:
        (tmp_path / "elsewhere.loom.jsonl").rename(loom)
    watch = opened(watched(), tmp_path / "page.html")
    assert "1 loom could not be read" in watch.page.inner_text(".damage")
    assert watch.page.locator("a.thread").count() == 0
    watch.clean()


SUITE = """\
recipe: review.cantrip.yaml
checks: [reference: includes]
tasks:
  - {name: search, intent: Review the change in feature/search., reference: two bugs}
  - {name: login, intent: "Review <img src=x onerror=alert(1)> the login.", reference: </script><b>three bugs}
"""


def test_a_cell_of_an_evaluation_opens_its_thread(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "review.cantrip.yaml").write_text(RECIPE)
    (tmp_path / "suite.yaml").write_text(SUITE)
    env = {"CANTRIP_STATE_DIR": str(tmp_path / "state")}
    done = run("eval", "suite.yaml", "--out", "out", cwd=tmp_path, **env)
    assert done.status == 1, done.err
    assert run("eval", "suite.yaml", "--out", "two", "--samples", "2", cwd=tmp_path, **env).status == 1
    watch = watched()
    watch.origin = "file://"
    page = watch.page
    page.goto((tmp_path / "out/report.html").as_uri())
    assert page.title() == f"Evaluation of {tmp_path.name}"
    assert "50% [9%, 91%]" in page.inner_text("body")
    # What the model and the suite say is text.
    assert "</script><b>three bugs" in page.inner_text("body")
    watch.shot("evaluation-page")
    page.click("a.failed:has-text('0/1')")
    page.wait_for_selector(".row.selected")
    assert "No bug found." in page.inner_text("#app")
    # With several samples the cell leads to their list.
    page.goto((tmp_path / "two/report.html").as_uri())
    page.click("a.passed:has-text('2/2')")
    assert page.url.endswith("#c0-0")
    page.click("#c0-0 + table a >> nth=1")
    page.wait_for_selector(".row.selected")
    assert "Two bugs in feature/search" in page.inner_text("#app")
    watch.clean()
