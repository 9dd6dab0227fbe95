"""How long a step of training takes (casts, export, update), beside a step of TRL on the same prompts.

`cantrip train larger` makes some steps: 16 questions, four casts of each. With ``--peers``, TRL's `GRPOTrainer` makes three
with the prompts of these casts, the same weights, LoRA size and data type, and transformers to generate (vLLM needs an
accelerator). Each has a process of its own, one after the other. The first step of each is left out, because it also warms up.
Needs `cantrip models pull smollm2` and the extra train.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.loops import ROOT
from bench.measure import Row, Table, row
from bench.options import Options

ENVIRONMENT = Path(__file__).parent / ".venvs" / "trl"
WEIGHTS = """
import sys
from pathlib import Path
from cantrip_acp.training.trainer.model import Model
model = Model("embedded:smollm2", Path("."), rank=1, alpha=1, seed=0)
print(model.causal.config.name_or_path, str(model.dtype).removeprefix("torch."))
"""


def run(options: Options) -> Table:
    steps = options.rounds(8) + 1
    with tempfile.TemporaryDirectory(prefix="cantrip-bench-") as folder:
        environment = os.environ | {"CANTRIP_STATE_DIR": folder}
        program = [sys.executable, "-m", "cantrip_acp.cli.main", "train", "larger", "--json", "--held-out", "1"]
        program += ["--steps", str(steps), "--eval-every", "1000", "--out", f"{folder}/run"]
        lines = [json.loads(line) for line in _output(program, environment)]
        ours = [each["times"] for each in lines if each["event"] == "step" and each["number"] > 1]
        rows: list[Row] = []
        base = None
        if options.peers:
            weights, dtype = _output([sys.executable, "-c", WEIGHTS], environment)[-1].split()
            tokens = f"{folder}/run/steps/0001/tokens.jsonl"
            # One of its steps takes minutes on two cores.
            program = [
                str(_python()),
                "-m",
                "bench.subjects.trl_steps",
                weights,
                tokens,
                str(min(steps, 3)),
                "4",
                dtype,
            ]
            base = row("TRL alone: a step", json.loads(_output(program, environment)[-1])["steps"][1:], "s")
            rows.append(base)
    whole = [each["rollout"] + each["export"] + each["update"] for each in ours]
    rows += [
        row("cantrip train: a step", whole, "s", baseline=base),
        row("its casts", [each["rollout"] for each in ours], "s"),
        row(
            "processor time of the casts that is not the model's", [100 * t["cantrip"] / t["rollout"] for t in ours], "%",
            goal="<= 5",
        ),
        row("its export", [each["export"] for each in ours], "s"),
        row("its update", [each["update"] for each in ours], "s"),
    ]  # fmt: skip
    question = "a step of training: 16 questions, four casts of each, a model of 135 million weights"
    return Table("training", question, tuple(rows))


def _python() -> Path:
    """The Python of TRL's environment, made on first use with what PyPI has today."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        print(f"making {ENVIRONMENT} with trl from PyPI (1.5 GB)", flush=True)
        subprocess.run([sys.executable, "-m", "virtualenv", "--quiet", str(ENVIRONMENT)], check=True)
        needed = ("trl", "peft", "datasets", "jmespath")
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *needed], check=True)
    return python


def _output(program: list[str], environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        program, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()
