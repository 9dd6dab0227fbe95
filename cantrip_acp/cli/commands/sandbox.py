"""`cantrip sandbox`: runs one command in the sandbox of the bash medium, or shows what a command may read and write."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import SuggestingGroup, complete_recipe, examples
from cantrip_acp.text.sanitize import clean_line
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.mediums.contract import Medium
    from cantrip_acp.sandbox import Outcome, Policy


# --- `cantrip sandbox run --python`: runs a program as one cell of the code medium.


def program(words: tuple[str, ...], folder: Path) -> str:
    """The text of a program. One word that names a file below ``folder`` gives its content, else the joined words."""
    # Not `Path.is_file`: it fails for a program that is too long for the name of a file.
    if len(words) == 1 and os.path.isfile(path := folder / words[0]):
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise DefinitionError(f"is not UTF-8: {error.reason} at byte {error.start:,}", where=str(path)) from None
    return " ".join(words)


async def run_python(circle: Circle, code: str, printer: Printer) -> int:
    """Run the code and return the exit status: 0, 1 if it failed or was stopped, 124 if its time ran out."""
    import json

    from cantrip_acp.acp.sessions.commands.user_shell import TurnWithoutEntity
    from cantrip_acp.gates.contract import as_text
    from cantrip_acp.mediums.code.session import CodeSession
    from cantrip_acp.types.messages import ToolCall

    turn = TurnWithoutEntity(circle)
    session = await circle.medium.open(circle, turn.entity_id)
    assert isinstance(session, CodeSession)
    session.tap = printer
    printer.stop = session.end
    try:
        output = await session.run(ToolCall("t", "python", json.dumps({"code": code})), turn)
    finally:
        await session.close()
    printer.finish()
    if printer.reader_left:
        return 1
    if output.value is not None:
        click.echo(f"=> {output.value}")
    if turn.answers:
        click.echo(as_text(turn.answers[0]))
        return 0
    if output.error is None:
        return 0
    click.echo(output.error, err=True)
    return 124 if output.timed_out is True else 1


_TIMED_OUT = 124
_KILLED = 137
_NO_READER = 141
"""The exit status after SIGPIPE, when no process reads the program's output any more."""
_LONGEST_NAME = 10_000
_MOST_PRINTED = 64 * 1024 * 1024
_KEPT = 64 * 1024
"""Maximum bytes of output that the runner keeps, for the message of a failed start. The output itself is printed at once."""


def _circle_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that define a sandbox: a recipe's circle, or wards from the command line."""
    for option in (
        click.option(
            "--network",
            is_flag=True,
            help="Allow the network. Without this option there is no network, not even localhost.",
        ),
        click.option(
            "--host",
            "hosts",
            multiple=True,
            metavar="HOST",
            help="Allow HTTP and HTTPS requests to this host, as in the list of bash_network. May be repeated.",
        ),
        click.option(
            "--writable",
            multiple=True,
            metavar="PATH",
            type=click.Path(path_type=Path),
            help="Allow writing in this folder. May be repeated.  [default: none]",
        ),
        click.option(
            "--recipe",
            shell_complete=complete_recipe,
            metavar="RECIPE",
            help="Use the wards and gates of this recipe (a name or a file).",
        ),
        click.option(
            "--cwd",
            metavar="DIR",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            help="The workspace. Commands start in this folder and may read it.  [default: the current folder]",
        ),
    ):
        command = option(command)
    return command


@click.group(
    "sandbox",
    cls=SuggestingGroup,
    short_help="Run one command in the sandbox, or show the sandbox's policy.",
    **examples("cantrip sandbox run --writable . -- touch made.txt", "cantrip sandbox policy --json"),
)
def sandbox() -> None:
    """Run a command in the sandbox of the bash medium, or show the sandbox's policy. Nothing runs without a sandbox."""


