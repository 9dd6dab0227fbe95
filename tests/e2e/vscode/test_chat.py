"""The chat in the real workbench: an edit that is asked for and allowed, stop, fork, slash commands, sessions after a reload."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.vscode.chat_project import BETTER, EDITING, GREET, REST, Chat, Project, call, done
from tests.e2e.vscode.workbench import Window, Workbench

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("vscode")]

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # a picture of one point


WRITING = [
    {"when": "my notes", "tool_calls": [call("read_file", path="notes.md")]},
    {"when": "my notes", "tool_calls": [call("edit_file", path="notes.md", old_text="typed", new_text="agreed")]},
    done("Done.", when="my notes"),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project.make(tmp_path_factory.mktemp("chat"), (*EDITING, *WRITING, *REST))


@pytest.fixture(scope="module")
def shared_folder(project: Project) -> Path:
    return project.folder


@pytest.fixture(scope="module")
def shared_chat(shared_window: Window) -> Chat:
    return Chat(shared_window)


@pytest.fixture
def chat(window: Window, shared_chat: Chat, project: Project) -> Chat:
    """The chat with a new session, and the files as they were."""
    (project.folder / "greet.py").write_text(GREET)
    (project.folder / "notes.md").write_text("# Notes\n")
    window.command("Cantrip Chat: New Session")
    shared_chat.find()
    expect(shared_chat.frame.locator(".user-item")).to_have_count(0)
    return shared_chat


def test_an_edit_is_shown_allowed_and_made(window: Window, project: Project, chat: Chat) -> None:
    window.shot("chat-empty")
    chat.say("Make greet return its text.")
    frame = chat.frame
    frame.wait_for_selector(".question")
    assert "Return the text" in frame.locator(".plan").inner_text()
    assert frame.locator(".row.removed .text").inner_text().strip() == 'print("Hello, " + name)'
    assert frame.locator(".row.added .text").inner_text().rstrip() == BETTER.rstrip()
    expect(window.page.locator(".statusbar-item").filter(has_text="Cantrip asks")).to_be_visible()
    assert BETTER not in project.greet
    # The change in the editor's own diff editor.
    frame.click(".open-diff")
    window.page.locator(".monaco-diff-editor .line-insert").first.wait_for()
    window.shot("chat-permission")
    # It is answered there, where it is read; once.
    window.page.locator(".editor-actions").get_by_role("button", name="Allow This Change").click()
    expect(window.page.locator(".editor-actions").get_by_role("button", name="Allow This Change")).to_have_count(0)
    # The exact command is shown before it runs.
    frame.locator(".asks .code-block", has_text="python3 greet.py && echo it runs").wait_for()
    assert BETTER in project.greet
    window.shot("chat-command")
    chat.input.press("Alt+a")
    chat.ended()
    assert "it runs" in frame.locator(".terminal").inner_text() or frame.locator(".terminal").is_hidden()
    assert frame.locator(".markdown table").count() == 1
    window.shot("chat-answer")
    # A place that is named leads there.
    frame.locator('.agent-item a:text-is("greet.py")').click()
    window.page.locator('.tab.active[data-resource-name="greet.py"]').wait_for()
    expect(window.page.locator(".editor-instance .view-lines:visible").first).to_contain_text("{name}!")


def test_what_is_not_saved_is_seen_and_what_is_written_can_be_undone(
    window: Window, project: Project, chat: Chat
) -> None:
    window.open_file("notes.md")
    window.page.locator(".editor-instance .view-lines").first.click()
    window.page.keyboard.press("Control+End")
    window.page.keyboard.type("typed")
    chat.say("Look at my notes.")
    chat.frame.wait_for_selector(".question")
    assert (project.folder / "notes.md").read_text() == "# Notes\n"
    chat.answer()
    chat.ended()
    assert (project.folder / "notes.md").read_text() == "# Notes\nagreed"
    window.page.locator(".editor-instance .view-lines").first.click()
    window.page.keyboard.press("Control+z")
    expect(window.page.locator(".view-lines").first).to_contain_text("typed")
    # The next test closes this editor, which would ask about what is not saved.
    window.page.keyboard.press("Control+S")
    expect(window.page.locator(".tab.dirty")).to_have_count(0)


def test_a_stop_fork_command_and_reload(window: Window, chat: Chat) -> None:
    frame = chat.frame
    # Typed in part, completed by Tab.
    chat.input.press_sequentially("/war")
    frame.locator(".suggestion", has_text="/wards").wait_for()
    window.shot("chat-slash")
    chat.input.press("Tab")
    chat.input.press("Enter")
    frame.locator(".markdown", has_text="max_turns").wait_for()

    chat.say("Something.")
    chat.ended(1)
    chat.say("Please count.")
    frame.wait_for_selector(".question")
    chat.answer()
    frame.locator(".terminal", has_text="line 1").wait_for()
    expect(window.page.locator(".statusbar-item").filter(has_text="Cantrip is working")).to_be_visible()
    begun = time.monotonic()
    frame.click(".send.stop")
    frame.locator(".end", has_text="Stopped").wait_for()
    assert time.monotonic() - begun < 10
    # Nothing failed: the user stopped it.
    expect(frame.locator(".status.stopped")).to_have_count(1)
    assert frame.locator(".status.failed, .exit").count() == 0
    window.shot("chat-stopped")

    # From the first answer; what came after it is not in the fork.
    frame.locator(".fork").first.click()
    frame.locator(".notice", has_text="A fork").wait_for()
    assert "Please count." not in chat.words()
    chat.say("And otherwise?")
    frame.locator(".agent-item", has_text="Another answer.").wait_for()

    window.page.reload()
    window.page.wait_for_selector(".monaco-workbench")
    chat.find()
    chat.frame.locator(".agent-item", has_text="Another answer.").wait_for()
    window.command("Cantrip Chat: Show Sessions")
    chat.frame.locator(".session").nth(1).wait_for()
    window.shot("chat-sessions")
    chat.frame.locator(".session:not(.current) .open").first.click()
    chat.frame.locator(".user-item", has_text="Please count.").wait_for()
    chat.say("And now?")
    chat.frame.locator(".agent-item", has_text="Fine.").nth(1).wait_for()


def test_a_mode_a_crystal_and_what_it_cost(window: Window, project: Project, chat: Chat) -> None:
    frame = chat.frame
    mode = frame.locator('.choice[data-category="mode"] select')
    mode.select_option("trusted")
    expect(frame.locator('.choice[data-category="mode"] .value')).to_have_text("Don't ask")
    # Nothing is asked in that mode.
    chat.say("Make greet return its text.")
    chat.ended()
    assert frame.locator(".question").count() == 0
    assert BETTER in project.greet
    expect(frame.locator(".usage")).to_contain_text("$0.02")
    # The picker has the crystals of this machine.
    frame.locator('.choice[data-category="model"]').click()
    frame.locator(".picker-row").first.wait_for()
    assert (frame.locator('.picker-row[aria-selected="true"]').get_attribute("data-value") or "").startswith("scripted")
    window.shot("chat-mode-cost")


def test_files_selections_and_pictures_go_with_a_message(
    workbench: Workbench, tmp_path: Path, windows: Callable[..., Window]
) -> None:
    project = Project.make(tmp_path, REST)
    window = windows(workbench, project.folder)
    window.open_file("greet.py")
    window.page.locator(".editor-instance .view-lines").first.click()
    window.page.keyboard.press("Control+Home")
    window.page.keyboard.press("Shift+ArrowDown")
    window.page.keyboard.press("Shift+ArrowDown")
    window.command("Cantrip: Ask Cantrip About the Selection")
    chat = Chat(window)
    chat.frame.locator(".composer .chip", has_text="greet.py:1-2").wait_for()
    chat.input.press_sequentially("What is this, and @not")
    chat.frame.locator(".suggestion", has_text="notes.md").first.wait_for()
    window.shot("chat-mention")
    chat.input.press("Enter")
    chat.frame.evaluate(
        """(DOT) => {
          const png = Uint8Array.from(atob(DOT), (c) => c.charCodeAt(0))
          const data = new DataTransfer()
          data.items.add(new File([png], 'dot.png', { type: 'image/png' }))
          const paste = new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })
          document.querySelector('textarea').dispatchEvent(paste)
        }""",
        DOT,
    )
    chat.frame.locator(".composer .chip", has_text="dot.png").wait_for()
    chat.input.press("Enter")
    chat.ended()
    said = chat.frame.locator(".user-item")
    assert said.locator(".chip").all_inner_texts() == ["greet.py:1-2", "notes.md"]
    assert said.locator("img").count() == 1
    looms = list((tmp_path / "state").rglob("*.loom.jsonl"))
    told = looms[0].read_text()
    assert "def greet(name)" in told
    assert "# Notes" in told
