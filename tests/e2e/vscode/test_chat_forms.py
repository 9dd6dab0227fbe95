"""Questions with fields for the answer in the chat's page: the keyboard, what is wrong with a value, and what stays of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.e2e.vscode.test_chat_look import faults
from tests.e2e.vscode.test_chat_page import HOST, HOSTILE, add

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("vscode-page")]

QUESTION = "How many files are **three** files? See `a.py`."


@pytest.fixture(scope="module")
def shared_page(chromium: Any, built: Path) -> Iterator[Any]:
    """One page for all tests, because to load one takes most of a test's time."""
    page = chromium.new_page(viewport={"width": 420, "height": 700})
    page.on("pageerror", lambda error: print("page:", error))
    page.set_default_timeout(60_000)
    page.set_content('<html><body><main id="chat"></main></body></html>')
    page.add_style_tag(content=(built / "chat.css").read_text())
    page.add_script_tag(content=HOST)
    page.add_script_tag(content=(built / "chat.js").read_text())
    yield page
    page.close()


@pytest.fixture(params=[300, 900])
def page(shared_page: Any, request: pytest.FixtureRequest) -> Any:
    """The page with nothing said yet, and with the focus where one types."""
    shared_page.set_viewport_size({"width": request.param, "height": 700})
    shared_page.evaluate("said.length = 0; tell({ type: 'reset', items: [], more: false, state })")
    shared_page.locator(".composer textarea").fill("my own words")
    return shared_page


def field(kind: str, name: str = "answer", label: str = "Answer", **more: Any) -> dict[str, Any]:
    return {"name": name, "label": label, "about": "", "required": True, "kind": kind, "choices": [], **more}


def choices(*titles: str, **about: str) -> list[dict[str, str]]:
    return [{"value": title.strip("*").lower(), "title": title, "about": about.get(title, "")} for title in titles]


NUMBERS = itertools.count()


def ask(page: Any, *fields: dict[str, Any], message: str = QUESTION) -> dict[str, Any]:
    """A question that is open, as the extension host tells it."""
    number = next(NUMBERS)
    item = {"type": "form", "id": f"i{number}", "form": f"f{number}", "message": message, "fields": list(fields)}
    add(page, **item, question=item["form"])
    return item


def close(page: Any, item: dict[str, Any], **how: Any) -> None:
    page.evaluate("(item) => tell({ type: 'ops', ops: [{ op: 'set', item }] })", {**item, **how})


def told(page: Any) -> list[Any]:
    """What the page told the extension host about questions."""
    return page.evaluate("said.filter((m) => /Form$|^stop$/.test(m.type))")


def test_a_choice_is_made_by_keys_and_takes_no_focus(page: Any) -> None:
    item = ask(page, field("choice", choices=choices("One", "**Three**", Many="too many")))
    composer = page.locator(".composer textarea")
    # It is announced, and nothing is taken from who types.
    expect(composer).to_be_focused()
    expect(page.locator(".hidden-words[role=status]")).to_contain_text(
        "Cantrip asks: How many files are three files? See a.py. Alt A"
    )
    question = page.locator(".form-question")
    assert question.get_attribute("aria-label") == "Cantrip asks: How many files are three files? See a.py."
    assert question.locator(".subject strong").inner_text() == "three"
    assert question.locator(".form-choice strong").inner_text() == "Three"
    composer.press_sequentially("1")
    assert told(page) == []
    # Escape in the card goes back to where one types, and does not stop the agent.
    page.keyboard.press("Alt+a")
    expect(page.locator(".form-choice").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(composer).to_be_focused()
    page.keyboard.press("Alt+a")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".form-choice").nth(1)).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    expect(page.locator(".form-choice").nth(1)).to_be_focused()
    assert told(page) == []
    page.keyboard.press("Enter")
    assert told(page) == [{"type": "answerForm", "form": item["form"], "content": {"answer": "three"}}]
    # Once.
    page.keyboard.press("Alt+a")
    page.keyboard.press("Alt+r")
    assert len(told(page)) == 1
    close(page, item, answer="answered", said="Three")
    assert page.locator(".form-item .answered").inner_text() == "You answered: Three"
    assert page.locator(".form-item strong").inner_text() == "three"
    assert page.locator(".question").count() == 0
    assert composer.input_value() == "my own words1"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_number_key_answers_and_alt_r_skips(page: Any) -> None:
    first = ask(page, field("choice", choices=choices("Left", "Right"), preset="right"))
    page.keyboard.press("Alt+a")
    # The answer that is proposed has the focus.
    expect(page.locator(".form-choice").nth(1)).to_be_focused()
    page.keyboard.press("1")
    close(page, first, answer="answered", said="Left")
    # The card that had the focus is gone.
    expect(page.locator(".composer textarea")).to_be_focused()
    second = ask(page, field("boolean"))
    assert page.locator(".form-choice .name").all_inner_texts() == ["Yes", "No"]
    page.keyboard.press("Alt+r")
    expect(page.locator(".composer textarea")).to_be_focused()
    assert told(page) == [
        {"type": "answerForm", "form": first["form"], "content": {"answer": "left"}},
        {"type": "skipForm", "form": second["form"]},
    ]


def test_a_text_is_answered_with_enter(page: Any) -> None:
    item = ask(page, field("text", least=3))
    page.keyboard.press("Alt+a")
    page.keyboard.type("no")
    page.keyboard.press("Enter")
    area = page.locator(".form-question textarea")
    expect(page.locator(".field-error")).to_have_text("Enter at least 3 characters; these are 2.")
    expect(area).to_be_focused()
    assert area.get_attribute("aria-invalid") == "true"
    assert page.locator(".field-error").get_attribute("id") in (area.get_attribute("aria-describedby") or "").split()
    assert told(page) == []
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("way")
    expect(page.locator(".field-error")).to_be_hidden()
    page.keyboard.press("Enter")
    assert told(page) == [{"type": "answerForm", "form": item["form"], "content": {"answer": "no\nway"}}]