@sandbox.command(
    "run",
    short_help="Run one command in the sandbox.",
    # What comes after the first word belongs to the command, as in `env` and `docker run`.
    context_settings={"allow_interspersed_args": False},
    **examples(
        "cantrip sandbox run -- ls -la",
        "cantrip sandbox run --writable . -- 'seq 100 > numbers.txt; tail -5 numbers.txt'",
        "cantrip sandbox run --host pypi.org --host files.pythonhosted.org -- 'pip download -d /tmp six'",
        "cantrip sandbox run --python -- 'import sys; sys.version'",
        "cantrip sandbox run --python --code-python /usr/bin/python3 -- 'import sys; sys.executable'",
    ),
)
@_circle_options
@click.option("--python", is_flag=True, help="Run COMMAND, a Python program or the path of one, as a cell.")
@click.option(
    "--code-python",
    metavar="PATH|venv",
    help="With --python: the Python that runs it, like code_python in a recipe.  [default: the Python of cantrip]",
)
@click.option(
    "--timeout-ms",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop the command after N milliseconds (bash_timeout_ms).",
)
@click.option(
    "--max-output-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    default=_MOST_PRINTED,
    show_default=True,
    help="Stop the command after N bytes of output.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    command: tuple[str, ...],
    cwd: Path | None,
    recipe: str | None,
    writable: tuple[Path, ...],
    network: bool,
    hosts: tuple[str, ...],
    timeout_ms: int | None,
    python: bool,
    code_python: str | None,
    max_output_bytes: int,
) -> int:
    """Run COMMAND as the bash medium runs it. One word is a shell command line; several words are a program and its arguments.

    With --recipe, the recipe's gates are available as commands. `cantrip_done TEXT` prints TEXT and ends. With
    --python, COMMAND runs as in the code medium. The Python program sees only the files of the workspace that
    --writable or the recipe allows.

    Exit status: the command's own; 1 if a Python program failed, 124 if the time was over, 137 if a limit stopped it,
    141 if the reader of its output has ended, 3 if this machine has no sandbox.
    """
    import anyio

    if python:
        return _python(
            command, cwd, recipe, writable, bool(network or hosts), timeout_ms, code_python, max_output_bytes
        )
    if code_python is not None:
        raise click.UsageError("--code-python needs --python")

    circle = _circle(cwd, recipe, writable, _network_ward(network, hosts), timeout_ms)
    text = command[0] if len(command) == 1 else shlex.join(command)
    printer = Printer(max_output_bytes)
    outcome, answer = anyio.run(_run, circle, text, printer)
    if printer.reader_left:
        return _NO_READER
    if answer is not None:
        click.echo(answer)
        return 0
    if outcome.exit_code is not None:
        return outcome.exit_code
    click.echo(f"cantrip sandbox: the command was stopped: {outcome.ended_because}", err=True)
    return _TIMED_OUT if outcome.timed_out else _KILLED


def _python(
    words: tuple[str, ...],
    cwd: Path | None,
    recipe: str | None,
    writable: tuple[Path, ...],
    network: bool,
    timeout_ms: int | None,
    code_python: str | None,
    max_output_bytes: int,
) -> int:
    from dataclasses import replace

    import anyio

    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.mediums.code.medium import CodeMedium

    if network:
        raise click.UsageError("--network and --host cannot be used with --python: Python cells have no network")
    found = _circle(cwd, recipe, writable, False, None)
    wards = found.wards
    if recipe is None:
        wards = replace(
            wards, code_writable_paths=wards.bash_writable_paths, code_max_output_bytes=wards.bash_max_output_bytes
        )
    if timeout_ms is not None:
        wards = replace(wards, code_timeout_ms=min(timeout_ms, wards.code_timeout_ms))
    medium: Medium = found.medium if found.medium.name == "code" else CodeMedium(python=code_python)
    if recipe is not None and code_python is not None:
        raise click.UsageError("--recipe and --code-python cannot be used together: a recipe has its own code_python")
    circle = Circle(medium, list(found.declared_gates), wards, workspace=found.workspace)
    printer = Printer(max_output_bytes)
    status = anyio.run(run_python, circle, program(words, cwd or Path.cwd()), printer)
    if printer.reader_left:
        return _NO_READER
    return _KILLED if printer.full else status


class Printer:
    """Prints a program's output at once: cleaned text in its colours if stdout or stderr is a terminal, else the unchanged
    bytes.

    It calls `stop` to end the program after ``most`` bytes, or when no process reads the output.
    """

    def __init__(self, most: int) -> None:
        from cantrip_acp.sandbox import Cleaner

        self._left = most
        self._most = most
        terminal = sys.stdout.isatty() or sys.stderr.isatty()
        self._cleaners = {1: Cleaner(), 2: Cleaner()} if terminal else None
        self._colours = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.stop: Callable[[str], None] = lambda because: None
        self.full = False
        self.reader_left = False

    def __call__(self, stream: int, data: bytes) -> None:
        """Print a piece of stream 1 (stdout) or 2 (stderr)."""
        if self.full or self.reader_left:
            return
        self.full = len(data) > self._left
        data = data[: self._left]
        self._left -= len(data)
        if self._cleaners is not None:
            styled = self._cleaners[stream].separate(data)
            data = (styled.coded() if self._colours else styled.text).encode()
        self._write(stream, data)
        if self.full:
            self.stop(f"it printed more than {self._most:,} bytes; the rest was cut off (--max-output-bytes)")

    def finish(self) -> None:
        """Print the text that was held back: an incomplete escape sequence at the end of the output."""
        for stream, cleaner in (self._cleaners or {}).items():
            self._write(stream, cleaner.finish().encode())

    def _write(self, stream: int, data: bytes) -> None:
        out = sys.stdout.buffer if stream == 1 else sys.stderr.buffer
        try:
            out.write(data)
            out.flush()
        except BrokenPipeError:
            from cantrip_acp.cli.errors import discard_output

            self.reader_left = True
            discard_output(sys.stdout if stream == 1 else sys.stderr)
            self.stop("no process reads its output any more")


