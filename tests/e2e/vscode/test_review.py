"""The review of the agent's changes in the text, in the real workbench: text that is not saved, CRLF and a byte order mark,
files that are gone, a reload, two sessions that changed the same file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.e2e.vscode.chat_project import REST, Chat, Project, call, done
from tests.e2e.vscode.workbench import Window

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("vscode-review")]

# Short enough to be in view as a whole.
LINES = [f"line {n}" for n in range(1, 31)]
LONG = "".join(f"{line}\n" for line in LINES)
MARKED = b"\xef\xbb\xbf" + LONG.replace("\n", "\r\n").encode()


def edits(when: str, path: str, *lines: int, to: str = "changed") -> Sequence[Mapping[str, Any]]:
    """The agent changes these lines of a file."""
    calls = [call("edit_file", path=path, old_text=f"line {n}\n", new_text=f"{to} {n}\n") for n in lines]
    return [{"when": when, "tool_calls": calls}, done("Changed.", when=when)]


RESPONSES = [
    *edits("Twice", "long.txt", 10, 25),
    *edits("Marked", "marked.txt", 10, 25),
    *edits("Gone", "gone.txt", 10),
    *edits("Moved", "moved.txt", 10),
    *edits("Above", "both.txt", 10),
    *edits("Below", "both.txt", 25, to="otherwise"),
    {
        "when": "Letters",
        "tool_calls": [
            call("edit_file", path=name, old_text="size 1", new_text="size 2")
            for name in ("latin.txt", "wide.txt", "typed.txt", "wrong.txt")
        ],
    },
    done("Changed.", when="Letters"),
    {"when": "Delete", "tool_calls": [call("bash", command="rm deleted.txt")]},
    done("Deleted.", when="Delete"),
    *REST,
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project.make(tmp_path_factory.mktemp("review"), RESPONSES, **{"cantrip.chat.mode": "sandboxed"})


@pytest.fixture(scope="module")
def shared_folder(project: Project) -> Path:
    return project.folder


@pytest.fixture(scope="module")
def shared_chat(shared_window: Window) -> Chat:
    return Chat(shared_window)


@pytest.fixture
def chat(window: Window, shared_chat: Chat, project: Project) -> Iterator[Chat]:
    """The chat with a new session, and the files as they were."""
    for name in ("long.txt", "gone.txt", "moved.txt", "both.txt", "deleted.txt"):
        (project.folder / name).write_text(LONG)
    (project.folder / "marked.txt").write_bytes(MARKED)
    shared_chat.find()
    new_session(window, shared_chat)
    yield shared_chat
    keep = shared_chat.frame.get_by_role("button", name="Keep all")
    if keep.is_visible():
        keep.click()


def new_session(window: Window, chat: Chat) -> None:
    before = chat.frame.locator("body").get_attribute("data-session")
    window.command("Cantrip Chat: New Session")
    chat.find()
    chat.frame.locator(f"body:not(.opening, [data-session=''], [data-session='{before}']):has(.choice)").wait_for()


def lens(window: Window, words: str) -> Locator:
    return window.page.locator(".codelens-decoration a", has_text=words)


def changed(project: Project, name: str, **lines: str) -> bool:
    """Whether a file is as it was, but for these lines: line10="…"."""
    wanted = [lines.get(line.replace(" ", ""), line) for line in LINES]
    return (project.folder / name).read_text().splitlines() == [line for line in wanted if line]


def ask(chat: Chat, words: str, count: int = 1) -> None:
    chat.say(words)
    chat.ended(count)


def put_cursor(window: Window, text: str, line: int) -> None:
    """Click into a line. Lenses that come meanwhile move the lines, so that a click may hit the line above."""
    there = window.page.locator(".statusbar-item").filter(has_text=re.compile(rf"^Ln {line}, "))
    window.until(lambda: window.lines().get_by_text(text, exact=True).click(), there)


def test_text_that_is_not_saved_stays_when_a_change_is_undone(window: Window, project: Project, chat: Chat) -> None:
    ask(chat, "Twice.")
    window.open_file("long.txt")
    expect(lens(window, "Undo")).to_have_count(2)
    put_cursor(window, "line 1", 1)
    window.page.keyboard.press("Home")
    window.page.keyboard.type("mine\n")
    expect(window.page.locator('.tab.active.dirty[data-resource-name="long.txt"]')).to_be_visible()
    # The marks have moved with the text, and the change above is undone; what was typed stays, and is saved with it.
    lens(window, "Undo").first.click()
    expect(lens(window, "Undo")).to_have_count(1)
    expect(window.page.locator('.tab.active:not(.dirty)[data-resource-name="long.txt"]')).to_be_visible()
    text = (project.folder / "long.txt").read_text()
    assert text == "mine\n" + LONG.replace("line 25\n", "changed 25\n")
    # A line that both changed is not overwritten without a question; the answer stands in the conversation.
    window.command("Cantrip Review: Next Change")
    put_cursor(window, "changed 25", 26)
    window.page.keyboard.press("End")
    window.page.keyboard.type(" by me")
    lens(window, "Undo").first.click()
    window.page.locator(".monaco-dialog-box").get_by_role("button", name="Keep Mine").click()
    chat.frame.locator(".notice", has_text="No file was restored").wait_for()
    expect(window.lines()).to_contain_text("changed 25 by me".replace(" ", "\u00a0"))
    assert (project.folder / "long.txt").read_text() == text
    window.command("File: Revert File")


def test_line_ends_and_a_byte_order_mark_stay(window: Window, project: Project, chat: Chat) -> None:
    path = project.folder / "marked.txt"
    ask(chat, "Marked.")
    one = MARKED.replace(b"line 25\r", b"changed 25\r")
    assert path.read_bytes() == one.replace(b"line 10\r", b"changed 10\r")
    window.open_file("marked.txt")
    expect(lens(window, "Undo")).to_have_count(2)
    # Each lens stands above its line.
    expect(lens(window, "+1 −1")).to_have_count(2)
    lens(window, "Undo").first.click()
    expect(lens(window, "Undo")).to_have_count(1)
    assert path.read_bytes() == one
    # With text that is not saved, the editor writes the file.
    window.lines().click()
    window.page.keyboard.press("Control+Home")
    window.page.keyboard.press("End")
    window.page.keyboard.type(", mine")
    lens(window, "Undo").first.click()
    expect(lens(window, "Undo")).to_have_count(0)
    expect(window.page.locator('.tab.active:not(.dirty)[data-resource-name="marked.txt"]')).to_be_visible()
    assert path.read_bytes() == MARKED.replace(b"line 1\r", b"line 1, mine\r")


def test_letters_of_other_encodings_and_text_that_is_not_saved(window: Window, project: Project, chat: Chat) -> None:
    """Two files that are not open, one in the editor with a mark, CRLF and unsaved text, and one that the editor shows wrong."""
    latin = "# café\nsize 1\nGrüße\n".encode("latin-1")
    wide = b"\xff\xfe" + "# café 日本\r\nsize 1\r\n".encode("utf-16-le")
    typed = b"\xef\xbb\xbf" + "top\r\n# café 日本\r\nsize 1\r\n".encode()
    for name, data in {"latin.txt": latin, "wide.txt": wide, "typed.txt": typed, "wrong.txt": b"top\n" + latin}.items():
        (project.folder / name).write_bytes(data)
    for name in ("typed.txt", "wrong.txt"):
        window.open_file(name)
        window.lines().get_by_text("top", exact=True).click()
        window.page.keyboard.press("Home")
        window.page.keyboard.type("mine ")
        expect(window.page.locator(f'.tab.active.dirty[data-resource-name="{name}"]')).to_be_visible()
    ask(chat, "Letters.")
    assert (project.folder / "latin.txt").read_bytes() == latin.replace(b"size 1", b"size 2")
    assert (project.folder / "wide.txt").read_bytes() == wide.replace("1".encode("utf-16-le"), "2".encode("utf-16-le"))
    assert (project.folder / "typed.txt").read_bytes() == typed.replace(b"top", b"mine top").replace(
        b"size 1", b"size 2"
    )
    # Refused: a save of the editor would write other letters over the file.
    assert (project.folder / "wrong.txt").read_bytes() == b"top\n" + latin
    window.open_file("wrong.txt")
    expect(window.page.locator('.tab.active.dirty[data-resource-name="wrong.txt"]')).to_be_visible()
    window.command("File: Revert File")


def test_files_that_are_gone_do_not_stop_the_review(window: Window, project: Project, chat: Chat) -> None:
    strip = chat.frame.locator(".changed .strip-bar .toggle")
    for number, words in enumerate(("Delete.", "Gone.", "Moved.", "Twice."), 1):
        ask(chat, words, number)
    expect(strip).to_contain_text("4 files changed")
    (project.folder / "gone.txt").unlink()
    window.open_file("moved.txt")
    expect(lens(window, "Undo")).to_have_count(1)
    (project.folder / "moved.txt").rename(project.folder / "elsewhere.txt")
    # Next and Previous Change go over what is there, by the buttons above the list too.
    tab = window.page.locator('.tab.active[data-resource-name="long.txt"]')
    chat.frame.get_by_role("button", name="Next change").click()
    tab.wait_for()
    for _ in range(3):
        chat.frame.get_by_role("button", name="Previous change").click()
    expect(tab).to_be_visible()
    expect(window.page.locator(".notification-toast", has_text="Cantrip:")).to_have_count(0)
    window.shot("review-gone")


def test_a_reload_keeps_the_review(window: Window, project: Project, chat: Chat) -> None:
    ask(chat, "Twice.")
    window.open_file("long.txt")
    expect(lens(window, "Undo")).to_have_count(2)
    window.reload()
    window.page.wait_for_selector(".monaco-workbench")
    chat.find()
    expect(lens(window, "Undo")).to_have_count(2)
    lens(window, "Undo").first.click()
    expect(lens(window, "Undo")).to_have_count(1)
    assert changed(project, "long.txt", line25="changed 25")


def test_two_sessions_change_one_file(window: Window, project: Project, chat: Chat) -> None:
    ask(chat, "Above.")
    new_session(window, chat)
    ask(chat, "Below.")
    window.open_file("both.txt")
    expect(lens(window, "Undo")).to_have_count(2)
    lens(window, "Undo").first.click()
    expect(lens(window, "Undo")).to_have_count(1)
    assert changed(project, "both.txt", line25="otherwise 25")
    # The session that is shown has its change still.
    expect(chat.frame.locator(".changed .strip-bar .toggle")).to_contain_text("1 file changed")
    lens(window, "Undo").first.click()
    expect(lens(window, "Undo")).to_have_count(0)
    assert changed(project, "both.txt")
