"""Builds what a case's ``setup`` describes: crystals, call, circle, loom, and files in a folder that replaces ``/``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.lowlevel

from cantrip_acp.conformance import case_gates
from cantrip_acp.conformance.case import Case, crystals_of
from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.crystals.retry import RetryPolicy
from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.gates.wards import WARDS
from cantrip_acp.loom.loom import Loom
from cantrip_acp.mediums import registry as mediums
from cantrip_acp.types.call import Call
from cantrip_acp.types.errors import DefinitionError

_SWITCH = {"on": True, "off": False}


class CaseSetup:
    """The objects of one case. A case has one loom, and each crystal remembers its place in its script.

    ``stand_in`` is an empty folder that replaces ``/``. A cantrip is built only when an action needs it, so an error in
    its definition is that action's failure.
    """

    def __init__(self, case: Case, stand_in: Path) -> None:
        self._case = case
        self._setup = case.setup
        self.stand_in = stand_in
        self.loom = Loom.memory()
        self.crystals: dict[str, ScriptedCaseCrystal] = {}
        self.retry = RetryPolicy(sleep=_instantly)

    def build(self) -> None:
        """Write the files and load the scripts. Raises `DefinitionError` for invalid ones."""
        _lay_out(self._setup.get("filesystem") or {}, self.stand_in)
        for key, script in crystals_of(self._case):
            self.crystals[key] = played = _crystal(script)
            played.heirs = self.crystals
        self.retry = _retry(self._setup.get("retry") or {}, self.retry)

    @property
    def main(self) -> ScriptedCaseCrystal | None:
        """The crystal of a cast that names none: ``crystal``, or without it the first that is not for children."""
        if "crystal" in self._setup:
            return self.crystals.get("crystal")
        return next((c for key, c in self.crystals.items() if not key.startswith("child_")), None)

    def named(self, key: str) -> ScriptedCaseCrystal:
        """The crystal with this key or name. Raises `DefinitionError` where the case sets up none."""
        found = self.crystals.get(key) or next((c for c in self.crystals.values() if c.name == key), None)
        if found is None:
            raise DefinitionError(f"the case sets up no crystal {key!r}; it has {', '.join(self.crystals) or 'none'}")
        return found

    def cantrip(self, crystal: str | None = None) -> Cantrip:
        """The case's cantrip, with another of its crystals if one is named."""
        model = self.named(crystal) if crystal is not None else self.main
        options: dict[str, Any] = {"loom": self.loom, "retry": self.retry, "folding": self._setup.get("folding")}
        options["crystals"] = {
            **{key.removesuffix("_crystal").removeprefix("crystal_"): each for key, each in self.crystals.items()},
            **self.crystals,
            **{each.name: each for each in self.crystals.values() if each.name != _UNNAMED},
        }
        if "call" in self._setup and self._setup["call"] is None:
            return Cantrip(model, None, None, **options)
        if model is None or self._setup.get("circle") is None:
            return Cantrip(model, circle=None, **options)
        return Cantrip(model, self._call(), self._circle(self._setup["circle"]), **options)

    def _call(self) -> Call:
        given = {key: value for key, value in (self._setup.get("call") or {}).items() if value is not None}
        if "require_done" in given:
            given.setdefault("require_done_tool", given.pop("require_done"))
        if "require_done_tool" in given:
            given["require_done_tool"] = _switch(given["require_done_tool"])
        return Call.of(given)

    def _circle(self, given: Mapping[str, Any]) -> Circle:
        medium = given.get("medium") or given.get("type") or "conversation"
        if given.get("type") not in (None, medium):
            raise DefinitionError(f"a circle has one medium, not both {medium!r} and {given['type']!r}")
        gates = [case_gates.make(gate, self.stand_in) for gate in given.get("gates") or []]
        options = {"python": given.get("code_python"), "loom": _switch(given.get("loom")) or None}
        options = {key: value for key, value in options.items() if value is not None}
        if options and medium != "code":
            raise DefinitionError(f"code_python and loom are for the code medium; this circle's is {medium}")
        made = mediums.find(medium, **options) if options else medium
        return Circle(made, gates, self._wards(given.get("wards")), workspace=self.stand_in)

    def _wards(self, given: Any) -> list[Any]:
        items = [given] if isinstance(given, Mapping) else given or []
        return [
            {name: self._ward(name, value) for name, value in item.items()} if isinstance(item, Mapping) else item
            for item in items
        ]

    def _ward(self, name: str, value: Any) -> Any:
        kind = WARDS[name]["kind"] if name in WARDS else None
        if kind in ("boolean", "network"):
            return _switch(value)
        if kind == "paths":
            paths = value if isinstance(value, list) else [value]
            return [str(case_gates.within(self.stand_in, p)) if str(p).startswith("/") else p for p in paths]
        return value


