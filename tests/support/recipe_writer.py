"""Small recipes to start tests from."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

SMALLEST: dict[str, Any] = {"circle": {"gates": ["done"], "wards": [{"max_turns": 3}]}}

LARGEST: dict[str, Any] = {
    "name": "everything",
    "description": "One of every key.",
    "crystal": {
        "provider": "scripted",
        "responses": [
            {
                "content": "c",
                "thinking": None,
                "tool_calls": [{"id": "a", "gate": "echo", "args": {"text": "x"}}, {"gate": "done", "args": "{"}],
                "code": "1",
                "bash": "true",
                "usage": {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 3, "cost": 0.5},
                "error": {"status": 429, "message": "slow down", "retry_after": 1.5, "code": "x"},
                "delay_ms": 1.5,
                "chunks": ["c"],
                "when": "x",
                "repeat": "on",
                "tool_result": {"tool_call_id": "a", "content": "x"},
            },
            {},
        ],
        "children": [[{"content": "x"}], {"responses": [{"content": "y"}], "children": [[{}]]}],
        "usage": {"prompt_tokens": 1},
        "model": "m",
        "context_window": 1000,
    },
    "crystals": {
        "fast": "ollama:qwen3",
        "paid": {
            "provider": "anthropic",
            "model": "m",
            "base_url": "https://example.org",
            "api_key_env": "MY_KEY",
            "headers": {"x-a": "b"},
            "context_window": 1,
            "price": {
                "input": 1,
                "output": 2.5,
                "cached": 0,
                "cache_write": 0,
                "above": 200000,
                "long": {"input": 2, "output": 5, "cached": 0, "cache_write": 0},
            },
            "effort": "high",
            "thinking_budget": -1,
            "api": "chat",
            "tools": "text",
            "summary": "none",
            "routing": {"order": ["a", "b"], "allow_fallbacks": False},
        },
        "me": {"provider": "human"},
        "script": {"provider": "scripted", "script": "s.yaml"},
    },
    "call": {
        "system_prompt": "You.",
        "temperature": 0.5,
        "top_p": 1,
        "max_tokens": 10,
        "stop": ["END"],
        "tool_choice": "auto",
        "require_done_tool": False,
    },
    "circle": {
        "medium": "bash",
        "gates": [
            "done",
            {"name": "read_file", "root": "data", "ephemeral": True},
            {"name": "echo", "ephemeral": "off"},
            {"python": "gates.py"},
            "call_entity",
            "fetch",
        ],
        "wards": [
            {"max_turns": 3},
            {"max_depth": 0},
            {"max_seconds": 1.5},
            {"max_total_tokens": 10},
            {"max_cost_usd": 0.5},
            {"max_children_total": 0},
            {"require_done": "on"},
            {"bash_network": ["example.org"]},
            {"bash_network": "off"},
            {"bash_submit": True},
            {"bash_writable_paths": ["workspace", "/tmp/x"]},
            {"code_readable_paths": "data"},
            {"child_medium_allowlist": []},
            {"remove_gate": "fetch"},
            {"bash_home": "persistent"},
            {"allow_compile_modules": ["a.b"]},
            {"sandbox_max_processes": 8},
        ],
    },
    "folding": {
        "at_fraction": 0.8,
        "trigger_after_turns": 3,
        "trigger_at_tokens": 100,
        "keep_turns": 2,
        "summarizer": "fast",
    },
    "retry": {
        "max_retries": 1,
        "retryable_status_codes": [500, 502],
        "base_s": 0,
        "max_wait_s": 1,
        "max_retry_after_s": 2.5,
    },
    "loom": {"store": "sqlite:x.db", "fsync": "ON"},
}


def smallest() -> dict[str, Any]:
    return copy.deepcopy(SMALLEST)


def largest() -> dict[str, Any]:
    return copy.deepcopy(LARGEST)


def write(folder: Path, text: str | bytes, name: str = "r.cantrip.yaml") -> Path:
    """A recipe file with that text."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path
