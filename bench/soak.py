"""A thousand prompts over twenty sessions in one agent: commands, cells, children, permissions, cancels; what grows.

Memory, descriptors and processes of the agent are looked at after every fifty prompts. The first third is warm-up; what
is asked is how much each further prompt costs that stays.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.agent import AGENT, Connection, connect, workspace
from bench.measure import Table, row
from bench.options import Options

SESSIONS = 20
PROMPTS = 1000
EVERY = 50
KINDS = ("bash", "bash", "child", "talk", "talk", "write", "refused", "hang", "trickle", "reload")


def _recipe(medium: str, path: Path) -> str:
    """A recipe whose crystal does what the intent names, however often."""
    program = {
        "bash": {"bash": "echo hello; head -c 500 /dev/zero | tr '\\0' x"},
        "code": {"code": "print(sum(range(1000)))"},
    }
    child = {"bash": {"bash": "call_agent 'talk please'"}, "code": {"code": "print(call_agent('talk please'))"}}
    write = {"bash": {"bash": "cantrip_write_file out.txt x"}, "code": {"code": "write_file('out.txt', 'x')"}}
    loop = {"bash": {"bash": "while :; do :; done"}, "code": {"code": "while True: pass"}}
    responses: list[dict[str, Any]] = [
        {"when": "run", **program[medium]},
        {"when": "child", **child[medium]},
        {"when": "write", **write[medium]},
        {"when": "hang", **loop[medium]},
        {"when": "trickle", "chunks": ["word "] * 50, "delay_ms": 1},
        {"content": "Well."},
    ]
    circle = {
        "medium": medium,
        "gates": ["done", "write_file", "call_agent"],
        "wards": [{"max_turns": 2}, {"max_depth": 1}],
    }
    crystal = {"provider": "scripted", "responses": [{**each, "repeat": True} for each in responses]}
    # JSON is YAML.
    path.write_text(json.dumps({"name": medium, "crystal": crystal, "circle": circle}))
    return str(path)


@dataclass
class Soak:
    """What was seen of the agent: after so many prompts, bytes, descriptors and living processes below it."""

    prompts: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    leaving: float = 0.0
    kept: int = 0
    """Descriptors more, with every session closed, than before there was one."""
    left: int = 0
    """Processes that outlived the agent."""

    def slope(self) -> float:
        """Bytes that each prompt after the first third costs, by least squares."""
        begin = len(self.prompts) // 3
        x, y = self.prompts[begin:], self.memory[begin:]
        mid_x, mid_y = sum(x) / len(x), sum(y) / len(y)
        below = sum((a - mid_x) ** 2 for a in x)
        return sum((a - mid_x) * (b - mid_y) for a, b in zip(x, y, strict=True)) / below if below else 0.0


def _below(process: psutil.Process) -> list[psutil.Process]:
    found = []
    for each in process.children(recursive=True):
        try:
            if each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
        except psutil.NoSuchProcess:
            continue
    return found


class _Talk:
    """The client: it says yes or no to permissions, and knows which prompts are open."""

    def __init__(self, agent: Connection, rng: random.Random) -> None:
        self.agent = agent
        self.rng = rng
        self.open: dict[int, str] = {}
        self.refusing: set[str] = set()

    def until(self, left: int, soak: Soak) -> None:
        """Hear until no more than so many prompts are open."""
        while len(self.open) > left:
            line = self.agent.output.readline()
            if not line:
                raise EOFError("the agent is gone (its stderr is above)")
            message: dict[str, Any] = json.loads(line)
            if message.get("method") == "session/request_permission":
                self._answer(message)
            elif "method" not in message and message["id"] in self.open:
                self.open.pop(message["id"])
                reason = message.get("result", {}).get("stopReason") or f"error {message['error']['code']}"
                soak.reasons[reason] = soak.reasons.get(reason, 0) + 1

    def _answer(self, message: Mapping[str, Any]) -> None:
        wanted = "reject_once" if message["params"]["sessionId"] in self.refusing else "allow_once"
        chosen = next(o["optionId"] for o in message["params"]["options"] if o["kind"] == wanted)
        self.agent.answer(message["id"], {"outcome": {"outcome": "selected", "optionId": chosen}})


def soak(folder: Path, environment: Mapping[str, str], sessions: int, prompts: int, every: int = EVERY) -> Soak:
    """Run it; every fourth session has Python cells in place of commands."""
    seen = Soak()
    rng = random.Random(7)
    names: list[str] = []
    recipe = _recipe("bash", folder.parent / "bash.cantrip.yaml")
    own = folder.parent / "config"
    own.mkdir()
    _recipe("code", own / "code.cantrip.yaml")
    environment = {**environment, "CANTRIP_CONFIG_DIR": str(own)}
    began = time.monotonic()
    with connect([*AGENT, "--recipe", recipe], environment, folder) as agent:
        process = psutil.Process(agent.pid)
        agent.initialize()
        agent.reply(agent.send("session/list", {}))
        greeted = process.num_fds()
        for number in range(sessions):
            name = agent.session()
            if number % 4 == 3:
                choice = {"sessionId": name, "configId": "recipe", "value": "code"}
                agent.reply(agent.send("session/set_config_option", choice))
            names.append(name)
        talk = _Talk(agent, rng)
        for count in range(1, prompts + 1):
            name = names[count % len(names)]
            kind = rng.choice(KINDS)
            talk.until(len(names) // 4, seen)
            if name in talk.open.values():
                talk.until(0, seen)
            if kind == "reload":
                params = {"sessionId": name, "cwd": str(folder), "mcpServers": []}
                talk.until(0, seen)
                agent.reply(agent.send("session/close", {"sessionId": name}))
                agent.reply(agent.send("session/resume", params))
                kind = "talk"
            talk.refusing.discard(name)
            if kind == "refused":
                talk.refusing.add(name)
            words = {"bash": "run", "refused": "write"}.get(kind, kind)
            number = agent.prompt(name, words)
            talk.open[number] = name
            if kind in ("hang", "trickle"):
                time.sleep(0.02)
                agent.tell("session/cancel", {"sessionId": name})
            if not count % every:
                talk.until(0, seen)
                # What ends a moment after its reply.
                time.sleep(0.1)
                seen.prompts.append(count)
                seen.memory.append(process.memory_info().rss)
                seen.descriptors.append(process.num_fds())
                seen.children.append(len(_below(process)))
        below = _below(process)
        for name in names:
            agent.reply(agent.send("session/close", {"sessionId": name}))
        time.sleep(0.2)
        seen.kept = process.num_fds() - greeted
        seen.seconds = time.monotonic() - began
        leaving = time.monotonic()
    seen.leaving = time.monotonic() - leaving
    seen.left = len(psutil.wait_procs(below, timeout=2)[1])
    return seen


def run(options: Options) -> Table:
    prompts = options.rounds(PROMPTS)
    with workspace("responses: [{content: hello, repeat: true}]\n") as (folder, environment):
        seen = soak(folder, environment, SESSIONS, prompts, max(5, prompts // 20))
    third = len(seen.prompts) // 3
    note = ", ".join(f"{count} {reason}" for reason, count in sorted(seen.reasons.items()))
    return Table(
        "soak",
        f"{prompts:,} prompts over {SESSIONS} sessions in one agent: what grows",
        (
            row("memory after warm-up", [seen.memory[third] / 1e6], "MB"),
            row("memory at the end", [seen.memory[-1] / 1e6], "MB", note=note),
            row(
                "memory that a prompt costs for good",
                [seen.slope() / 1000],
                "kB",
                goal="<= 20 kB",
            ),
            row(
                "descriptors more with every session closed than before the first",
                [seen.kept],
                "",
                goal="<= 10",
            ),
            row("processes below the agent at the end", [seen.children[-1]], ""),
            row(
                "processes that outlive the agent",
                [seen.left],
                "",
                goal="0",
                reached=lambda made: made.median == 0,
            ),
            row("time", [seen.seconds], "s"),
        ),
    )
