"""Facts that a user lets a project remember (``/remember``, `cantrip substrate remember`): chunks in the scope ``culture``."""

from __future__ import annotations

from pathlib import Path

from cantrip_acp.substrate.chunks import (
    Change,
    Commit,
    CommitRefused,
    NewChunk,
    NewPlacement,
    Spec,
    one_line,
    refuse_secrets,
)
from cantrip_acp.substrate.owners import PRIVATE, USER_CULTURE
from cantrip_acp.substrate.projects import settle
from cantrip_acp.substrate.substrate import Substrate, new_id

_LONGEST_TITLE = 60


def make_fact(text: str, *, private: bool = False) -> NewChunk:
    """The chunk of a fact. Raises `CommitRefused` if the text is empty, too long, or looks like a secret."""
    said = text.strip()
    if not said:
        raise CommitRefused("text", "there is nothing to remember: give a text")
    chunk = NewChunk(
        new_id(f"{PRIVATE}fact" if private else "fact"),
        one_line(said, _LONGEST_TITLE) or "a fact",
        Spec(),
        {"text": said},
    )
    refuse_secrets(Change([chunk]))
    return chunk


def remember(substrate: Substrate, workspace: Path, text: str, *, everywhere: bool = False) -> tuple[NewChunk, Commit]:
    """Add a fact of the user to the culture of a project, or with ``everywhere`` to the user's own. Raises `CommitRefused`."""
    chunk = make_fact(text, private=everywhere)
    scope = USER_CULTURE if everywhere else settle(substrate, workspace).culture
    change = Change([chunk], [NewPlacement(chunk.id, scope)])
    # Others read it, too: its commit says whose it is, as its source does.
    who = "" if everywhere else substrate.tables.user
    author = f"user:{who}" if who else "user"
    return chunk, substrate.commit(change, author=author, source=author, message=f"remember {chunk.name}")
