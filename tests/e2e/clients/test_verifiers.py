"""verifiers runs a task with cantrip-acp as its agent: rollout, trace, semantic edges, reward.

It wants an environment of its own (570 MB, and an older `mcp` than ours), which is named to these tests:

    python -m venv vf && vf/bin/pip install verifiers uv
    VERIFIERS_PYTHON=vf/bin/python pytest tests/e2e/clients/test_verifiers.py
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import AGENT
from tests.support.openai_replies import call_delta, chat_stream, said
from tests.support.provider_server import Reply, Request, Wire

PYTHON = os.environ.get("VERIFIERS_PYTHON", "")
DOCS = Path(__file__).resolve().parents[3] / "docs" / "verifiers"

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not PYTHON,
        reason="VERIFIERS_PYTHON names no Python that has verifiers (570 MB, and it pins an older mcp than ours)",
    ),
]

RECIPE = {
    "name": "rollout",
    "call": {"system_prompt": "You answer by a helper."},
    "circle": {
        "medium": "conversation",
        "gates": ["done", "call_agent"],
        "wards": [{"max_turns": 6}, {"max_depth": 1}],
    },
}


def model(request: Request) -> Reply:
    """A model: the parent asks a child, the child answers, the parent passes it on."""
    assert request.path.endswith("/chat/completions"), request.path
    messages = request.json()["messages"]
    if messages[-1]["role"] == "tool":
        return said("42")
    if "as a helper" in json.dumps(messages):
        return said("It is 42.")
    args = json.dumps({"intent": "multiply as a helper"})
    return chat_stream(call_delta(0, "call_1", "call_agent", args), finish="tool_calls")


def test_a_rollout(tmp_path: Path) -> None:
    recipe = tmp_path / "rollout.cantrip.yaml"
    recipe.write_text(json.dumps(RECIPE))
    with Wire(model) as wire:
        done = subprocess.run(
            [
                PYTHON, str(DOCS / "toy_task.py"), "--model", "gpt-test", "--base-url", f"{wire.url}/v1",
                "--agent", AGENT, "--recipe", str(recipe),
            ],
            capture_output=True,
            text=True,
            timeout=280,
            env={
                **os.environ,
                "PATH": f"{Path(PYTHON).absolute().parent}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(DOCS),
                "TMPDIR": str(tmp_path),
                "OPENAI_API_KEY": "sk-of-nobody",
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        paths = [request.path for request in wire.requests]
        sent = [request.headers for request in wire.requests]
    told: dict[str, Any] = json.loads(done.stdout)
    assert (told["ok"], told["errors"], told["reply"], told["reward"]) == (True, [], "42", 1.0), told
    assert len(paths) == 3
    # Each request had an id of its own, which went to verifiers and no further.
    assert len({call["request"] for call in told["calls"]}) == 3
    assert all(call["request"] for call in told["calls"])
    assert not any("x-acp-model-request-id" in headers for headers in sent)
    parent, child, last = (call["node"] for call in told["calls"])
    assert sorted(map(tuple, told["links"])) == sorted(
        [(parent, child, "subagent_call"), (parent, last, "continuation"), (child, last, "subagent_return")]
    )
    assert told["branches"] == 2
    # What it lived through is kept: a loom a rollout.
    assert len(list(tmp_path.glob("vf-cantrip-*/looms/*.loom.jsonl"))) == 1