async def _run(circle: Circle, text: str, printer: Printer) -> tuple[Outcome, str | None]:
    import anyio

    from cantrip_acp.core.casting.gate_executor import GateExecutor
    from cantrip_acp.core.event_hub import EventHub
    from cantrip_acp.gates.contract import as_text
    from cantrip_acp.mediums.bash import BashMedium, BashSession
    from cantrip_acp.sandbox import Running
    from cantrip_acp.telemetry import tracing

    executor = GateExecutor(circle, hub=EventHub())
    trace = tracing.trace_from(None)
    running: list[Running] = []
    answers: list[str] = []
    calls = 0

    async def call(name: str, args: dict[str, object]) -> tuple[object, bool]:
        nonlocal calls
        calls += 1
        record = await executor.execute(
            name, args, call_id=f"g{calls}", entity_id="e_shell", cast_id="c_shell", trace=trace
        )
        if name == "done" and not record.is_error:
            answers.append(as_text(record.result))
            running[0].end("done")
            # Do not answer the call: the shell would print the answer and continue until the kill reaches it.
            await anyio.sleep_forever()
        return record.result, record.is_error

    printer.stop = lambda because: running[0].end(because)
    session = await BashMedium().open(circle, "e_shell")
    assert isinstance(session, BashSession)
    try:
        outcome = await session.sandbox.run(
            text, tap=printer, environment={"TRACEPARENT": trace.traceparent()}, call=call, started=running.append
        )
    finally:
        await session.close()
    printer.finish()
    return outcome, answers[0] if answers else None


@sandbox.command(
    "policy",
    short_help="Show what a command can see and write, and the arguments of the program that makes the sandbox.",
    **examples("cantrip sandbox policy", "cantrip sandbox policy --recipe coding --json"),
)
@_circle_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object: policy, program, arguments.")
@click.option("--seatbelt", is_flag=True, help="Print the policy as a profile for macOS's sandbox-exec.")
def policy(
    cwd: Path | None,
    recipe: str | None,
    writable: tuple[Path, ...],
    network: bool,
    hosts: tuple[str, ...],
    as_json: bool,
    seatbelt: bool,
) -> None:
    """Print the policy of a command that starts now, the reason for each part, and the arguments for bubblewrap."""
    from cantrip_acp.mediums.bash import BashSession

    circle = _circle(cwd, recipe, writable, _network_ward(network, hosts), None)
    made = BashSession(circle).sandbox
    found = made.policy()
    if seatbelt:
        rendered = made.seatbelt_profile(home="/private/tmp/cantrip/home", temporary="/private/tmp/cantrip/tmp")
        lines = [f"; {name} = {path}" for name, path in rendered.parameters]
        click.echo("\n".join([rendered.text, "; The parameters (-D):", *lines]))
        return
    if as_json:
        data = {
            "policy": asdict(found),
            "reasons": found.reasons(),
            "program": made.program,
            "arguments": made.arguments(),
        }
        click.echo(json.dumps(data, indent=2))
        return
    for line in _policy_lines(found):
        click.echo(line)
    click.echo("\nBack end:")
    click.echo(f"  {made.program}")
    for line in _option_lines(made.arguments()):
        click.echo(f"    {clean_line(line, _LONGEST_NAME)}")


def _network_ward(network: bool, hosts: tuple[str, ...]) -> bool | list[str]:
    """The value of the ward `bash_network` for the options."""
    if network and hosts:
        raise click.UsageError("--network and --host cannot be used together: --network allows every host")
    return list(hosts) or network