_UNNAMED = "scripted"


class ScriptedCaseCrystal(ScriptedCrystal):
    """A case's crystal. Its children use the crystal for their depth: ``child_crystal_l2``, else ``child_crystal``.

    All children of a depth share one script, so its response *i* belongs to child *i* of a batch.
    """

    heirs: Mapping[str, ScriptedCaseCrystal] = {}

    def child(self, number: int, depth: int) -> Crystal:
        found = self.heirs.get(f"child_crystal_l{depth}") or self.heirs.get("child_crystal")
        return found if found is not None else super().child(number, depth)


def _crystal(script: Mapping[str, Any]) -> ScriptedCaseCrystal:
    name = str(script.get("name") or _UNNAMED)
    responses = [r if r is not None else {} for r in script.get("responses") or []]
    if script.get("raw_response") is not None:
        responses.insert(0, decode_raw_response(script))
    return ScriptedCaseCrystal(
        responses,
        children=script.get("children") or (),
        usage=script.get("usage"),
        # Recording the input of each query is cheap in a test, and every expectation about queries needs it.
        record_inputs=True,
        name=name,
        model=str(script.get("model") or "scripted"),
        context_window=script.get("context_window"),
        tools=str(script.get("tools") or "native"),
    )


def _retry(given: Mapping[str, Any], policy: RetryPolicy) -> RetryPolicy:
    if given.get("max_retries") is not None:
        policy = replace(policy, max_retries=int(given["max_retries"]))
    if given.get("retryable_status_codes") is not None:
        policy = replace(policy, statuses=frozenset(int(code) for code in given["retryable_status_codes"]))
    if given.get("base_delay_ms") is not None:
        policy = replace(policy, base_s=float(given["base_delay_ms"]) / 1000)
    if given.get("max_delay_ms") is not None:
        policy = replace(policy, max_wait_s=float(given["max_delay_ms"]) / 1000)
    return policy


async def _instantly(seconds: float) -> None:
    """Replaces a retry's wait. The tests of retries check its length, so a suite need not wait."""
    await anyio.lowlevel.checkpoint()


def _lay_out(files: Mapping[str, Any], stand_in: Path) -> None:
    for name, text in files.items():
        path = case_gates.within(stand_in, name)
        if text is None or name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text), encoding="utf-8")


def _switch(value: Any) -> Any:
    return _SWITCH.get(value, value) if isinstance(value, str) else value


CHAT = ("openai", "openrouter", "ollama", "local")
"""Providers whose answers have the form of Chat Completions; a suite may put ``mock_`` before the name."""


def decode_raw_response(script: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the raw answer to a scripted response. Raises `DefinitionError` for an unsupported provider."""
    provider = str(script.get("provider") or "openai").removeprefix("mock_")
    raw = script["raw_response"]
    if provider not in CHAT:
        raise DefinitionError(f"raw_response of provider {provider!r} cannot be read; here: {', '.join(CHAT)}")
    if not isinstance(raw, Mapping):
        raise DefinitionError(f"raw_response must be the provider's answer, a mapping, not {raw!r}")
    from cantrip_acp.crystals.openai.chat_stream import ChatAnswer

    answer = ChatAnswer()
    answer.feed(raw)
    usage = answer.server.counted()
    response: dict[str, Any] = {
        "content": "".join(answer.text) or None,
        "thinking": "".join(answer.thoughts) or None,
        "tool_calls": [{"id": call.id, "gate": call.name, "args": call.text or "{}"} for call in answer.calls],
    }
    if usage is not None:
        counts = ("prompt_tokens", "completion_tokens", "cached_tokens")
        response["usage"] = {name: getattr(usage, name) for name in counts}
    return response
