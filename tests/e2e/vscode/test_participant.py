"""The agent as `@cantrip` in the editor's own chat, in the real workbench: an edit that is shown, allowed and made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.e2e.vscode.chat_project import BETTER, EDITING, GREET, REST, Project, call, done
from tests.e2e.vscode.workbench import Window, Workbench

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("vscode")]

DEFAULT = Path(__file__).parent / "defaultchat"
"""The editor's chat is hidden where nothing is to be asked by default; this extension stands in for what brings that."""


def ask(window: Window, words: str) -> Locator:
    """Open the editor's chat and send something to the participant. Returns the chat."""
    page = window.page
    # VS Code takes a default participant that is not registered yet for one that went away: when any other participant is
    # registered then, it shows its welcome in place of the conversation, and the end of a first answer fails.
    page.locator(".statusbar-item", has_text="Default chat is ready").wait_for()
    window.command("Chat: Focus on Chat View")
    chat = page.locator(".interactive-session").first
    chat.locator(".interactive-input-part .monaco-editor").wait_for()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(f"@cantrip {words}")
    # Known as the participant's name, not as words.
    chat.locator(".interactive-input-editor .view-line [class*=ced-chat]").first.wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    return chat


def press(answer: Locator, name: str, then: str) -> None:
    """Press the last button of that name until the text is there.

    The list draws its last row again while the answer grows, so a click may hit nothing.
    """
    for _ in range(5):
        answer.get_by_role("button", name=name, exact=True).last.click()
        with suppress(AssertionError):
            expect(answer).to_contain_text(then, timeout=5_000)
            return
    expect(answer).to_contain_text(then)


def test_the_participant_edits_asks_and_heeds_the_answers(
    workbench: Workbench, tmp_path: Path, windows: Callable[..., Window]
) -> None:
    again = [{**response, "when": "Once more"} for response in EDITING]
    asking = {
        "when": "Ask me",
        "tool_calls": [call("ask_user", question="Which **way**?", choices=["Left", "**Right**"])],
    }
    project = Project.make(tmp_path, (*EDITING, *again, asking, done("Thanks.", when="Ask me"), *REST))
    window = windows(workbench, project.folder, developing=DEFAULT)
    page = window.page
    chat = ask(window, "Make greet return its text.")
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
    press(answer, "Allow", "What I did")
    expect(answer.locator("table")).to_have_count(1)
    window.shot("participant-answer")

    # The conversation goes on in its session; what is offered below the answer is asked there.
    chat.get_by_role("button", name="@cantrip /cost").click()
    last = chat.locator(".interactive-item-container.interactive-response").nth(1)
    expect(last).to_contain_text("tokens")
    window.shot("participant-cost")

    # What is rejected is said.
    (project.folder / "greet.py").write_text(GREET)
    chat = ask(window, "Once more: greet.")
    answer = chat.locator(".interactive-item-container.interactive-response").last
    expect(answer).to_contain_text("Make this edit?")
    press(answer, "Reject", "You rejected this change.")
    expect(answer).to_contain_text("Run this command?")
    # The second question's own: the first one's stays, and does nothing any more.
    expect(answer.get_by_role("button", name="Reject", exact=True)).to_have_count(2)
    press(answer, "Reject", "You rejected this command.")
    expect(answer).to_contain_text("What I did")
    window.shot("participant-rejected")
    words = answer.inner_text()
    # Once each; nothing of what the model was told, and nothing failed.
    assert (words.count("You rejected this change."), words.count("You rejected this command.")) == (1, 1)
    assert "refused" not in words
    assert "failed" not in words
    assert BETTER not in project.greet

    # Its messages have no fields, so a question uses the editor's inputs.
    chat = ask(window, "Ask me.")
    expect(page.locator(".quick-input-title:visible")).to_have_text("Which way?")
    window.take("Right")
    expect(chat.locator(".interactive-item-container.interactive-response").last).to_contain_text("Thanks.")
    assert any('"result":"**Right**"' in loom.read_text().replace('": "', '":"') for loom in project.looms())
