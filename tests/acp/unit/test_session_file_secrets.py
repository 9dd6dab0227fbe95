"""Secrets in the file of a session: prompts that wait, a chosen title, the client's part of the system prompt, permissions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cantrip_acp.acp.sessions.session_store import SessionMetadata, SessionStore
from cantrip_acp.text.redaction import shared
from tests.support.secret_places import SECRET, with_secret


@pytest.mark.parametrize("known", [True, False], ids=["masked", "control"])
def test_no_place_of_a_sessions_file_has_a_secret(known: bool, tmp_path: Path) -> None:
    if known:
        shared().add(SECRET)
    store, tried = SessionStore(tmp_path), set()
    for place, metadata in with_secret(SessionMetadata):
        store.save(metadata)
        (file,) = [each for each in (tmp_path / "looms").iterdir() if each.suffix != ".new"]
        assert (SECRET.encode() in file.read_bytes()) is not known, place
        tried.add(place.partition("[")[0].partition(".")[0])
        file.unlink()
    assert {"title", "queued", "granted", "system_prompt"} <= tried


def test_where_a_session_is_stays_as_it_is(tmp_path: Path) -> None:
    """A folder with the name of a secret is still the session's folder."""
    shared().add(SECRET)
    store = SessionStore(tmp_path)
    store.save(SessionMetadata(id="s1", cwd=f"/{SECRET}", entity_id="e", loom=f"/{SECRET}.jsonl"))
    (file,) = (tmp_path / "looms").iterdir()
    found = msgspec.json.decode(file.read_bytes(), type=SessionMetadata)
    assert (found.cwd, found.loom) == (f"/{SECRET}", f"/{SECRET}.jsonl")
