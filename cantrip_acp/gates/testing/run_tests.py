"""The gate ``run_tests``: runs a workspace's tests in the circle's sandbox and returns the results as data.

The command comes from the recipe, or is derived from the workspace's files. It runs with the same sandbox policy and limits
as a command of the bash medium.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from cantrip_acp.gates.confinement import quoted
from cantrip_acp.gates.contract import Gate, GateContext, GateInputs, GateReply, GateSession
from cantrip_acp.gates.interaction.shell import CommandSession
from cantrip_acp.gates.registry import TIMEOUT
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.records import Location

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView, GateRegistrar
    from cantrip_acp.gates.testing.test_report import Report
    from cantrip_acp.sandbox import Outcome

SHOWN_OUTPUT = 6_000
"""The most characters of output in a result, from its end."""
_PLACE = re.compile(r"^(?:E\s+)?(?:File \")?([\w./@+ -]{1,300}\.\w{1,5})(?:\", line |:)(\d{1,7})", re.MULTILINE)
_HEX = re.compile(r"[0-9a-f]{32}\Z")
_TARGETS = "{targets}"


class TestSession(CommandSession):
    """The gate's session for one entity."""

    __test__ = False

    async def call(self, args: Mapping[str, Any], context: GateContext) -> GateReply:
        """Run the tests. Failing tests are a normal result. Raises `GateError` if the tests cannot be run."""
        runner, command, also = await anyio.to_thread.run_sync(_command, args, context)
        from cantrip_acp.gates.testing import test_report

        most = context.wards.bash_timeout_ms
        asked = args.get("timeout_s") or context.dependencies.get("timeout_s")
        limit = min(most, int(float(asked) * 1000)) if asked else most
        stream = test_report.GoReader() if runner == "go" else None

        def tap(which: int, data: bytes) -> None:
            if stream is not None and which == 1:
                stream.feed(data)

        outcome = await self.run(
            command,
            context,
            limit,
            environment=_environment(context),
            tap=tap if stream is not None else None,
        )
        output = "\n".join(part for part in (outcome.stdout.rstrip("\n"), outcome.stderr.rstrip("\n")) if part)
        if stream is not None and stream.report.counted:
            report = stream.report
        else:
            report = await anyio.to_thread.run_sync(test_report.read, runner, output)
        result = _result(runner, command, also, outcome, report, output, limit)
        return GateReply(result, title=_summary(result), locations=_locations(report, context))


def _command(args: Mapping[str, Any], context: GateContext) -> tuple[str, str, tuple[str, ...]]:
    """Find the runner, the command, and other runners of the workspace. Runs in a thread, because it reads files."""
    from cantrip_acp.gates.confinement import Root
    from cantrip_acp.gates.testing.test_command import find_test_command

    targets, match = list(args.get("targets", ())), args.get("match", "")
    declared = context.dependencies.get("command")
    if declared is None:
        found = find_test_command(Root.of(context), args.get("runner"), targets, match)
        return found.runner, found.command, found.also
    import shlex

    if args.get("runner") or match:
        raise GateError(f"the tests here are run by {declared!r}", "leave runner and match out")
    if targets and _TARGETS not in declared:
        raise GateError(f"the tests here are run by {declared!r}, which takes no targets", "leave them out")
    if any(t.startswith("-") for t in targets):
        raise GateError("targets are files, folders or names of tests, not options")
    return "command", declared.replace(_TARGETS, shlex.join(targets)), ()


def _environment(context: GateContext) -> dict[str, str]:
    # With CI, runners do not wait for input or watch files.
    given = {"CI": "1", "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1", "FORCE_COLOR": "0"}
    if _HEX.match(context.trace_id):
        given["TRACEPARENT"] = f"00-{context.trace_id}-{os.urandom(8).hex()}-01"
    return given


def _result(
    runner: str,
    command: str,
    also: tuple[str, ...],
    outcome: Outcome,
    report: Report,
    output: str,
    limit: int,
) -> dict[str, Any]:
    notes = []
    ok = outcome.exit_code == 0
    if outcome.timed_out:
        notes.append(f"stopped after {limit / 1000:g} seconds, so not all tests were run")
    elif outcome.ended_because:
        notes.append(f"stopped: {outcome.ended_because}")
    elif report.counted and report.total == 0:
        ok = False
        notes.append("no test was run")
    elif ok and not report.counted:
        notes.append("the command succeeded, but its output does not say which tests ran: look at it")
    elif ok and ((report.failed or 0) + (report.errors or 0)):
        ok = False
        notes.append("the command succeeded although tests failed")
    elif outcome.exit_code == 127:
        notes.append("a program is missing in the sandbox: see the output")
    if also:
        notes.append(f"the workspace has other tests too: runner may be {', '.join(also)}")
    shown = output if len(output) <= SHOWN_OUTPUT else f"[…]\n{output[-SHOWN_OUTPUT:]}"
    result: dict[str, Any] = {
        "ok": ok,
        "passed": report.passed,
        "failed": report.failed,
        "errors": report.errors,
        "skipped": report.skipped,
        "failures": [{"name": failure.name, "text": failure.text} for failure in report.failures],
        "exit_code": outcome.exit_code,
        "runner": runner,
        "command": command,
        "seconds": round(outcome.duration_ms / 1000, 2),
        "timed_out": outcome.timed_out,
        "truncated": outcome.truncated or len(output) > SHOWN_OUTPUT,
        "output": shown,
    }
    if notes:
        result["note"] = "; ".join(notes)
    return result


