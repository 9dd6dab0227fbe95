"""How soon an embedded model answers: the first token, with and without a running process, beside llama.cpp alone. And which
share of the time of rollouts is not llama.cpp's.

Every sample is a new Python process, from its start to the first token of "Say hello.", as a session sees it whose first query
that is. The baseline is a program that loads the same weights with llama.cpp and asks it directly, without sandbox and socket.
Needs `cantrip models pull smollm2`.
"""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.loops import ROOT
from bench.measure import Table, row
from bench.options import Options
from cantrip_acp.crystals.embedded.weights import KNOWN

MODEL = KNOWN["smollm2"]
ALONE = f"""
import json, sys, time
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup, params.verbosity = sys.argv[1], 16384, 2, False, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = {len(os.sched_getaffinity(0))}
server = xllamacpp.Server(params)
def first(piece):
    print("first", flush=True)
    return True
server.handle_chat_completions(
    json.dumps({{"messages": [{{"role": "user", "content": "Say hello."}}], "max_tokens": 1, "temperature": 0}}), first
)
"""
OURS = """
import sys
from pathlib import Path
import anyio
from cantrip_acp.crystals.contract import Message, Query
from cantrip_acp.types.call import Call
from cantrip_acp.recipes.build.crystals import crystal_for
from cantrip_acp.recipes.recipe import load
async def main():
    async def emit(delta):
        print("first", flush=True)
    crystal = crystal_for(load(Path(sys.argv[1])))
    await crystal.query(Query([Message("user", "Say hello.")], params=Call(max_tokens=2, temperature=0)), emit)
anyio.run(main)
"""
ROLLOUTS = """
import sys, time
from pathlib import Path
import anyio
from cantrip_acp import Call, Cantrip, Circle
from cantrip_acp.recipes.build.crystals import crystal_for
from cantrip_acp.recipes.recipe import load
from cantrip_acp.core import exports
from cantrip_acp.core.exports import ThreadSelection
from cantrip_acp.training.export.selection import Source
async def main():
    crystal = crystal_for(load(Path(sys.argv[1])))
    computed = 0.0
    count = crystal.usage
    def usage(chat):
        nonlocal computed
        if chat.timings is not None:
            computed += chat.timings["prompt_ms"] + chat.timings["predicted_ms"]
        return count(chat)
    crystal.usage = usage
    for number in range(int(sys.argv[2]) + 1):
        # Each has a loom of its own, which is exported at the end.
        cantrip = Cantrip(crystal, Call(max_tokens=32, temperature=1), Circle("conversation", ["done"], {"max_turns": 1}))
        computed, began = 0.0, time.perf_counter()
        for _ in range(8):
            await cantrip.cast("Which is larger, 17 or 23?")
        rows = list(exports.find("verifiers").rows(Source(cantrip.loom, ThreadSelection(truncated=True))))
        took = (time.perf_counter() - began) * 1000
        assert len(rows) == 8, len(rows)
        # The first one starts the model's process.
        if number:
            print(100 * (1 - computed / took), flush=True)
anyio.run(main)
"""
RECIPE = "crystal: embedded\ncircle: {medium: conversation, gates: [done], wards: [{max_turns: 1}]}\n"


def run(options: Options) -> Table:
    if not MODEL.pulled:
        raise SystemExit(f"the weights are not here; get them with: cantrip models pull {MODEL.name}")
    alone: list[float] = []
    cold: list[float] = []
    warm: list[float] = []
    with tempfile.TemporaryDirectory(prefix="cantrip-bench-") as folder:
        recipe = Path(folder) / "one.cantrip.yaml"
        recipe.write_text(RECIPE)
        for _ in range(options.rounds(10)):
            alone.append(_first_token(folder, ALONE, str(MODEL.path)))
            cold.append(_first_token(folder, OURS, str(recipe)))
            warm.append(_first_token(folder, OURS, str(recipe)))
            end_servers(folder)
        recipe.write_text(RECIPE.replace("embedded", "{provider: embedded, model: smollm2, logprobs: true}"))
        shares = _shares(folder, str(recipe), options.rounds(10))
        end_servers(folder)
    base = row("llama.cpp alone: start to the first token", alone, "ms")
    return Table(
        "embedded",
        "how soon an embedded model answers: a new Python process to its first token",
        (
            base,
            row(
                "a query that starts the model's process",
                cold,
                "ms",
                baseline=base,
                goal="<= 2500",
            ),
            row("a query while it runs", warm, "ms", baseline=base),
            row(
                "rollouts: 8 casts of at most 32 tokens and their export, the share of time that is not llama.cpp's",
                shares,
                "%",
                goal="<= 5",
            ),
        ),
    )


def _first_token(folder: str, program: str, argument: str) -> float:
    """Milliseconds from the start of a process to its first token."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": folder, "CANTRIP_STATE_DIR": f"{folder}/state"}
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", program, argument],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"first\n":
            raise SystemExit("the model did not answer")
        took = (time.perf_counter() - began) * 1000
        process.stdout.read()
    return took


def _shares(folder: str, recipe: str, rounds: int) -> list[float]:
    """Percent of the time of each round of rollouts that llama.cpp did not compute."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": folder, "CANTRIP_STATE_DIR": f"{folder}/state"}
    command = [sys.executable, "-c", ROLLOUTS, recipe, str(rounds)]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def end_servers(folder: str) -> None:
    """End the model's process that this folder's socket belongs to."""
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"cantrip_acp.crystals.embedded.server_process" in words and folder in json.loads(words[3])["socket"]:
            os.kill(int(entry.name), signal.SIGTERM)
    while _answering(folder):
        time.sleep(0.05)


def _answering(folder: str) -> bool:
    import socket

    # Unlike `rglob`, it passes over folders that are removed meanwhile.
    for path in glob.iglob(f"{folder}/**/model.sock", recursive=True):
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(path)
            except OSError:
                continue
            return True
    return False