def _circle(
    cwd: Path | None, recipe: str | None, writable: tuple[Path, ...], network: bool | list[str], timeout_ms: int | None
) -> Circle:
    from cantrip_acp.core.definition.circle import Circle

    workspace = (cwd or Path.cwd()).absolute()
    limits: dict[str, Any] = {"bash_max_output_bytes": _KEPT}
    if timeout_ms is not None:
        limits["bash_timeout_ms"] = timeout_ms
    if recipe is None:
        paths = [os.path.abspath(p) for p in writable]
        wards = {"max_turns": 1, "bash_network": network, "bash_writable_paths": paths, **limits}
        if (workspace / ".cantrip").is_dir():
            from cantrip_acp.recipes import trust

            trust.guard(workspace)
        return Circle("bash", ["done"], wards, workspace=workspace)
    if writable or network:
        raise click.UsageError(
            "--writable, --network and --host cannot be used with --recipe: a recipe has its own wards"
        )
    from cantrip_acp.crystals.scripted import ScriptedCrystal
    from cantrip_acp.files.paths import state_dir
    from cantrip_acp.recipes import recipe as recipes
    from cantrip_acp.recipes import trust
    from cantrip_acp.recipes.build import build

    found = recipes.load(recipe, workspace)
    if not recipes.is_path(recipe):
        trust.require(found, workspace, state_dir())
    circle = build.build(found, workspace=workspace, crystal=ScriptedCrystal(responses=[])).circle
    if timeout_ms is not None:
        from dataclasses import replace

        declared: Wards = replace(circle.wards, bash_timeout_ms=min(timeout_ms, circle.wards.bash_timeout_ms))
        circle = Circle("bash", list(circle.declared_gates), declared, workspace=workspace)
    return circle


def _policy_lines(policy: Policy) -> list[str]:
    """The policy as lines of text, with the reason for each part."""
    limits = policy.limits
    why = policy.reasons()
    parts: list[tuple[str, list[str]]] = [
        ("Commands start in", [policy.folder]),
        (
            "Read-only: the system",
            [f"{p} -> {t}" if t else p for p, t in policy.system] + ["/etc (prepared, no secrets)"],
        ),
        ("Read-only: your tools, because PATH or a virtual environment leads there", list(policy.tools)),
        ("Symbolic links on the way to PATH or the workspace", [f"{p} -> {t}" for p, t in policy.links]),
        ("Readable: the workspace", [p for p in policy.readable if p not in policy.writable]),
        ("Writable, by bash_writable_paths", list(policy.writable)),
        (
            "Read-only inside the writable folders, because another program would execute it (allow_protected)",
            [f"{path}: {why[path]}" for path in policy.protected if path not in dict(policy.copied)],
        ),
        (
            "A copy, of which harmless changes are kept after each command (git_writes; programs of an environment)",
            [path for path, _ in policy.copied],
        ),
        ("Cannot be created there, for the same reason", [f"{path}: {why[path]}" for path in policy.absent]),
        ("Cannot be renamed, because it contains protected files", list(policy.pinned)),
        ("Hidden, because of its name (secrets)", list(policy.hidden)),
        (
            "Readable, but without the credentials in it",
            [p for p, source in policy.replaced if not os.path.isdir(source)],
        ),
        (
            "Private and emptied after each command",
            ["/tmp", "/dev/shm", *([] if policy.home_source else [f"{policy.home} (home)"])],
        ),
        (
            "Private and kept (bash_home)",
            [f"{policy.home} (home), in {policy.home_source}"] if policy.home_source else [],
        ),
        ("Gates, as commands", [g for g in policy.gates if not g.startswith("cantrip_")]),
        ("Network", _network(policy)),
        (
            "Limits",
            [
                f"{limits.timeout_ms} ms",
                f"{limits.output} bytes of output kept",
                f"{limits.processes} processes",
                f"{limits.memory // 2**20} MiB of memory",
                f"{limits.file // 2**20} MiB in one file",
                f"{limits.open_files} open files",
            ],
        ),
        ("Environment", [f"{n}={v}" for n, v in policy.environment]),
    ]
    lines = []
    for title, entries in parts:
        if entries:
            lines.append(f"{title}:")
            lines += [f"  {clean_line(e, _LONGEST_NAME)}" for e in entries]
    return lines


def _network(policy: Policy) -> list[str]:
    if policy.network:
        return ["the whole network"]
    return [f"{host} (HTTP and HTTPS, through the filtering proxy)" for host in policy.hosts or ()] or ["none"]


def _option_lines(arguments: list[str]) -> list[str]:
    """Put each option and its values on one line, quoted for a shell."""
    lines: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not lines:
            lines.append([argument])
        else:
            lines[-1].append(argument)
    return [shlex.join(line) for line in lines]