def _summary(result: Mapping[str, Any]) -> str:
    words = [f"{result[name]} {name}" for name in ("passed", "failed", "errors", "skipped") if result[name]]
    said = ", ".join(words) or ("passed" if result["ok"] else "failed")
    if result["timed_out"]:
        said += ", timed out"
    return f"Ran the tests, {said} ({result['runner']})"


def _locations(report: Report, context: GateContext) -> tuple[Location, ...]:
    """The locations of the first failures, for editors. They come from untrusted output, so we never open them."""
    workspace = str(context.workspace) if context.workspace is not None else None
    found = []
    for failure in report.failures[:10]:
        places = _PLACE.findall(failure.text)
        if places and workspace is not None and ".." not in places[-1][0].split("/"):
            path = os.path.join(workspace, places[-1][0])
            if path.startswith(workspace + os.sep):
                found.append(Location(path, int(places[-1][1])))
    return tuple(dict.fromkeys(found))


def _open_session(registrar: GateRegistrar, circle: CircleView) -> GateSession:
    return TestSession(circle)


def _no_session(args: Mapping[str, Any], context: GateContext) -> Any:
    raise GateError("run_tests works only in a running entity, because it needs the entity's sandbox")


def _preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
    what = f" in {' '.join(args['targets'])}" if args.get("targets") else ""
    what += f" that match {quoted(args['match'])}" if args.get("match") else ""
    declared = context.dependencies.get("command")
    by = f" by {declared}" if declared else ""
    # Like a shell command, it may write in the workspace if the wards allow that.
    places = (Location(str(context.workspace)),) if context.workspace is not None else ()
    return GateReply(None, title=f"Run the tests{by}{what[:120]}", locations=places)


def _command_line(args: Mapping[str, Any], context: GateContext) -> str:
    """The command line that a call runs. Raises `GateError` if there is none, as the call itself would."""
    return _command(args, context)[1]


def _inputs(args: Mapping[str, Any], context: GateContext) -> GateInputs | None:
    """The workspace, the programs that run the tests, and the packages of its Python. None if tests may use the network."""
    workspace = context.workspace
    if workspace is None or context.wards.bash_network is not False:
        return None
    from shutil import which

    names = ("python3", "node", "npm", "go", "cargo", "make")
    programs = [path for name in names if (path := which(name)) is not None]
    programs += map(str, sorted(workspace.glob("*/pyvenv.cfg")))
    programs += map(str, sorted(workspace.glob("*/lib/python3.*/site-packages")))
    programs += [str(workspace / "node_modules" / ".package-lock.json")]
    folders = [str(workspace), *map(str, context.folders)]
    return GateInputs(
        tuple(folders),
        tuple(programs),
        ("PATH", "LANG", "LC_ALL", "TZ", "HOME"),
        {"command": _command_line(args, context)},
    )


def _covers(args: Mapping[str, Any]) -> tuple[str, str]:
    """A lasting permission covers all tests, because every test is code of the workspace."""
    return "*", "in this workspace"


RUN_TESTS = Gate(
    name="run_tests",
    options={
        "command": {"type": "string", "pattern": "[^ \\t\\r\\n]", "description": "a shell command"},
        "timeout_s": TIMEOUT,
    },
    description=(
        "Run the workspace's tests in the sandbox. Returns ok, passed, failed, errors, skipped, failures (name and text of "
        "each), exit_code, output (its end), and how they were run. pytest, unittest, npm, cargo, go and make are found by "
        "themselves."
    ),
    parameters={
        "type": "object",
        "properties": {
            "targets": {
                "type": "array",
                "items": {"type": "string", "minLength": 1, "maxLength": 1_000},
                "maxItems": 200,
                "description": "Only these: files, folders or names as the runner takes them. Default: all tests.",
            },
            "match": {
                "type": "string",
                "maxLength": 1_000,
                "description": "Only tests whose names match, as by pytest -k or go test -run.",
            },
            "runner": {"enum": ["pytest", "unittest", "npm", "cargo", "go", "make"], "description": "Default: found."},
            "timeout_s": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds; a ward may give fewer."},
        },
        "additionalProperties": False,
    },
    handler=_no_session,
    writes=True,
    kind="execute",
    preview=_preview,
    runs=_command_line,
    inputs=_inputs,
    covers=_covers,
    opens=_open_session,
)
