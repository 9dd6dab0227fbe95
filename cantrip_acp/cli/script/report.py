"""`cantrip client --script FILE`: play a script and show which expectations held."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from cantrip_acp.acp.client.agent_process import AgentMissing
from cantrip_acp.acp.client.client_files import FileRefused
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.cli.script.parse import Script, load
from cantrip_acp.cli.session.permission import Policy
from cantrip_acp.core.errors import DefinitionError
from cantrip_acp.text.sanitize import clean

if TYPE_CHECKING:
    from cantrip_acp.cli.script.play import Verdict


def run_script(
    path: Path, argv: Sequence[str], *, folder: Path, policy: Policy, as_json: bool = False, verbose: bool = False
) -> int:
    """Run the whole command and return its exit status. `policy` answers permission requests that the script does not."""
    from cantrip_acp.cli.script.play import Player

    try:
        script = load(path)
    except (DefinitionError, OSError, UnicodeDecodeError) as problem:
        raise click.UsageError(str(problem)) from None
    if script.folder is not None:
        script.folder.mkdir(parents=True, exist_ok=True)
    face: Any = _Lines() if as_json else _Told(Screen(), verbose)
    allow: Any = {**policy.kinds, "other": policy.kinds.get("other", policy.rule)} if policy.kinds else policy.rule
    player = Player(script, argv, folder=folder, allow=allow, told=face.told)
    try:
        verdicts = anyio.run(player.play)
    except AgentMissing as missing:
        print(f"cantrip: {missing}", file=sys.stderr)
        return 2
    except FileRefused as refused:
        print(f"cantrip: {path}: {refused}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    face.ended(script, verdicts)
    return int(len(verdicts) < len(script.steps) or any(verdict.problems for verdict in verdicts))


class _Told:
    """Output for people: one line per step, and under it the expectations that did not hold."""

    def __init__(self, screen: Screen, verbose: bool) -> None:
        self._screen = screen
        self._verbose = verbose

    def told(self, verdict: Verdict) -> None:
        good = not verdict.problems
        mark = self._screen.marks.done if good else self._screen.marks.failed
        self._screen.line(
            (f"{mark} ", "green" if good else "red"), clean(verdict.step.title), (f"  {verdict.seconds:.2f} s", "dim")
        )
        if not good:
            self._screen.line((verdict.step.where, "dim"), indent=2, whole=True)
        for problem in verdict.problems:
            for line in clean(problem).splitlines():
                style = {"-": "red", "+": "green"}.get(line.lstrip()[:1], "")
                self._screen.line((line, style), indent=2, whole=True)
        if self._verbose and verdict.told.get("text"):
            for line in clean(str(verdict.told["text"])).splitlines():
                self._screen.line((f"| {line}", "dim"), indent=2)

    def ended(self, script: Script, verdicts: Sequence[Verdict]) -> None:
        failed = sum(bool(verdict.problems) for verdict in verdicts)
        parts = [f"{len(verdicts) - failed} passed", f"{failed} failed"]
        if left := len(script.steps) - len(verdicts):
            parts.append(f"{left} not played, since the agent had ended")
        self._screen.line((f"{script.name}: {', '.join(parts)}", "bold red" if failed or left else "bold green"))


class _Lines:
    """Output for programs: one line of JSON per step, and one at the end."""

    def told(self, verdict: Verdict) -> None:
        self._print(
            "step",
            name=verdict.step.title,
            where=verdict.step.where,
            passed=not verdict.problems,
            problems=verdict.problems,
            seconds=round(verdict.seconds, 3),
            happened=verdict.told,
        )

    def ended(self, script: Script, verdicts: Sequence[Verdict]) -> None:
        failed = sum(bool(verdict.problems) for verdict in verdicts)
        left = len(script.steps) - len(verdicts)
        self._print("script", name=script.name, passed=len(verdicts) - failed, failed=failed, not_played=left)

    def _print(self, event: str, **fields: object) -> None:
        sys.stdout.write(json.dumps({"event": event, **fields}, default=str) + "\n")
        sys.stdout.flush()
