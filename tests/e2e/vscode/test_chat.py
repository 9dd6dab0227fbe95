"""The chat in the real workbench: edits, questions, stop, fork, slash commands, sessions and questions after a reload, errors."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.vscode.chat_project import BETTER, EDITING, GREET, REST, Chat, Project, call, done
from tests.e2e.vscode.workbench import Window

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("vscode")]

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # a picture of one point


WRITING = [
    {"when": "my notes", "tool_calls": [call("read_file", path="notes.md")]},
    {"when": "my notes", "tool_calls": [call("edit_file", path="notes.md", old_text="typed", new_text="agreed")]},
    done("Done.", when="my notes"),
]


LONG = "".join(f"line {n}\n" for n in range(1, 81))
WORK = [
    {"tool_calls": [call("edit_file", path="long.txt", old_text="line 60\n", new_text="line sixty\n")]},
    {"tool_calls": [call("bash", command="echo it fails; exit 4")]},
    {"tool_calls": [call("edit_file", path="long.txt", old_text="line 70\n", new_text="line seventy\n")]},
    done("Done."),
]
FAILING = [
    {"error": {"status": 401, "message": "invalid x-api-key"}},
    {"error": {"message": "no connection, or it was lost: refused"}},
    done("It works now."),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    work = ({"when": "Do the work", **each} for each in WORK)
    failing = ({"when": "Hello", **each} for each in FAILING)
    project = Project.make(tmp_path_factory.mktemp("chat"), (*EDITING, *WRITING, *work, *failing, *REST))
    (project.folder / "long.txt").write_text(LONG)
    return project


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


def test_files_selections_and_pictures_go_with_a_message(window: Window, project: Project, chat: Chat) -> None:
    window.open_file("greet.py")
    window.page.locator(".editor-instance .view-lines").first.click()
    window.page.keyboard.press("Control+Home")
    window.page.keyboard.press("Shift+ArrowDown")
    window.page.keyboard.press("Shift+ArrowDown")
    window.command("Cantrip: Ask Cantrip About the Selection")
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
    looms = (project.folder.parent / "state").rglob("*.loom.jsonl")
    [loom] = [text for text in map(Path.read_text, looms) if "What is this" in text]
    assert "def greet(name)" in loom
    assert "# Notes" in loom


def test_a_reload_keeps_what_was_shown(window: Window, chat: Chat) -> None:
    chat.say("Do the work.")
    chat.answer()
    expect(chat.frame.locator(".question .words")).to_have_text("Run this command?")
    chat.answer()
    expect(chat.frame.locator(".question .words")).to_have_text("Make this edit?")
    numbers = chat.frame.locator(".change").first.locator(".number").all_inner_texts()
    assert numbers == ["57", "58", "59", "60", "60", "61", "62", "63"]

    window.page.reload()
    window.page.wait_for_selector(".monaco-workbench")
    chat.find()
    frame = chat.frame
    frame.locator(".answered", has_text="Not answered. Ask again?").wait_for()
    window.shot("chat-reloaded")
    assert frame.locator(".change").first.locator(".number").all_inner_texts() == numbers
    # The command failed then, and still does.
    failed = frame.locator(".tool-item", has_text="echo it fails")
    assert failed.locator(".status.failed").count() == 1
    expect(failed).to_contain_text("Exit code 4")
    # The end is in view, with the question that was left.
    expect(frame.get_by_role("button", name="Ask again?")).to_be_in_viewport()
    frame.get_by_role("button", name="Ask again?").click()
    frame.locator(".user-item", has_text="Ask me again.").wait_for()
    frame.locator("body:not(.running)").wait_for()
    assert frame.get_by_role("button", name="Ask again?").count() == 0


def test_errors_say_what_the_user_can_do(window: Window, chat: Chat) -> None:
    chat.say("Hello.")
    frame = chat.frame
    frame.locator(".error", has_text="The key was not accepted").wait_for()
    expect(frame.get_by_role("button", name="Give a Key…")).to_be_visible()
    chat.say("Hello again.")
    frame.locator(".error", has_text="The model could not be reached").wait_for()
    window.shot("chat-errors")
    frame.get_by_role("button", name="Try Again").click()
    frame.locator(".agent-item", has_text="It works now.").wait_for()
