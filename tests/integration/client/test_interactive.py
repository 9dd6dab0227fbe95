"""The client at a terminal: prompts, Ctrl-C, Ctrl-D, permissions, colour."""

import time
from collections.abc import Callable

import pytest

from tests.integration.client.client_processes import CLIENT, POLITE, Terminal, rude

Start = Callable[..., Terminal]
AGENT = [*CLIENT, "--", *POLITE]


def test_a_conversation(terminal: Start) -> None:
    at = terminal(AGENT)
    at.until("Ctrl-D quits")
    at.until("❯ ")
    at.type("say Good day.\n")
    seen = at.until("end_turn")
    assert "Good day." in seen
    assert "\x1b[" in seen
    at.until("❯ ")
    at.type("say one \\\n")
    at.type("two\n")
    at.until("end_turn")
    at.until("❯ ")
    at.type("\x04")
    assert at.wait() == 0
    # What was typed is not repeated.
    assert at.seen.count("say Good day.") == 1


def test_interrupt_cancels_the_turn_and_the_session_goes_on(terminal: Start) -> None:
    at = terminal(AGENT)
    at.until("❯ ")
    at.type("wait\n")
    at.until("waiting")
    at.type("\x03")
    at.until("cancelling; press Ctrl-C again to quit")
    at.until("cancelled")
    at.until("❯ ")
    at.type("say again\n")
    at.until("end_turn")
    at.until("❯ ")
    at.type("\x04")
    assert at.wait() == 0


def test_interrupt_twice_at_the_prompt_quits(terminal: Start) -> None:
    at = terminal(AGENT)
    at.until("❯ ")
    at.type("\x03")
    at.until("again to quit")
    at.until("❯ ")
    at.type("\x03")
    assert at.wait() == 130


def test_interrupt_twice_in_a_turn_quits(terminal: Start) -> None:
    at = terminal([*CLIENT, "--", *rude("deaf")])
    at.until("❯ ")
    at.type("x\n")
    at.until("child ")
    at.type("\x03")
    at.until("again to quit")
    at.type("\x03")
    assert at.wait() == 130


@pytest.mark.parametrize(
    ("keys", "answer"), [("2\n", "selected all"), ("rej\n", "selected no"), ("9\n\nal\n1\n", "selected one")]
)
def test_permission_is_asked_for(terminal: Start, keys: str, answer: str) -> None:
    at = terminal(AGENT)
    at.until("❯ ")
    at.type("ask\n")
    at.until("Delete the world")
    at.until("which? ")
    for key in keys.splitlines(keepends=True):
        at.type(key)
        if key != keys.splitlines(keepends=True)[-1]:
            at.until("which? ")
    at.until(f"answer: {answer}")
    at.until("❯ ")
    at.type("\x04")
    assert at.wait() == 0


def test_interrupt_at_a_question_cancels_the_turn(terminal: Start) -> None:
    at = terminal(AGENT)
    at.until("❯ ")
    at.type("ask\n")
    at.until("which? ")
    # As fast as a person is: readline does not see a signal that comes between its prompt and its wait for a key.
    time.sleep(0.3)
    at.type("\x03")
    at.until("cancelled")
    at.until("❯ ")
    at.type("say on we go\n")
    at.until("end_turn")
    at.until("❯ ")
    at.type("\x04")
    assert at.wait() == 0


@pytest.mark.parametrize("variable", ["NO_COLOR=1", "TERM=dumb"])
def test_no_colour_where_none_is_wanted(terminal: Start, variable: str) -> None:
    name, _, value = variable.partition("=")
    at = terminal([*CLIENT, "--prompt", "tool", "--", *POLITE], **{name: value})
    assert at.wait() == 0
    colours = [f"\x1b[{code}m" for code in range(30, 38)]
    assert not [colour for colour in colours if colour in at.seen]
    if name == "TERM":
        assert "\x1b" not in at.seen


def test_an_agent_that_dies_ends_the_conversation(terminal: Start) -> None:
    at = terminal([*CLIENT, "--", *rude("dies_in_turn")])
    at.until("❯ ")
    at.type("x\n")
    at.until("Segmentation fault")
    assert at.wait() == 1
