"""The agent as `@cantrip` in the editor's own chat, in the real workbench: an edit that is shown, allowed and made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.vscode.chatproject import BETTER, Project
from tests.vscode.workbench import Window, Workbench

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("vscode")]

DEFAULT = Path(__file__).parent / "defaultchat"
"""The editor's chat is hidden where nothing is to be asked by default; this extension stands in for what brings that."""


def test_the_participant_edits_asks_and_answers(
    workbench: Workbench, tmp_path: Path, windows: Callable[..., Window]
) -> None:
    project = Project.make(tmp_path)
    window = windows(workbench, project.folder, developing=DEFAULT)
    page = window.page
    window.command("Chat: Focus on Chat View")
    chat = page.locator(".interactive-session").first
    box = chat.locator(".interactive-input-part .monaco-editor")
    box.wait_for()
    page.keyboard.insert_text("@cantrip Make greet return its text.")
    # Known as the participant's name, not as words.
    chat.locator(".interactive-input-editor .view-line [class*=ced-chat]").first.wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    answer = chat.locator(".interactive-item-container.interactive-response").last
    expect(answer).to_contain_text("I look at the file first.")
    expect(answer).to_contain_text("Make this edit?")
    answer.get_by_role("button", name="Show the Change").first.click()
    page.locator(".monaco-diff-editor .line-insert").first.wait_for()
    window.shot("participant-asks")
    assert BETTER not in project.greet
    # The question is answered where the change is read.
    page.locator(".editor-actions").get_by_role("button", name="Allow This Change").click()
    expect(answer).to_contain_text("Run this command?")
    expect(answer.locator("code", has_text="python3 greet.py && echo it runs")).to_have_count(1)
    assert BETTER in project.greet
    # The second question's own: the first one's stays, and does nothing any more.
    expect(answer.get_by_role("button", name="Allow", exact=True)).to_have_count(2)
    answer.get_by_role("button", name="Allow", exact=True).last.click()
    responses = chat.locator(".interactive-item-container.interactive-response")
    for _ in range(600):
        if not responses.count() or responses.filter(has_text="What I did").count():
            break
        page.wait_for_timeout(100)
    if not responses.count():
        # Seen in VS Code 1.100 beside a stand-in for its default participant: its chat begins anew by itself.
        assert BETTER in project.greet
        pytest.skip("the editor's own chat lost its conversation before the answer was whole")
    expect(answer).to_contain_text("What I did")
    expect(answer.locator("table")).to_have_count(1)
    window.shot("participant-answer")

    # The conversation goes on in its session; what is offered below the answer is asked there.
    chat.get_by_role("button", name="@cantrip /cost").click()
    last = chat.locator(".interactive-item-container.interactive-response").nth(1)
    told = last.filter(has_text="tokens")
    # Seen once in VS Code 1.100: its chat fails by itself ("undefined (reading 'id')") and begins anew, with nothing in it.
    anew = chat.locator(".chat-welcome-view-container:visible")
    for _ in range(600):
        if told.count() or anew.count() or not responses.count():
            break
        page.wait_for_timeout(100)
    if not told.count() and (anew.count() or not responses.count()):
        pytest.skip("the editor's own chat lost its conversation after the first answer")
    expect(told).to_have_count(1)
    window.shot("participant-cost")
