"""Fifty sessions at once in one agent, each twenty turns with a sandboxed command, next to as many bare bubblewraps.

The baseline runs the very arguments of such a command a thousand times by subprocess, fifty at once, half of them before
the agent's thousand and half after. A turn's time is from one command's end to the next
one's as the client is told; a session's share is the whole time divided by its turns: what each turn takes where all
sessions wait for one another evenly.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.agent import AGENT, connect, workspace
from bench.bash import Bare
from bench.measure import Table, row
from bench.options import Options

SESSIONS = 50
TURNS = 20


def _recipe(path: Path) -> str:
    """Write the recipe: twenty commands, then done."""
    call = {"tool_calls": [{"gate": "bash", "args": {"command": "true"}}]}
    end = {"tool_calls": [{"gate": "bash", "args": {"command": "cantrip_done finished"}}]}
    wards = [{"max_turns": TURNS + 1}, {"bash_writable_paths": ["."]}]
    recipe = {
        "name": "sessions",
        "crystal": {"provider": "scripted", "responses": [*[call] * TURNS, end]},
        "circle": {"medium": "bash", "gates": ["done"], "wards": wards},
    }
    # JSON is YAML.
    path.write_text(json.dumps(recipe))
    return str(path)


def _bare(folder: Path, count: int) -> float:
    """Seconds that ``count`` bare runs take, as many at once as there are sessions."""
    bare = Bare(folder)
    with ThreadPoolExecutor(count * 2 // TURNS) as pool:
        list(pool.map(lambda _: bare.run(), range(count * 2 // TURNS)))
        began = time.perf_counter()
        list(pool.map(lambda _: bare.run(), range(count)))
        return time.perf_counter() - began


def _ours(folder: Path, environment: dict[str, str], sessions: int) -> tuple[float, list[float]]:
    """Seconds from the first prompt to the last answer, and of every turn of every session."""
    recipe = _recipe(folder.parent / "sessions.cantrip.yaml")
    with connect([*AGENT, "--recipe", recipe], environment, folder) as agent:
        agent.initialize()
        names = [agent.session() for _ in range(sessions)]
        # The first prompt of a process also loads what only prompts need, and attacks one sandbox.
        agent.reply(agent.prompt(names.pop()))
        began = time.perf_counter()
        waiting = {agent.prompt(name): name for name in names}
        last = dict.fromkeys(names, began)
        turns: list[float] = []
        while waiting:
            message = agent.receive()
            if "method" not in message:
                if message.get("result", {}).get("stopReason") != "end_turn":
                    raise RuntimeError(f"a session ended otherwise: {message}")
                waiting.pop(message["id"])
            elif message["params"].get("update", {}).get("status") in ("completed", "failed"):
                now, name = time.perf_counter(), message["params"]["sessionId"]
                turns.append(now - last[name])
                last[name] = now
        return time.perf_counter() - began, turns


def run(options: Options) -> Table:
    sessions = options.rounds(SESSIONS)
    commands = sessions * TURNS
    bare: list[float] = []
    ours: list[float] = []
    longest: list[float] = []
    with workspace("responses: [{content: hello, repeat: true}]\n") as (folder, environment):
        for _ in range(options.rounds(3)):
            before = _bare(folder, commands // 2)
            spent, turns = _ours(folder, environment, sessions + 1)
            after = _bare(folder, commands // 2)
            if len(turns) < commands:
                raise RuntimeError(f"{commands} turns were to be run, and {len(turns)} were")
            bare.append(before + after)
            ours.append(spent)
            longest.append(max(turns) / (spent / (TURNS + 1)))
    base = row(f"bare bubblewrap x {commands:,}", bare, "s")
    return Table(
        "sessions",
        f"{sessions} sessions at once, each {TURNS} turns with a sandboxed command (`true`)",
        (
            base,
            row(
                "cantrip-acp, all of them",
                ours,
                "s",
                baseline=base,
                goal="<= 1.6 x bare",
            ),
            row(
                "cantrip-acp: the longest turn of any session / its share",
                longest,
                "x",
                goal="<= 2",
            ),
        ),
    )
