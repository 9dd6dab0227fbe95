"""Looms as the tests need them: small ones with a child, and large ones, written record by record."""

import json
from pathlib import Path
from typing import Any

from cantrip_acp.loom.loom import Loom
from cantrip_acp.types.records import CastRecord, Observation, Output, Turn, TurnMetadata, Utterance, now


def turn(name: str, above: str | None, cast: str | None, entity: str = "e_one", **given: Any) -> Turn:
    about = {"metadata": TurnMetadata(100, 20, 0, 0.001, 1500.0, now(), "scripted", "0" * 32), "sequence": 1}
    return Turn(name, above, "cantrip_1", entity, cast, **{**about, **given})


def family(path: Path) -> Path:
    """A cast of two turns; the first one spawned a child, which said something in one turn."""
    with Loom.open(path) as loom:
        root = loom.begin(
            "cantrip_1", {"system_prompt": "Help."}, {"medium": "bash", "gates": [{"name": "done"}]}, "e_one"
        )
        loom.append(CastRecord("c_one", "start", "e_one", "cantrip_1", timestamp=now(), intent="Count the words."))
        loom.append(turn("t_one", root, "c_one", utterance=Utterance(code="wc -w notes.txt")))
        below = loom.begin("cantrip_1", {}, {}, "e_two", above="t_one")
        start = CastRecord(
            "c_two", "start", "e_two", "cantrip_1", timestamp=now(), intent="Help.", parent_turn_id="t_one"
        )
        loom.append(start)
        loom.append(turn("t_child", below, "c_two", "e_two", utterance=Utterance(content="Helped."), reason="text"))
        loom.append(
            CastRecord("c_two", "end", "e_two", "cantrip_1", result="Helped.", reason="text", terminated=True, turns=1)
        )
        seen = Observation((), Output(stdout="7 notes.txt\n", exit_code=0))
        loom.append(
            turn(
                "t_two",
                "t_one",
                "c_one",
                sequence=2,
                utterance=Utterance(content="Seven."),
                observation=seen,
                terminated=True,
                reason="done",
            )
        )
        usage = {"prompt_tokens": 300, "completion_tokens": 60, "cached_tokens": 0, "cost": 0.003}
        loom.append(
            CastRecord(
                "c_one",
                "end",
                "e_one",
                "cantrip_1",
                result="Seven.",
                reason="done",
                terminated=True,
                turns=2,
                usage=usage,
            )
        )
    return path


def line(of: dict[str, Any]) -> bytes:
    return json.dumps(of, separators=(",", ":")).encode() + b"\n"


def large(path: Path, megabytes: int) -> Path:
    """A loom of so many megabytes: casts of 50 turns of 4 KB."""
    family(path)
    made = dict.fromkeys(("reward", "reason", "continues"))
    filled = 0
    with path.open("ab") as file:
        number = 0
        while filled < megabytes * 1_000_000:
            cast, above = f"c_{number}", "t_one"
            began = {"type": "cast", "id": cast, "event": "start", "entity_id": "e_one", "cantrip_id": "cantrip_1"}
            data = line({**began, "intent": f"Job {number}", "timestamp": now()})
            for step in range(50):
                name = f"t_{number}_{step}"
                body: dict[str, Any] = {
                    "type": "turn",
                    "id": name,
                    "parent_id": above,
                    "cantrip_id": "cantrip_1",
                    "entity_id": "e_one",
                    "cast_id": cast,
                    "role": "crystal",
                    "sequence": step + 1,
                    "gate_calls": ["bash"],
                    **made,
                    "utterance": {"content": "Looking. ", "thinking": None, "tool_calls": [], "code": "ls -la"},
                    "observation": {
                        "results": [],
                        "output": {"stdout": 'a "quoted" \\ line\n' * 200, "stderr": "", "exit_code": 0},
                    },
                }
                data += line(body)
                above = name
            file.write(data)
            filled += len(data)
            number += 1
    path.with_name(path.name + ".index").unlink(missing_ok=True)
    return path
