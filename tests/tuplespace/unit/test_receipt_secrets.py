"""Secrets in receipts, in the artifacts of large results, and in the page of a batch: masked before their hashes are made."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.loom.view import html_export
from cantrip_acp.text.redaction import MASK, shared
from cantrip_acp.tuplespace.receipts import is_genuine, make_receipt
from cantrip_acp.tuplespace.retention import read_result, split_result
from cantrip_acp.tuplespace.stores import open_store
from tests.support.secret_places import SECRET


@pytest.fixture(autouse=True, params=[True, False], ids=["masked", "control"])
def masks(request: pytest.FixtureRequest) -> bool:
    """Whether the process knows the secret. The control shows that the test would see it."""
    if request.param:
        shared().add(SECRET)
    return bool(request.param)


def receipt(**more: Any) -> dict[str, Any]:
    return make_receipt(yool="a.b", tuple_id="t", started_at="", ended_at="", exit=0, cost={}, **more)


@pytest.mark.parametrize(
    "more",
    [
        {"result": {"said": [f"x {SECRET}"], SECRET: 1}},
        {"error": f"it failed: {SECRET}"},
        {"artifacts": [{"kind": "file", "path": f"/tmp/{SECRET}"}]},
    ],
    ids=["result", "error", "artifact"],
)
def test_a_receipt_has_no_secret_and_its_id_fits(more: dict[str, Any], masks: bool) -> None:
    made = receipt(**more)
    assert is_genuine(made)
    assert (SECRET in str(made)) is not masks
    assert (MASK in str(made)) is masks


def test_the_artifact_of_a_large_result_has_no_secret(tmp_path: Path, masks: bool) -> None:
    store = open_store(tmp_path / "space.db")
    small, artifacts = split_result(store, {"said": f"{'x' * 100_000} {SECRET}", "short": SECRET})
    made = receipt(result=small, artifacts=artifacts)
    kept = read_result(store, made)
    store.close()
    files = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert kept["said"].endswith(MASK if masks else SECRET)
    assert (SECRET in str(made)) is not masks
    assert (SECRET.encode() in files) is not masks


def test_a_page_has_no_secret(masks: bool) -> None:
    out = io.StringIO()
    with html_export.page(out, "", "") as block:
        block("rows", [{"error": f'"{SECRET}', SECRET: 1}])
    assert (SECRET in out.getvalue()) is not masks
