"""Recipes and looms in the real workbench: a mistake is marked and mended; a cast from its lens, its loom that grows in the
tree, the viewer in a frame, a fork, a reward."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.vscode.conftest import RECIPE
from tests.e2e.vscode.workbench import BIN, Window

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("vscode")]


SLOW = (
    "name: slow\ncrystal: {provider: scripted, responses: [{content: Late., delay_ms: 60000}]}\n"
    "circle: {medium: conversation, gates: [done], wards: [{max_turns: 2}]}\n"
)


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("looms")
    folder = home / "project"
    (folder / ".vscode").mkdir(parents=True)
    (folder / ".vscode/settings.json").write_text(json.dumps({"cantrip.stateDir": str(home / "state")}))
    (folder / "greeter.cantrip.yaml").write_text(RECIPE)
    (folder / "slow.cantrip.yaml").write_text(SLOW)
    return folder


def test_cast_watch_view_fork_and_reward(window: Window) -> None:
    window.open_file("greeter.cantrip.yaml")
    window.lens("▶ Cast: Say hello.").wait_for()
    window.view("Cantrip")
    expect(window.page.get_by_text("Nothing has run yet")).to_be_visible()
    window.lens("▶ Cast: Say hello.").click()

    # While the entity is at work the tree grows, and the notification tells of it.
    expect(window.rows("active").first).to_be_visible()
    expect(window.notification("Casting greeter")).to_be_visible()
    first = window.rows("echo: thinking of a greeting").first
    first.wait_for()
    window.shot("loom-growing")
    second = window.rows("done: Hello, world.").first
    second.wait_for()
    told = window.notification("greeter: Hello, world.")
    expect(told).to_contain_text("2 turns")
    expect(window.lens("✓ done: Hello, world. · 2 turns")).to_be_visible()
    window.shot("cast-done")

    # The viewer, in a frame, over whichever way this window reaches the machine.
    window.press(told, "Open Record")
    viewer = window.frame(".row.selected")
    assert "token" not in viewer.url
    second.click()
    window.frame('.row.selected:has-text("Hello, world.")')
    window.shot("loom-viewer")

    # A fork of the first turn is another cast of the same loom.
    asked = window.page.locator(".quick-input-widget:visible")
    window.row_button(first, "Fork Here…", asked)
    window.answer("Say it louder.")
    window.page.locator(".quick-input-list .monaco-list-row").filter(has_text="greeter.cantrip.yaml").wait_for()
    window.shot("loom-fork-asks")
    window.pick("greeter.cantrip.yaml")
    expect(window.rows("Say it louder.")).to_contain_text("fork")
    window.notification("The fork:").wait_for()
    expect(window.rows(re.compile("Say it louder.*done"))).to_be_visible()
    window.shot("loom-forked")

    # A reward shows in the tree and in the loom.
    window.row_button(second, "Reward…", asked)
    window.pick("A number")
    window.answer("0.75")
    window.answer("friendly")
    expect(window.rows("reward 0.75")).to_be_visible()
    [loom] = (window.folder.parent / "state" / "looms").glob("*.loom.jsonl")
    records = [json.loads(line) for line in loom.read_text().splitlines()]
    assert [(r["reward"], r["note"]) for r in records if r["type"] == "reward"] == [(0.75, "friendly")]
    forks = [r for r in records if r["type"] == "fork"]
    assert len(forks) == 1


def test_a_loom_of_the_folder_opens_as_text_and_in_the_viewer(window: Window, tmp_path: Path) -> None:
    quick, loom = tmp_path / "quick.cantrip.yaml", window.folder / "hello.loom.jsonl"
    quick.write_text(RECIPE.replace("1500", "1"))
    done = subprocess.run(
        [BIN / "cantrip", "cast", quick, "Say hello.", "--loom", loom], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    # As text by default, with lenses; a large file is never forced into a page.
    window.open_file("hello.loom.jsonl")
    window.lens("Fork here").wait_for()
    window.shot("loom-text")
    window.lens("Open in viewer").click()
    window.frame(".row.selected")
    expect(window.page.locator('.tab.active[data-resource-name="hello.loom.jsonl"]')).to_be_visible()


def test_cast_with_words_and_cancel(window: Window) -> None:
    window.open_file("slow.cantrip.yaml")
    window.lens("Cast with…").click()
    window.answer("Take your time.")
    told = window.notification("Casting slow")
    told.wait_for()
    window.press(told, "Cancel")
    expect(window.notification("cancelled")).to_be_visible()
    window.lens("cancelled").wait_for()


def test_a_mistake_is_marked_and_mended(window: Window, shared_folder: Path) -> None:
    recipe = shared_folder / "broken.cantrip.yaml"
    recipe.write_text("name: broken\ncircle:\n  medium: bash\n  gates: [done]\n  wardz:\n    - {max_turns: 3}\n")
    window.open_file("broken.cantrip.yaml")
    window.squiggle().wait_for()
    rows = window.problems()
    expect(rows.filter(has_text="wardz").first).to_be_visible()
    window.shot("recipe-diagnostic")
    # Not on the rule's name, which is a link to what it means.
    rows.filter(has_text="wardz").first.click(position={"x": 120, "y": 11})
    # The list may keep the focus: Ctrl+1 gives it to the editor.
    window.page.keyboard.press("Control+1")
    window.page.locator(".monaco-editor.focused").wait_for()
    window.page.keyboard.press("Control+.")
    action = window.page.locator(".action-widget .monaco-list-row").filter(has_text=re.compile("wards")).first
    action.wait_for()
    window.shot("recipe-quick-fix")
    expect(action).to_have_class(re.compile("focused"))
    window.page.keyboard.press("Enter")
    expect(window.squiggle()).to_have_count(0)
    expect(window.lines()).to_contain_text("wards:")
    window.page.keyboard.press("Control+S")
    for _ in range(100):
        if "  wards:\n" in recipe.read_text():
            break
        window.page.wait_for_timeout(100)
    assert "  wards:\n" in recipe.read_text()


def test_what_sessions_know_is_a_tree_with_tokens(window: Window, shared_folder: Path) -> None:
    (shared_folder / "AGENTS.md").write_text("Ports begin at 4000.\n")
    (shared_folder / "docs").mkdir()
    (shared_folder / "docs" / "CLAUDE.md").write_text("Short sentences about herrings.\n")
    # Trees draw only the rows that have room.
    looms, header = (window.page.locator(".pane-header").filter(has_text=name) for name in ("Records", "Knowledge"))
    if not looms.is_visible():
        # A click on the view that is shown would hide it.
        window.view("Cantrip")
    looms.click()
    header.click()
    expect(window.rows("Every session reads")).to_contain_text("of 16,000 tokens")
    window.expand(window.rows(re.compile("^documents")))
    document = window.rows(re.compile(r"^AGENTS\.md"))
    expect(document).to_contain_text("tokens")
    # A fact of the user; it is read from now on.
    window.command("Cantrip Knowledge: Remember…")
    window.answer("Answer in French.")
    window.pick("In this folder")
    culture = window.rows(re.compile("^culture of this project"))
    expect(culture).to_have_attribute("aria-expanded", "false")
    window.expand(culture)
    expect(window.rows("Answer in French.")).to_be_visible()
    # What is only found is pinned, and then every session reads it.
    window.expand(window.rows("Found when needed"))
    nested = window.rows(re.compile("^nested"))
    window.row_button(nested, "Let Every Session Read It", window.rows(re.compile("^nested.*pinned")))
    window.shot("knowledge")
    # A document opens as its file; what has no file, as a text that cannot be changed.
    window.until(
        lambda: document.click(timeout=3_000), window.page.locator('.tab.active[data-resource-name="AGENTS.md"]')
    )
    window.command("Cantrip Knowledge: Search…")
    window.answer("french")
    window.pick("Answer in French.")
    expect(window.page.locator(".tab.active").filter(has_text="Answer in French.")).to_be_visible()
    # The tab is there before its text is drawn.
    expect(window.lines()).to_have_text("Answer in French.")
    header.click()
    looms.click()
