"""`cantrip demo`: shows an entity that fixes a small project in the real sandbox.

A scripted crystal replaces the model, so no key is needed. With ``--live`` a small real model writes a program instead.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cantrip_acp.cli.command_table import examples
from cantrip_acp.files.installation import install_command

if TYPE_CHECKING:
    from cantrip_acp.acp.client.client import Outcome
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.demo.sample_project import Finding, SampleProject, TestRun


@click.command(epilog=examples("cantrip demo", "cantrip demo --slow --keep", "cantrip demo --live")["epilog"])
@click.option("--slow", is_flag=True, help="Show the text at the speed of a model.")
@click.option("--keep", is_flag=True, help="Do not delete the sample project at the end.")
@click.option("--full", is_flag=True, help="Show complete outputs and changes.")
@click.option("--live", is_flag=True, help="Let a real model on this machine write one small program instead.")
def demo(slow: bool, keep: bool, full: bool, live: bool) -> int:
    """Watch an entity fix a small project in a real sandbox. No key is needed.

    A scripted crystal takes the place of a model. Everything else is real: the agent `cantrip-acp`, the client, the
    sandboxed commands, the gates, the edit, the tests that fail and then pass, and the loom. At the end, the demo
    checks the files, the loom and the tests.

    With --live a model of a server on this machine (Ollama, LM Studio, vLLM, llama.cpp) writes a program that the
    sandbox runs; without such a server the embedded model SmolLM2 does. SmolLM2 is tiny, and often wrong. No key is
    needed.

    Exit status: 0 all checks passed, 1 a check failed, 2 no model is here (--live), 3 this machine has no sandbox,
    130 interrupted.
    """
    if live:
        return run_live(keep=keep, full=full)
    return run(slow=slow, keep=keep, full=full)


def run(*, slow: bool = False, keep: bool = False, full: bool = False) -> int:
    """Run the whole command and return its exit status. Raises SandboxMissing."""
    import anyio

    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.demo.sample_project import prepare
    from cantrip_acp.sandbox import ensure_checked

    anyio.run(ensure_checked)
    screen = Screen()
    root = Path(tempfile.mkdtemp(prefix="cantrip-demo-"))
    status = 1
    try:
        stage = prepare(root, slow=slow)
        status = _play(screen, stage, full=full)
        return status
    finally:
        if keep or status == 1:
            screen.line(("project  ", "dim"), str(root / "pennywise"), (" (kept)", "dim"), whole=True)
        else:
            shutil.rmtree(root, ignore_errors=True)


_LIVE = """\
name: live
crystal: {{provider: {provider}, model: {model}, tools: text}}
call:
  system_prompt: |
    You answer with one block of Python code and nothing else. For the question "What is 12 + 30?" you write:

    ```python
    print(12 + 30)
    ```
  temperature: 0
  max_tokens: 160
circle:
  medium: code
  gates: [done]
  wards: [max_turns: 3]
memory: {{record: false}}
"""
_TASK, _RESULT = "Write Python code that prints 17 * 23.", "391"


def run_live(*, keep: bool = False, full: bool = False) -> int:
    """Let a real model on this machine write a program, and run it in the sandbox. Returns the exit status."""
    from cantrip_acp.cli.commands.cast import run_opened
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.session.permissions import named_hosts
    from cantrip_acp.cli.session.setup import ContextFiles, open_recipe

    screen = Screen()
    provider, model = _live_model(screen)
    root = Path(tempfile.mkdtemp(prefix="cantrip-demo-"))
    try:
        recipe = root / "live.cantrip.yaml"
        recipe.write_text(_LIVE.format(provider=provider, model=json.dumps(model)))
        opening = open_recipe(str(recipe), root, str(root / "live.loom.jsonl"), root / "state")
        with opening.loom as loom:
            began = time.monotonic()
            run_opened(opening, _TASK, ContextFiles(), named_hosts(), full=full)
            seconds = time.monotonic() - began
            turns = [turn for turn in loom.turns() if turn.role == "crystal"]
            printed = [str(turn.observation.output) for turn in turns if turn.observation is not None]
            tokens = sum(turn.metadata.tokens_completion or 0 for turn in turns)
        right = any(_RESULT in each for each in printed)
        screen.blank()
        what = "printed" if right else "did not print"
        screen.line(f"A real model wrote this program, and the sandbox ran it. It {what} {_RESULT}.")
        screen.line((f"{tokens} tokens in {seconds:.1f} s, with the start of the model.", "dim"))
        return 0 if right else 1
    finally:
        if keep:
            screen.line(("project  ", "dim"), str(root), (" (kept)", "dim"), whole=True)
        else:
            shutil.rmtree(root, ignore_errors=True)


def _live_model(screen: Screen) -> tuple[str, str]:
    """The provider and the model for ``--live``: of a server on this machine, else the embedded one."""
    from cantrip_acp.crystals.embedded import weights
    from cantrip_acp.crystals.embedded.crystal import xllamacpp_installed
    from cantrip_acp.crystals.local.discovery import find_running

    if servers := find_running():
        server = servers[0]
        screen.line(
            f"The model is {server.provider}:{server.models[0].name}, from the server at {server.base_url}.", whole=True
        )
        return server.provider, server.models[0].name
    known = weights.KNOWN[weights.DEFAULT]
    missing = [] if xllamacpp_installed() else [install_command("embedded")]
    missing += [] if known.pulled else [f"cantrip models pull {known.name}"]
    if missing:
        raise click.UsageError(
            f"no model server runs on this machine. To use the embedded one, run: {' && '.join(missing)}"
        )
    screen.line(
        "The model is SmolLM2 with 135 million parameters. It is tiny: it writes fluent text, and is often wrong. It runs in a "
        "sandbox of its own, without a network.",
        whole=True,
    )
    return "embedded", known.name


def agent_command() -> list[str]:
    """The command of this installation's ACP agent: its console script, else its module."""
    script = Path(sys.executable).with_name("cantrip-acp")
    return [str(script)] if script.is_file() else [sys.executable, "-m", "cantrip_acp.acp.start"]


