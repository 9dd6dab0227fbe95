"""`cantrip train`: trains a small model from the looms of its own casts."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import examples
from cantrip_acp.cli.session.setup import state_option
from cantrip_acp.files.installation import install_command

if TYPE_CHECKING:
    from cantrip_acp.training.trainer.history import Step

_NEEDED = ("torch", "transformers", "peft", "gguf", "uvicorn")
"""The packages of the extra ``train``."""


@click.command(
    "train",
    **examples(
        "cantrip models pull smollm2",
        "cantrip train larger --steps 1",
        "cantrip train distil --steps 1",
        "cantrip train larger --copy-to mine",
    ),
)
@click.argument("example", metavar="EXAMPLE")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="The folder of the run. If the folder has a run, the command continues it.  [default: training/EXAMPLE-SEED "
    "in the state folder]",
)
@click.option("--steps", type=click.IntRange(1), help="Train until the run has this number of steps.")
@click.option("--groups", type=click.IntRange(1), help="How many questions each step uses.")
@click.option("--samples", type=click.IntRange(2), help="How many casts each question gets.")
@click.option(
    "--eval-every", type=click.IntRange(1), help="Cast the held-out questions each time after this number of steps."
)
@click.option("--held-out", type=click.IntRange(1), help="How many held-out questions.")
@click.option("--seed", type=int, help="The seed of everything random.")
@click.option(
    "--model",
    metavar="MODEL",
    help="The weights: embedded:NAME, gguf:FILE, or a folder in the format of transformers. A path is relative to the "
    "folder of this command.",
)
@click.option(
    "--copy-to",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Copy EXAMPLE into the new FOLDER, so that you can change it, and train nothing.",
)
@click.option("--threads", type=click.IntRange(1), help="Processor threads of torch.  [default: one for each core]")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object for each step, and one for the run at the end."
)
@state_option
def train(
    example: str,
    out: Path | None,
    copy_to: Path | None,
    threads: int | None,
    as_json: bool,
    state_dir: Path | None,
    **given: Any,
) -> int:
    """Train a small model on EXAMPLE: a folder, or the name of an example of the package (larger, store, distil).

    An example has a recipe whose circle has a scoring function, and questions. In each step the model casts some
    questions several times. The loom of these casts is exported as token rows, and the model's LoRA weights are updated
    from them (GRPO). After some steps, the model casts questions that it is never trained on. With the method sft in
    train.toml, the model learns the answers in looms of another crystal instead.

    You can stop the run at any time, also by kill -9: the same command continues it. The folder of the run has the LoRA
    weights (adapter), the looms and token rows of each step, and a page with the rewards (curve.html).

    torch uses a GPU or another accelerator if it finds one, else the processor. This command needs the extra
    train.

    Exit status: 0 the run has all its steps, 1 something failed, 2 EXAMPLE or an option is wrong, 130 interrupted.
    """
    if copy_to is not None:
        return _copy(example, copy_to)
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        click.echo(
            f"cantrip: {', '.join(missing)} is not installed; install it with: {install_command('train')}",
            err=True,
        )
        return 1
    # Threads of torch that wait must leave the processor to the casts. This counts only before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    settings = {name: value for name, value in given.items() if value is not None}
    stdout = sys.stdout
    # Prints of an example's Python files must not appear between the lines of JSON.
    with redirect_stdout(sys.stderr if as_json else stdout):
        return _run(example, out, state_dir, settings, stdout if as_json else None)


def _copy(name: str, folder: Path) -> int:
    from cantrip_acp.training.trainer.example import Example
    from cantrip_acp.types.errors import DefinitionError

    if folder.exists():
        raise DefinitionError("exists already; name a new folder", where=str(folder))
    source = Example.load(name).folder
    folder.mkdir(parents=True)
    for file in sorted(source.iterdir()):
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
            click.echo(f"wrote {folder / file.name}")
    click.echo(f"train on it: cantrip train {shlex.quote(str(folder))}")
    return 0


def _run(name: str, out: Path | None, state_dir: Path | None, given: dict[str, Any], lines: IO[str] | None) -> int:
    """Train. Writes JSON to ``lines``, if given."""
    import anyio
    import msgspec

    from cantrip_acp.cli.session.setup import trusted_cantrip
    from cantrip_acp.crystals.scripted import ScriptedCrystal
    from cantrip_acp.files import paths
    from cantrip_acp.training.trainer.example import Example
    from cantrip_acp.training.trainer.history import chart
    from cantrip_acp.training.trainer.run import Run

    example = Example.load(name)
    if "model" in given:
        given["model"] = _from_here(given["model"])
    settings = msgspec.structs.replace(example.settings, **given)
    folder = out or paths.state_dir(state_dir) / "training" / f"{example.folder.resolve().name}-{settings.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    # Named by its path, a recipe is trusted for this run. The served model takes the place of its crystal.
    # Its workspace holds no loom: those have the expected answers.
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    cantrip = trusted_cantrip(str(example.recipe), workspace, state_dir, ScriptedCrystal([]))
    run = Run(example, settings, cantrip, folder)
    if run.history:
        last_step = run.history[-1].number
        click.echo(f"continuing after step {last_step} of {folder}", err=True)
        if run.changed:
            files = ", ".join(run.changed)
            click.echo(f"cantrip: since step {last_step}, these files of the example have changed: {files}", err=True)
        if last_step >= settings.steps:
            click.echo("It has all its steps: give more --steps, or another folder with --out to begin anew.", err=True)
    start = time.perf_counter()
    begun = len(run.history)

    def progress(step: Step) -> None:
        if step.number == begun:
            click.echo(f"the model runs on {run.device}", err=True)
        click.echo(_line(step, settings.steps, time.perf_counter() - start), err=True)
        if lines is not None:
            click.echo(json.dumps({"event": "step", **msgspec.to_builtins(step)}), file=lines)

    try:
        history = anyio.run(run.train, progress)
    except KeyboardInterrupt:
        when = f"after step {len(run.history) - 1}" if run.history else "before the first step ended"
        click.echo(f"stopped {when}; the same command continues", err=True)
        return 130
    last = next((step.held_out for step in reversed(history) if step.held_out is not None), None)
    if lines is not None:
        held = None if last is None else msgspec.to_builtins(last)
        data = {"event": "result", "folder": str(folder), "steps": history[-1].number, "held_out": held}
        click.echo(json.dumps({**data, "device": run.device or None}), file=lines)
        return 0
    for line in chart(history):
        click.echo(line)
    click.echo(f"{folder / 'curve.html'}\n{folder / 'adapter'}")
    return 0


def _from_here(model: str) -> str:
    """A model from the command line. Its path is relative to the current folder, not to that of the example."""
    provider, colon, file = model.partition(":")
    if colon and provider == "embedded":
        return model
    prefix, path = ("gguf:", file) if colon and provider == "gguf" else ("", model)
    return f"{prefix}{Path.cwd() / Path(path).expanduser()}"


def _line(step: Step, steps: int, seconds: float) -> str:
    parts = [f"step {step.number}/{steps}"]
    if step.reward is not None:
        times = step.times
        parts.append(f"reward {step.reward:.2f}, right {step.right or 0:.0%} of {step.casts}")
        parts.append(
            f"rollout {times['rollout']:.1f} s (cantrip {times['cantrip']:.1f}), export {times['export']:.2f}, "
            f"update {times['update']:.1f}"
        )
        if not step.update.get("taught", step.update.get("rows")):
            parts.append("nothing to learn: equal rewards in each group")
    elif step.update:
        parts.append(
            f"loss {step.update['loss']:.3f} of {step.update['tokens']:.0f} tokens, update {step.times['update']:.1f} s"
        )
    if step.held_out is not None:
        parts.append(f"held out: reward {step.held_out.reward:.2f}, right {step.held_out.right:.0%}")
    return " | ".join([*parts, f"{seconds:.0f} s"])
