"""The Python API refuses what a recipe refuses: unknown names with the nearest known one, wrong kinds, wrong ranges."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle, DefinitionError, Gate, RetryPolicy, ScriptedCrystal, Wards
from cantrip_acp.core.folding.policy import Folding
from cantrip_acp.crystals.anthropic.crystal import AnthropicCrystal
from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.gates import registry

NAN = math.nan


def _circle(**more: Any) -> Circle:
    return Circle(**{"gates": ["done"], "wards": {"max_turns": 2}, **more})


def _cantrip(**more: Any) -> Cantrip:
    crystal: Crystal = ScriptedCrystal([])
    return Cantrip(crystal, **{"circle": _circle(), **more})


def _endpoint(**options: Any) -> Crystal:
    return AnthropicCrystal(Endpoint("anthropic", "claude-sonnet-5-5", options=options))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    # Options of gates
    "option": (lambda: _circle(gates=["done", {"name": "read_file", "rooot": "x"}]), "'rooot'.*did you mean 'root'"),
    "option of a gate without any": (lambda: _circle(gates=[{"name": "done", "root": "x"}]), "unknown option 'root'"),
    "option ephemeral": (
        lambda: _circle(gates=["done", {"name": "echo", "ephemerall": True}]),
        "did you mean 'ephemeral'",
    ),
    "ephemeral kind": (lambda: _circle(gates=["done", {"name": "echo", "ephemeral": "always"}]), "after_use"),
    "ephemeral number": (lambda: _circle(gates=["done", {"name": "echo", "ephemeral": 1}]), "ephemeral must be"),
    "root blank": (lambda: _circle(gates=["done", {"name": "search", "root": " "}]), "must be a folder"),
    "root kind": (lambda: _circle(gates=["done", {"name": "search", "root": 5}]), "must be a folder"),
    "root none": (lambda: _circle(gates=["done", {"name": "search", "root": None}]), "must be a folder"),
    "timeout nan": (lambda: _circle(gates=["done", {"name": "fetch", "timeout_s": NAN}]), "must be a number"),
    "timeout bool": (lambda: _circle(gates=["done", {"name": "fetch", "timeout_s": True}]), "must be a number"),
    "command": (lambda: _circle(gates=["done", {"name": "run_tests", "command": ["a"]}]), "must be a shell command"),
    "bind": (lambda: registry.find("read_file").bind(rooot="x"), "did you mean 'root'"),
    # Gates
    "gate name": (lambda: _circle(gates=["done", "ecko"]), "did you mean 'echo'"),
    "gate twice": (lambda: _circle(gates=["done", "done"]), "two gates are named"),
    "gates text": (lambda: _circle(gates="done"), "list of names"),
    "gate kind": (lambda: _circle(gates=["done", 5]), "a gate must be a name"),
    "gate mapping": (lambda: _circle(gates=["done", {"nam": "echo"}]), "needs a name"),
    # Wards
    "ward": (lambda: _circle(wards={"max_turn": 1}), "unknown ward 'max_turn'; did you mean 'max_turns'"),
    "max_turns": (lambda: _circle(wards={"max_turns": -1}), "max_turns"),
    "max_turns bool": (lambda: _circle(wards={"max_turns": True}), "max_turns"),
    "max_turns float": (lambda: _circle(wards={"max_turns": 2.5}), "max_turns"),
    "max_seconds nan": (lambda: _circle(wards={"max_turns": 1, "max_seconds": NAN}), "max_seconds"),
    "max_seconds inf": (lambda: _circle(wards={"max_turns": 1, "max_seconds": math.inf}), "max_seconds"),
    "wards text": (lambda: _circle(wards="max_turns"), "wards must be a list"),
    "ward object": (lambda: Wards(max_turns=-1), "max_turns"),
    "ward object bool": (lambda: Wards(require_done_tool=1), "require_done_tool"),  # type: ignore[arg-type]
    # Circle
    "medium": (lambda: _circle(medium="convercation"), "did you mean 'conversation'"),
    "medium kind": (lambda: _circle(medium=5), "medium"),
    "workspace": (lambda: _circle(workspace=5), "workspace"),
    "folders": (lambda: _circle(folders="/x"), "folders"),
    "score": (lambda: _circle(score=5), "scorer"),
    # Call
    "call key": (
        lambda: _cantrip(call={"temperatur": 1}),
        "unknown key 'temperatur' in call; did you mean 'temperature'",
    ),
    "call kind": (lambda: _cantrip(call="You are"), "call must be a mapping"),
    "temperature": (lambda: Call(temperature=2.1), "temperature"),
    "temperature nan": (lambda: Call(temperature=NAN), "temperature"),
    "temperature bool": (lambda: Call(temperature=True), "temperature"),
    "temperature text": (lambda: Call(temperature="1"), "temperature"),  # type: ignore[arg-type]
    "top_p": (lambda: Call(top_p=-0.1), "top_p"),
    "max_tokens": (lambda: Call(max_tokens=0), "max_tokens"),
    "max_tokens bool": (lambda: Call(max_tokens=True), "max_tokens"),
    "stop": (lambda: Call(stop=[1]), "stop"),  # type: ignore[arg-type]
    "stop empty": (lambda: Call(stop=[""]), "stop"),  # type: ignore[arg-type]
    "tool_choice": (lambda: Call(tool_choice="requird"), "did you mean 'required'"),  # type: ignore[arg-type]
    "none and done": (lambda: _cantrip(call={"tool_choice": "none", "require_done_tool": True}), "never call done"),
    "require_done_tool": (lambda: Call(require_done_tool="yes"), "require_done_tool"),  # type: ignore[arg-type]
    "require twice": (lambda: Call.of({"require_done": True, "require_done_tool": True}), "exclude each other"),
    "system_prompt": (lambda: Call(system_prompt=b"x"), "system_prompt"),  # type: ignore[arg-type]
    # Cantrip
    "loom key": (lambda: _cantrip(loom_settings={"fsnc": True}), "did you mean 'fsync'"),
    "loom flag": (lambda: _cantrip(loom_settings={"fsync": 1}), r"loom\.fsync"),
    "loom store": (lambda: _cantrip(loom_settings={"store": "jsonn"}), r"loom\.store"),
    "folding key": (lambda: _cantrip(folding={"keep_turn": 1}), "did you mean 'keep_turns'"),
    "folding fraction": (lambda: Folding(at_fraction=NAN), "at_fraction"),
    "folding fraction bool": (lambda: Folding(at_fraction=True), "at_fraction"),
    "folding turns": (lambda: _cantrip(folding={"trigger_after_turns": 0}), "trigger_after_turns"),
    "folding summarizer": (lambda: _cantrip(folding={"summarizer": "small"}), "summarizer"),
    "retry key": (lambda: _cantrip(retry={"max_retry": 1}), "did you mean 'max_retries'"),
    "retry count": (lambda: RetryPolicy(max_retries=-1), "max_retries"),
    "retry bool": (lambda: RetryPolicy(max_retries=True), "max_retries"),
    "retry wait": (lambda: RetryPolicy(base_s=NAN), "base_s"),
    "retry status": (lambda: RetryPolicy(statuses=frozenset({42})), "statuses"),
    "crystals": (lambda: _cantrip(crystals={"small": "claude"}), "'claude' is not a crystal"),
    "crystals kind": (lambda: _cantrip(crystals=["small"]), "crystals must be a mapping"),
    "circle kind": (lambda: _cantrip(circle={"gates": ["done"]}), "cantrip requires a circle"),
    "loom kind": (lambda: _cantrip(loom="x.jsonl"), "must be a Loom"),
    "interceptor": (lambda: _cantrip(interceptors=[5]), r"interceptors\[0\]"),
    "contributor": (lambda: _cantrip(contributors=lambda info: ()), "contributors"),
    "source": (lambda: _cantrip(sources=[5]), r"sources\[0\]"),
    "name": (lambda: _cantrip(name=5), "name"),
    # Crystals
    "endpoint option": (lambda: _endpoint(efort="low"), "unknown option 'efort' in options; did you mean 'effort'"),
    "endpoint effort": (lambda: _endpoint(effort="hihg"), "effort is 'hihg'.*did you mean 'high'"),
    "endpoint effort kind": (lambda: _endpoint(effort=True), "effort is True"),
    "endpoint budget": (lambda: _endpoint(thinking_budget=-2), "thinking_budget must be a whole number of at least -1"),
    "endpoint budget kind": (lambda: _endpoint(thinking_budget=1.5), "thinking_budget must be"),
    "endpoint budget bool": (lambda: _endpoint(thinking_budget=True), "thinking_budget must be"),
    "endpoint api": (lambda: _endpoint(api="chatt"), "did you mean 'chat'"),
    "endpoint tools": (lambda: _endpoint(tools="maybe"), "tools is 'maybe'"),
    "endpoint summary": (lambda: _endpoint(summary="concis"), "did you mean 'concise'"),
    "endpoint logprobs": (lambda: _endpoint(logprobs=1), "logprobs must be true or false"),
    "endpoint routing": (lambda: _endpoint(routing=["x"]), "routing must be a mapping"),
    "scripted key": (lambda: ScriptedCrystal([{"contnt": "x"}]), "contnt"),
    "scripted window": (lambda: ScriptedCrystal([], context_window=0), "context_window"),
    "scripted usage": (lambda: ScriptedCrystal([], usage={"promt_tokens": 1}), "promt_tokens"),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused(name: str) -> None:
    make, text = WRONG[name]
    with pytest.raises(DefinitionError, match=f"(?s){text}"):
        make()


def test_what_is_right_is_taken(tmp_path: Path) -> None:
    circle = Circle(
        gates=[
            "done",
            {"name": "read_file", "root": tmp_path, "max_bytes": 10, "ephemeral": True},
            {"name": "echo", "ephemeral": "after_use"},
            {"name": "run_tests", "command": "make check", "timeout_s": 5, "ephemeral": False},
        ],
        wards=[{"max_turns": 2}, {"max_seconds": 1.5}],
        workspace=str(tmp_path),
    )
    assert [g.ephemeral for g in circle.gates.values()] == [False, True, "after_use", False]
    cantrip = Cantrip(
        ScriptedCrystal([]),
        {"stop": "END", "require_done": True, "temperature": 0},
        circle,
        retry={"max_retries": 0, "retryable_status_codes": [500]},
        folding={"keep_turns": 0},
        loom_settings={"store": "sqlite:x.db", "files": False},
    )
    assert (cantrip.call.stop, cantrip.require_done) == (("END",), True)
    assert (cantrip.retry.max_retries, cantrip.retry.statuses) == (0, frozenset({500}))


def test_gates_of_others_declare_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    def shout(text: str, *, mark: str = "!", times: int) -> str:
        "Say it loudly."
        return text.upper() + mark * times

    def declared(args: Any, context: Any) -> Any:
        return context.dependencies["url"]

    schema = {"type": "object"}
    found = {
        "shout": Gate.of(shout),
        "bare": Gate("bare", "", schema, declared),
        "bound": Gate("bound", "", schema, declared, {"url": "x"}),
        "page": Gate("page", "", schema, declared, options={"url": {"type": "string"}}, needs=("url",)),
    }
    entries = {name: type("Entry", (), {"load": lambda self, gate=gate: gate})() for name, gate in found.items()}
    monkeypatch.setattr(registry, "installed", lambda: entries)
    circle = _circle(gates=["done", {"name": "shout", "times": 2}, {"name": "bound", "url": "y"}])
    assert circle.gates["shout"].dependencies == {"mark": "!", "times": 2}
    assert circle.gates["bound"].dependencies == {"url": "y"}
    for gate, text in [
        ({"name": "shout", "timess": 2}, "did you mean 'times'"),
        ({"name": "shout", "times": "2"}, "'times' of gate 'shout'"),
        ({"name": "shout", "mark": "?"}, "needs 'times'"),
        ("shout", "needs 'times'"),
        ({"name": "bare", "url": "x"}, "unknown option 'url' of gate 'bare'"),
        ("page", "needs 'url'"),
        ({"name": "page", "url": 5}, "'url' of gate 'page'"),
    ]:
        with pytest.raises(DefinitionError, match=text):
            _circle(gates=["done", gate])


def test_an_endpoint_takes_what_a_recipe_takes() -> None:
    from cantrip_acp.crystals import endpoint
    from cantrip_acp.recipes.models.crystal import EFFORTS, ModelCrystal

    own = {"provider", "model", "base_url", "api_key_env", "headers", "context_window", "price"}
    own |= {"images", "max_input", "timeout_s"}
    assert set(endpoint.OPTIONS) == set(ModelCrystal.model_fields) - own
    assert endpoint.OPTIONS["effort"] == EFFORTS
