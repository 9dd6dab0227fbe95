"""Secrets in what is committed: no file of the substrate has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.substrate.chunks import Change, NewChunk
from cantrip_acp.substrate.substrate import open_substrate
from cantrip_acp.text.redaction import shared
from tests.support.secret_places import SECRET


@pytest.fixture(autouse=True, params=[True, False], ids=["masked", "control"])
def masks(request: pytest.FixtureRequest) -> bool:
    """Whether the process knows the secret. The control shows that the test would see it."""
    if request.param:
        shared().add(SECRET)
    return bool(request.param)


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (NewChunk("a", "a", body={"text": f"key: {SECRET}"}), ""),
        (NewChunk("a", "a", body={"list": [{SECRET: None}]}), ""),
        (NewChunk("a", f"a {SECRET}"), ""),
        (NewChunk("a", "a"), f"because of {SECRET}"),
    ],
    ids=["text", "key", "name", "message"],
)
def test_a_commit_has_no_secret(chunk: Any, message: str, masks: bool, tmp_path: Path) -> None:
    substrate = open_substrate(tmp_path / "substrate.db")
    told = substrate.commit(Change([chunk]), author="me", message=message)
    read = [substrate.chunk("a"), told]
    substrate.close()
    files = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert (SECRET in repr(read)) is not masks
    assert (SECRET.encode() in files) is not masks
