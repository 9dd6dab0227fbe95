"""The floor: a loop that does what any agent must and nothing else, one JSON line a turn, flushed."""

from __future__ import annotations

import json
import time
from typing import Any

from bench.subjects.report import ARGUMENT, Clock, arguments, finish


def main() -> None:
    turns, folder = arguments()
    clock = Clock()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    gates = {"echo": lambda text: text}

    def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
        clock.tick()
        return {"id": f"c{len(messages)}", "gate": "echo", "args": json.dumps({"text": ARGUMENT})}

    with (folder / "turns.jsonl").open("w") as log:
        for number in range(turns):
            began = time.perf_counter()
            call = model(messages)
            result = gates[call["gate"]](**json.loads(call["args"]))
            messages.append({"role": "assistant", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            record = {
                "id": f"t{number}",
                "parent_id": f"t{number - 1}" if number else None,
                "utterance": {"tool_calls": [call]},
                "observation": {"results": [{"gate": "echo", "args": {"text": ARGUMENT}, "result": result}]},
                "duration_ms": (time.perf_counter() - began) * 1000,
            }
            log.write(json.dumps(record) + "\n")
            log.flush()
        model(messages)
    finish(clock, turns, folder)


if __name__ == "__main__":
    main()
