"""A recipe in the real workbench: what is wrong is marked, mended by its fix, and what is right is cast from its lens."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.vscode.workbench import Window, Workbench

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("vscode")]


def test_a_mistake_is_marked_and_mended(workbench: Workbench, folder: Path, windows: Callable[..., Window]) -> None:
    recipe = folder / "broken.cantrip.yaml"
    recipe.write_text("name: broken\ncircle:\n  medium: bash\n  gates: [done]\n  wardz:\n    - {max_turns: 3}\n")
    window = windows(workbench, folder)
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
    assert "  wards:" in window.text()
    window.page.keyboard.press("Control+S")
    for _ in range(100):
        if "  wards:\n" in recipe.read_text():
            break
        window.page.wait_for_timeout(100)
    assert "  wards:\n" in recipe.read_text()
