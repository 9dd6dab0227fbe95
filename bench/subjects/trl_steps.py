"""TRL alone: steps of its `GRPOTrainer` on prompts that `cantrip train` sampled, with the same weights and batch.

    python -m bench.subjects.trl_steps WEIGHTS TOKENS STEPS SAMPLES

WEIGHTS is a folder in the format of transformers; TOKENS has the token rows of one step. Prints JSON: the seconds of each step.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

CALL = re.compile(r'"answer": "?(\d+)"?')
AT_ONCE = 16
"""Sequences of one forward pass: all 64 at once need more memory than a small machine has."""


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.ends.append(time.perf_counter())
        print(f"TRL: step {len(self.ends) - 1} after {self.ends[-1] - self.ends[0]:.0f} s", file=sys.stderr, flush=True)


def reward(completions: list[str], reference: list[str], **_: Any) -> list[float]:
    found = [CALL.search(each) for each in completions]
    return [
        0.0 if answer is None else 1.0 if answer[1] == right else 0.3
        for answer, right in zip(found, reference, strict=True)
    ]


def main() -> None:
    weights, tokens, steps, samples = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    rows = [json.loads(line) for line in tokens.read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(weights)
    prompts = {tuple(row["prompt_ids"]): str(row["reference"]) for row in rows}
    texts = [{"prompt": tokenizer.decode(ids), "reference": right} for ids, right in prompts.items()]
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="cantrip-bench-") as folder:
        config = GRPOConfig(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=AT_ONCE,
            gradient_accumulation_steps=len(texts) * samples // AT_ONCE, num_generations=samples, max_completion_length=32,
            learning_rate=2e-4, beta=0.0, temperature=1.0, scale_rewards="none", gradient_checkpointing=False,
            bf16=False, use_cpu=True, report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(weights, dtype=getattr(torch, sys.argv[5])), reward, config,
            train_dataset=Dataset.from_list(texts), processing_class=tokenizer, callbacks=[clock],
            peft_config=LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", bias="none"),
        )  # fmt: skip
        clock.ends.append(time.perf_counter())
        trainer.train()
    times = [later - earlier for earlier, later in zip(clock.ends, clock.ends[1:], strict=False)]
    print(json.dumps({"steps": times}))


if __name__ == "__main__":
    main()
