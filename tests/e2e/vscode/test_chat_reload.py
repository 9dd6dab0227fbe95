"""The chat after a reload of the window, and after errors: questions, diffs, outcomes, and what the user can do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.vscode.chat_project import Chat, Project, call, done
from tests.e2e.vscode.workbench import Window, Workbench

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("vscode")]

LONG = "".join(f"line {n}\n" for n in range(1, 81))
WORK = [
    {"tool_calls": [call("edit_file", path="long.txt", old_text="line 60\n", new_text="line sixty\n")]},
    {"tool_calls": [call("bash", command="echo it fails; exit 4")]},
    {"tool_calls": [call("edit_file", path="long.txt", old_text="line 70\n", new_text="line seventy\n")]},
    done("Done."),
    done("I ask again.", repeat=True),
]


def test_a_reload_keeps_what_was_shown(workbench: Workbench, tmp_path: Path, windows: Callable[..., Window]) -> None:
    project = Project.make(tmp_path, WORK)
    (project.folder / "long.txt").write_text(LONG)
    window = windows(workbench, project.folder)
    chat = Chat(window)
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


def test_errors_say_what_the_user_can_do(workbench: Workbench, tmp_path: Path, windows: Callable[..., Window]) -> None:
    failing = [
        {"error": {"status": 401, "message": "invalid x-api-key"}},
        {"error": {"message": "no connection, or it was lost: refused"}},
        done("It works now."),
    ]
    project = Project.make(tmp_path, failing)
    window = windows(workbench, project.folder)
    chat = Chat(window)
    chat.say("Hello.")
    frame = chat.frame
    frame.locator(".error", has_text="The key was not accepted").wait_for()
    expect(frame.get_by_role("button", name="Give a Key…")).to_be_visible()
    chat.say("Again.")
    frame.locator(".error", has_text="The model could not be reached").wait_for()
    window.shot("chat-errors")
    frame.get_by_role("button", name="Try Again").click()
    frame.locator(".agent-item", has_text="It works now.").wait_for()