def test_several_fields_are_a_form_that_says_what_is_wrong(page: Any) -> None:
    many = [f"Choice {n}" for n in range(12)]
    ask(
        page,
        field("text", "name", "Name", about="As in your **passport**", pattern="^[A-Z]"),
        field("text", "mail", "Mail", format="email", required=False),
        field("integer", "count", "Count", least=1, most=5, preset=2),
        field("choice", "size", "Size", choices=choices("S", "M"), preset="m"),
        field("choice", "extra", "Extra", choices=choices("A", "B"), required=False),
        field("choice", "of-many", "Of many", choices=choices(*many)),
        field("choices", "colours", "Colours", choices=choices("Red", "Green", "Blue"), most=2),
        field("boolean", "sure", "Sure", preset=True),
        field("text", "when", "When", format="date", required=False),
        field("secret", "password", "Password"),
    )
    form = page.locator(".form-question")
    assert faults(SimpleNamespace(frame=page)) == []
    form.get_by_role("button", name="Answer").click()
    expect(page.locator(".field-error:visible")).to_have_text(
        ["Enter an answer.", "Choose one.", "Choose at least one.", "Enter an answer."]
    )
    # The first of them has the focus, and its message belongs to it.
    expect(form.get_by_label("Name *")).to_be_focused()
    form.get_by_label("Name *").fill("ada")
    expect(page.locator(".field-error:visible").first).to_have_text("Enter a text that fits the pattern ^[A-Z]")
    form.get_by_label("Name *").fill("Ada")
    form.get_by_label("Mail").fill("nobody")
    form.get_by_label("Count *").fill("2.5")
    form.get_by_label("Of many *").select_option("Choice 11")
    for colour in ("Red", "Green", "Blue"):
        form.get_by_label(colour).check()
    form.get_by_label("Password *").fill("hunter2")
    form.get_by_label("Password *").press("Enter")
    expect(page.locator(".field-error:visible")).to_have_text(
        ["Enter an address such as name@example.org.", "Enter a whole number.", "Choose at most 2."]
    )
    assert told(page) == []
    form.get_by_label("Mail").fill("")
    form.get_by_label("Count *").fill("5")
    form.get_by_label("Green").uncheck()
    form.get_by_label("When").fill("2026-11-28")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "hunter2" not in page.locator(".log").inner_text()
    form.get_by_role("button", name="Answer").click()
    (message,) = told(page)
    assert message["content"] == {
        "name": "Ada",
        "count": 5,
        "size": "m",
        "of-many": "choice 11",
        "colours": ["red", "blue"],
        "sure": True,
        "when": "2026-11-28",
        "password": "hunter2",
    }


def test_several_choices_are_checked_by_number(page: Any) -> None:
    item = ask(page, field("choices", choices=choices("Red", "Green", "Blue"), preset=["green"]))
    page.keyboard.press("Alt+a")
    page.keyboard.press("3")
    page.keyboard.press("Enter")
    assert told(page) == [{"type": "answerForm", "form": item["form"], "content": {"answer": ["green", "blue"]}}]


def test_two_questions_one_is_withdrawn_and_what_is_typed_stays(page: Any) -> None:
    first = ask(page, field("text"), message="First?")
    second = ask(page, field("text"), message="Second?")
    page.locator(".form-question textarea").nth(1).fill("half an ans")
    # Another session is shown, and then this one again.
    page.evaluate("tell({ type: 'reset', items: [], more: false, state: { ...state, session: 'other' } })")
    assert page.locator(".question").count() == 0
    items = [{**first, "question": first["form"]}, {**second, "question": second["form"]}]
    page.evaluate("(items) => tell({ type: 'reset', items, more: false, state })", items)
    expect(page.locator(".form-question textarea").nth(1)).to_have_value("half an ans")
    page.locator(".form-question textarea").first.focus()
    close(page, first, answer="unanswered")
    expect(page.locator(".composer textarea")).to_be_focused()
    page.keyboard.press("Alt+a")
    expect(page.locator(".form-question textarea")).to_be_focused()
    page.keyboard.press("End")
    page.keyboard.type("wer")
    page.keyboard.press("Enter")
    assert told(page) == [{"type": "answerForm", "form": second["form"], "content": {"answer": "half an answer"}}]
    page.evaluate("tell({ type: 'state', state: { ...state, running: false } })")
    page.get_by_role("button", name="Ask again?").click()
    assert page.evaluate("said.at(-1)") == {"type": "askAgain", "item": first["id"]}
    for how, words in (
        ("stopped", "Stopped by you."),
        ("skipped", "You skipped this question."),
        ("passed", "Not answered."),
    ):
        close(page, second, answer=how)
        assert page.locator(".form-item .answered").last.inner_text() == words


def test_hostile_words_stay_words(page: Any) -> None:
    item = ask(
        page,
        field("choices", "a", HOSTILE, about=HOSTILE, choices=choices(HOSTILE, "x", x=HOSTILE)),
        field("text", "b", HOSTILE, about=HOSTILE, preset=HOSTILE),
        message=HOSTILE,
    )
    close(page, item, answer="answered", said=HOSTILE)
    page.wait_for_timeout(100)
    assert page.evaluate("window.broken") is None
    assert page.locator(".log :is(script, img, iframe, svg, [onclick], [href])").count() == 0
