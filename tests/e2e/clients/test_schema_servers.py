"""A server that knows nothing of us serves recipes by the published schema: yaml-language-server (npm)."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.recipes.cache import SCHEMA
from tests.support.lsp_client import Client

YAML = Path(__file__).parent / "yamlls" / "node_modules" / "yaml-language-server" / "bin" / "yaml-language-server"
NODE = shutil.which("node")
CAN = {
    "textDocument": {
        "completion": {"completionItem": {"documentationFormat": ["markdown", "plaintext"]}},
        "hover": {"contentFormat": ["markdown", "plaintext"]},
        "publishDiagnostics": {"relatedInformation": True},
    },
    "workspace": {"configuration": True},
}


def told(client: Client, uri: str, holds: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """The diagnostics of a document, once they are those that were waited for."""
    end = time.monotonic() + 60
    found: list[dict[str, Any]] = []
    while time.monotonic() < end:
        client.listen(0.2)
        published = [
            m["params"]["diagnostics"]
            for m in client.kept
            if m["method"] == "textDocument/publishDiagnostics" and m["params"]["uri"] == uri
        ]
        found = published[-1] if published else []
        if holds(found):
            return found
    raise AssertionError(found)


def labels(completion: Any) -> set[str]:
    items = completion["items"] if isinstance(completion, dict) else completion or []
    return {item["label"].strip('"') for item in items}


def words(hover: dict[str, Any] | None) -> str:
    contents = hover["contents"] if hover else ""
    return contents["value"] if isinstance(contents, dict) else str(contents)


@pytest.mark.skipif(
    not YAML.exists() or NODE is None, reason="npm ci has not run in tests/e2e/clients/yamlls (.ci/setup does)"
)
def test_yaml_language_server(tmp_path: Path) -> None:
    client = Client(tmp_path, capabilities=CAN, command=[str(NODE), str(YAML), "--stdio"])
    try:
        settings = {"validate": True, "hover": True, "completion": True, "schemaStore": {"enable": False}}
        client.answers["workspace/configuration"] = [settings, {}, {}, {}, {}]
        client.tell("workspace/didChangeConfiguration", {"settings": {"yaml": settings}})
        text = (
            f"# yaml-language-server: $schema={SCHEMA.as_uri()}\n"
            "name: greeter\ncircle:\n  medium: bsh\n  gates: [done]\n  wards:\n    - max_turns: 3\n    - max_trns: 5\n"
            "folding:\n  \n"
        )
        uri = client.open("a.cantrip.yaml", text, write=True)
        found = told(client, uri, lambda d: len(d) >= 2)
        assert {d["range"]["start"]["line"] for d in found} >= {3, 7}
        assert "conversation" in next(d["message"] for d in found if d["range"]["start"]["line"] == 3)
        hover = words(client.ask("textDocument/hover", client.at(uri, 6, 8)))
        assert "Queries in one cast" in hover
        assert "20" in hover, "the example"
        offered = labels(client.ask("textDocument/completion", client.at(uri, 9, 2)))
        assert {"at_fraction", "keep_turns", "summarizer"} <= offered
        mediums = labels(client.ask("textDocument/completion", client.at(uri, 3, 10)))
        assert {"conversation", "code", "bash", "monty"} <= mediums
    finally:
        client.close()