def _play(screen: Screen, stage: SampleProject, *, full: bool) -> int:
    from cantrip_acp.acp.client.client import AgentError, AgentMissing
    from cantrip_acp.cli.render.client_output import ClientText
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.session.client_session import ClientSession, Quit
    from cantrip_acp.cli.session.permissions import Policy
    from cantrip_acp.demo.sample_project import INTENT, run_tests

    before, first = stage.files(), run_tests(stage.project)
    argv = [*agent_command(), "--recipe", str(stage.recipe)]
    screen.line(("A scripted crystal takes the place of a model. Everything else is real. This command runs:", "dim"))
    screen.line(("$ ", "dim"), "cantrip client --allow never --cwd PROJECT -- cantrip-acp --recipe RECIPE")
    screen.blank()
    output = ClientText(screen, Screen(sys.stderr), folder=stage.project, full=full)
    started = time.monotonic()
    headless = ClientSession(argv, output, folder=stage.project, policy=Policy("never"), timeout=300)
    try:
        with headless:
            session = headless.open()
            output.show_prompt(INTENT)
            outcome = headless.turn(INTENT)
    except Quit as quit_:
        return quit_.status
    except KeyboardInterrupt:
        return 130
    except (AgentError, AgentMissing) as error:
        output.show_error(error)
        return 1
    if headless.interrupted:
        return 130
    from cantrip_acp.cli.render.client_output import loom_of

    return _prove(screen, stage, before, first, outcome, loom_of(session.meta), time.monotonic() - started)


def _prove(
    screen: Screen,
    stage: SampleProject,
    before: dict[str, bytes],
    first: TestRun,
    outcome: Outcome,
    loom: str | None,
    seconds: float,
) -> int:
    """Check the files and the loom, and print the summary. Returns the exit status."""
    from cantrip_acp.cli.render.display import duration
    from cantrip_acp.demo.sample_project import check_result, read_loom
    from cantrip_acp.types.errors import LoomError

    marks = screen.marks
    screen.blank()
    if loom is None:
        screen.line((f"{marks.failed} the agent did not report the place of its loom", "red"))
        return 1
    try:
        record = read_loom(Path(loom))
    except LoomError as error:
        screen.line((f"{marks.failed} the loom cannot be read: {error}", "red"))
        return 1
    screen.line(("Checked after the end, outside the sandbox:", "bold"))
    findings = [
        *check_result(stage, before, first, record, outcome.stop_reason),
        _undo_finding(stage, before, Path(loom)),
    ]
    for finding in findings:
        mark, style = (marks.done, "green") if finding.holds else (marks.failed, "bold red")
        screen.line((f"{mark} ", style), (finding.words, "" if finding.holds else "red"), indent=2)
    dot = f" {marks.dot} "
    screen.blank()
    screen.line(
        dot.join(
            [
                f"{record.turns} turns",
                f"{len(record.commands)} commands",
                f"{len(record.gates)} gate calls",
                *record.usage.words(),
                duration(seconds),
            ]
        )
    )
    screen.line(("loom     ", "dim"), loom, whole=True)
    screen.line(("look at it with  ", "dim"), (f"{_program()} loom show {_quoted(loom)}", "bold"), whole=True)
    return 0 if all(finding.holds for finding in findings) else 1


def _undo_finding(stage: SampleProject, before: dict[str, bytes], loom: Path) -> Finding:
    """Check that the entity asked nothing, and that each of its changes could be undone."""
    from cantrip_acp.cli.loom.restore import restore_files
    from cantrip_acp.demo.sample_project import Finding
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.errors import CantripError

    changed = {name for name in stage.files().keys() | before.keys() if stage.files().get(name) != before.get(name)}
    try:
        with Loom.open(loom, readonly=True) as held:
            first = next(iter(held.places))
            found = restore_files(held, first, dry_run=True)
    except CantripError as problem:
        return Finding(False, f"its changes cannot be undone: {problem}")
    holds = set(found.restored) == changed and not found.left and not found.conflicts
    names = ", ".join(sorted(found.restored)) or "nothing"
    return Finding(holds, f"it asked no question (a question would have been refused), and could undo: {names}")


def _program() -> str:
    """The command that starts this program in the user's shell. With `make demo` it is not on PATH."""
    if shutil.which("cantrip") is not None:
        return "cantrip"
    own = Path(sys.argv[0])
    return _quoted(str(own)) if own.name == "cantrip" and own.is_file() else f"{_quoted(sys.executable)} -m cantrip_acp"


def _quoted(path: str) -> str:
    import shlex

    return shlex.quote(path)
