"""A chat of 5,000 turns in VS Code: opening it, and typing in it.

Two parts, each beside an empty chat. The agent: `session/load` at a bare client with the abilities of the extension's,
in a process that has not loaded a session before, from the request to the last update (the reply follows it).
The page: the chat's own script in a headless Chromium, from the message `reset` with what the extension host sends
until the last message is painted, and 17 keys typed at once. Between them the extension host makes items of updates, which has a
row of its own. Needs npm packages (`npm ci` in vscode-extension), Chromium and Playwright.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psutil

from bench.agent import AGENT, connect, workspace
from bench.measure import Row, Table, row
from bench.options import Options
from tests.support import browser

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[1]
EXTENSION = ROOT / "vscode-extension"
PROMPTS = 1_000
CALLS = 4
"""Turns with a call, of each prompt; one with the answer follows."""
AT_ONCE = 120
"""Items that the extension host sends with `reset` (src/chat/panel.ts)."""
KEYS = "What does it do??"
ABILITIES = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "session": {"notices": {}, "compaction": {}, "configOptions": {"boolean": {}}},
    "_meta": {"terminal_output": True, "cantrip": {"promptQueueing": True}},
}
"""What src/acp/connection.ts announces, without what would ask the user."""
RECIPE = {
    "name": "chat",
    "circle": {"medium": "conversation", "gates": ["done", "read_file"], "wards": [{"max_turns": 10}]},
}
ANSWER = (
    "The project is described in `README.md`.\n\n- It is **small**.\n- It has no tests.\n\n```python\nprint(1)\n```\n"
)
HOST = """
let kept
window.acquireVsCodeApi = () => ({ postMessage() {}, getState: () => kept, setState: (s) => { kept = s } })
window.tell = (message) => window.dispatchEvent(new MessageEvent('message', { data: message }))
const none = { queue: [], options: [], commands: [], plan: [] }
window.state = { status: 'ready', session: 's1', title: '', running: false, queues: true, ...none }
"""
OPEN = """async ({ items, total }) => {
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))
  await painted()
  const began = performance.now()
  tell({ type: 'reset', items, first: total - items.length, total, state })
  const last = items.at(-1)
  while (last !== undefined && document.querySelector(`[data-id="${last.id}"]`) === null) await painted()
  await painted()
  return performance.now() - began
}"""
"""Milliseconds from `reset` until the frame with the last item is there."""


def _fill(folder: Path, environment: dict[str, str], recipe: Path, prompts: int) -> str:
    """A stored session with so many prompts; returns its id."""
    call = {"content": "I read it.", "tool_calls": [{"gate": "read_file", "args": {"path": "README.md"}}]}
    responses = [*[call] * CALLS, {"content": ANSWER}] * prompts
    # JSON is YAML.
    recipe.write_text(json.dumps(RECIPE))
    script = folder.parent / "script.yaml"
    short = script.read_text()
    script.write_text(json.dumps({"responses": responses or [{"content": "x"}]}))
    with connect([*AGENT, "--recipe", str(recipe)], environment, folder) as agent:
        agent.initialize()
        session = agent.session()
        for number in range(prompts):
            reply = agent.reply(agent.prompt(session, f"Question {number}: what does this project do?"))
            if reply["stopReason"] != "end_turn":
                raise RuntimeError(f"prompt {number} ended otherwise: {reply}")
    # The script of so many answers is not what a load should wait for.
    script.write_text(short)
    return session


def _load(folder: Path, environment: dict[str, str], recipe: Path, session: str) -> tuple[float, float, list[Any]]:
    """Milliseconds from the request to the last update, how many of them the agent had a processor, and the updates."""
    with connect([*AGENT, "--recipe", str(recipe)], environment, folder) as agent:
        agent.reply(agent.send("initialize", {"protocolVersion": 1, "clientCapabilities": ABILITIES}))
        process = psutil.Process(agent.pid)
        before, began = process.cpu_times(), time.perf_counter()
        asked = agent.send("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
        lines = []
        # The client's own reading of JSON is not the agent's time.
        while f'"id":{asked},'.encode() not in (line := agent.output.readline())[:40]:
            if not line:
                raise EOFError("the agent ended while it loaded a session")
            lines.append(line)
        spent = (time.perf_counter() - began) * 1000
        after = process.cpu_times()
        busy = (after.user + after.system - before.user - before.system) * 1000
        if b'"result"' not in line:
            raise RuntimeError(f"the agent refused: {line[:500]!r}")
    messages = [json.loads(each) for each in lines]
    return spent, busy, [each["params"]["update"] for each in messages if each.get("method") == "session/update"]


def _items(updates: list[Any], script: Path) -> tuple[float, list[Any]]:
    """Milliseconds that the extension host takes to make items of updates, and the items."""
    given = "\n".join(map(json.dumps, updates))
    made = json.loads(subprocess.run(["node", script], input=given, capture_output=True, text=True, check=True).stdout)
    return made["ms"], made["items"]


def _page(chromium: Any) -> Page:
    page: Page = chromium.new_page(viewport={"width": 420, "height": 800})
    page.set_content('<html><body><main id="chat"></main></body></html>')
    page.add_style_tag(path=EXTENSION / "dist/chat/chat.css")
    page.add_script_tag(content=HOST)
    page.add_script_tag(path=EXTENSION / "dist/chat/chat.js")
    return page


def _open_and_type(chromium: Any, items: list[Any]) -> tuple[float, list[float], list[float]]:
    """Milliseconds until the last item is painted; until 17 keys are in the field and painted, three times; and how many of
    these the page's main thread had a processor."""
    page = _page(chromium)
    measured = page.context.new_cdp_session(page)
    measured.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        metrics = measured.send("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration") * 1000

    opened = page.evaluate(OPEN, {"items": items[-AT_ONCE:], "total": len(items)})
    page.locator("textarea").focus()
    typed, used = [], []
    for _ in range(3):
        before, began = busy(), time.perf_counter()
        page.keyboard.type(KEYS)
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        typed.append((time.perf_counter() - began) * 1000)
        used.append(busy() - before)
    if page.locator("textarea").input_value() != KEYS * 3:
        raise RuntimeError("the keys did not arrive")
    page.close()
    return opened, typed, used


