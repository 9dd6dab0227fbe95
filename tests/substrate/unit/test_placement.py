"""`bench.placement`: what a cache has of a request, and which answers count."""

from __future__ import annotations

import pytest

from bench import placement
from cantrip_acp.core.folding.policy import CHARS_PER_TOKEN
from cantrip_acp.crystals.contract import Query
from cantrip_acp.types.messages import Message


def asked(place: str, known: str, *said: Message) -> Query:
    """A query that knows something, in the system prompt or before the history."""
    head = [Message("system", known)] if place == "system" else [Message("user", known), Message("assistant", "Read.")]
    return Query([Message("system", "Be careful. " * 50), *head, Message("user", "Find out."), *said], ())


@pytest.mark.parametrize("place", placement.PLACEMENTS)
def test_a_cache_has_what_a_request_has_in_common_with_earlier_ones(place: str) -> None:
    more = (Message("assistant", "I look."), Message("user", "And?"))
    first, longer, other = asked(place, "A" * 400), asked(place, "A" * 400, *more), asked(place, "B" * 400, *more)
    for found in (placement.of_prefixes([first, longer]), placement.of_points([first, longer])):
        assert found.read == pytest.approx(placement.of_prefixes([first]).sent, rel=0.1)
    # What changed is new, and so is all that comes after it.
    assert placement.of_prefixes([first, other]).read * CHARS_PER_TOKEN == pytest.approx(650, abs=60)
    # The call has a point of its own only if what is known is not in the system prompt with it.
    assert (placement.of_points([first, other]).read > 0) is (place == "history")


def test_what_evades_a_question_is_no_answer() -> None:
    for question in placement.questions()["questions"]:
        assert not placement.good(question, "I do not know."), question
        assert not placement.good(question, question["ask"]), question
    old = {"kind": "changed", "ask": "What is the release?", "answer": r"5\.2", "lacks": r"5\.1"}
    assert placement.good(old, "It is 5.2.")
    assert not placement.good(old, "It was 5.1, it is 5.2.")