def run(options: Options) -> Table:
    """The table."""
    prompts = PROMPTS // 10 if options.quick else PROMPTS
    turns = prompts * (CALLS + 1)
    samples: dict[str, list[float]] = {}
    with (
        workspace("responses: [{content: hello, repeat: true}]\n") as (folder, environment),
        TemporaryDirectory() as made,
    ):
        script = Path(made) / "chat_items.cjs"
        subprocess.run(["node", "esbuild.mjs", "--production"], cwd=EXTENSION, check=True)
        subprocess.run(
            [
                EXTENSION / "node_modules/.bin/esbuild",
                ROOT / "bench/subjects/chat_items.ts",
                "--bundle",
                "--platform=node",
                "--log-level=warning",
                f"--outfile={script}",
            ],
            check=True,
        )
        recipe = folder.parent / "chat.cantrip.yaml"
        chats = {"empty": _fill(folder, environment, recipe, 0), "long": _fill(folder, environment, recipe, prompts)}
        with browser.running() as chromium:
            items: list[Any] = []
            for _ in range(options.rounds(10)):
                for name, session in chats.items():
                    spent, busy, updates = _load(folder, environment, recipe, session)
                    host, items = _items(updates, script)
                    opened, typed, used = _open_and_type(chromium, items)
                    taken = {
                        "load": [spent],
                        "busy": [busy],
                        "host": [host],
                        "page": [opened],
                        "keys": typed,
                        "used": used,
                    }
                    for part, each in taken.items():
                        samples.setdefault(f"{part}: {name}", []).extend(each)
                    if name == "long" and len(items) < turns:
                        raise RuntimeError(f"{turns} turns have {len(items)} items")

    def pair(part: str, subject: str, goal: str = "") -> tuple[Row, Row]:
        base = row(f"{subject}, an empty chat", samples[f"{part}: empty"], "ms")
        long = samples[f"{part}: long"]
        return base, row(f"{subject}, {turns:,} turns", long, "ms", baseline=base, goal=goal)

    whole = [sum(each) for each in zip(*(samples[f"{part}: long"] for part in ("load", "host", "page")), strict=True)]
    nothing = [
        sum(each) for each in zip(*(samples[f"{part}: empty"] for part in ("load", "host", "page")), strict=True)
    ]
    base = row("opening, an empty chat", nothing, "ms")
    return Table(
        "chat",
        f"a chat of {turns:,} turns in VS Code",
        (
            base,
            row(
                f"opening, {turns:,} turns",
                whole,
                "ms",
                baseline=base,
                goal="<= 1,000",
                note=f"{len(updates):,} updates",
            ),
            *pair("load", "of it the agent"),
            *pair("busy", "of that its processor time"),
            *pair("host", "of it the extension host"),
            *pair("page", "of it the page"),
            *pair("keys", f"{len(KEYS)} keys", "<= 1.1 x the empty chat"),
            *pair("used", "of that the page's processor time"),
        ),
    )
