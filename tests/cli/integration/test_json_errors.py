"""Every command with `--json` ends with a JSON object, whatever goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from cantrip_acp.cli.command_table import COMMANDS, cantrip
from cantrip_acp.cli.errors import run as run_here
from cantrip_acp.cli.json_errors import CAST, JsonFlag
from cantrip_acp.types.errors import DefinitionError, MissingKey, SandboxMissing
from tests.support.command_line import GREETER, SLEEPER, recipe, run, start


def commands(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Parameter]]:
    """Each command below this one that has `--json`, with the option."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands((*path, name), found)
    for param in command.params:
        if "--json" in param.opts:
            yield path, param


ALL = list(commands((), cantrip))
NAMES = [" ".join(path) for path, _ in ALL]
FAILURES = [
    (click.UsageError("wrong"), 2, "wrong"),
    (DefinitionError("bad", where="r.yaml:1:2"), 2, "r.yaml:1:2: bad"),
    (MissingKey("no key"), 2, "no key"),
    (SandboxMissing("no sandbox"), 3, "no sandbox"),
    (OSError(28, "No space left on device"), 1, "No space left on device"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (click.Abort(), 130, "interrupted"),
    (ValueError("odd"), 1, "a bug: ValueError: odd"),
]


def test_the_table_has_the_commands() -> None:
    assert {"cast", "cast-batch", "eval", "doctor", "loom export", "loom fork", "client", "recipe check"} <= set(NAMES)
    assert len(ALL) > 40
    assert set(COMMANDS) >= {name.split()[0] for name in NAMES}


def last(capsys: pytest.CaptureFixture[str], option: click.Parameter) -> dict[str, Any]:
    out, err = capsys.readouterr()
    text = err if isinstance(option, JsonFlag) and option.to_stderr else out
    assert not (out if text is err else "")
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


@pytest.mark.parametrize(("path", "option"), ALL, ids=NAMES)
def test_an_unknown_option(path: tuple[str, ...], option: click.Parameter, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here([*path, "--json", "--no-such-option"]) == 2
    found = last(capsys, option)
    assert "--no-such-option" in found["error"]
    assert found["exit_status"] == 2


@pytest.mark.parametrize(("path", "option"), ALL, ids=NAMES)
def test_every_failure(
    path: tuple[str, ...], option: click.Parameter, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command: Any = cantrip
    for name in path:
        command = command.get_command(click.Context(command), name)
    for failure, status, text in FAILURES:

        def fails(*given: Any, failure: BaseException = failure, **more: Any) -> Any:
            raise failure

        monkeypatch.setattr(command, "make_context", fails)
        assert run_here([*path, "--json"]) == status
        found = last(capsys, option)
        assert text in found["error"]
        assert found["exit_status"] == status
        # Without the option nothing changes.
        assert run_here(list(path)) == status
        assert capsys.readouterr().out == ""


def test_a_cast_that_cannot_begin_has_the_fields_of_its_last_line(tmp_path: Path) -> None:
    recipe(tmp_path, GREETER)
    recipe(
        tmp_path, "crystal: openai:gpt-5.1\ncircle: {gates: [done], wards: [{max_turns: 1}]}\n", "keyless.cantrip.yaml"
    )
    recipe(tmp_path, "circle: {gates: [dnoe], wards: []}\n", "bad.cantrip.yaml")
    ended = run("cast", "./r.cantrip.yaml", "Hi.", "--json", cwd=tmp_path).lines[-1]
    assert set(CAST) <= set(ended)
    for words, said in (
        (("cast", "./keyless.cantrip.yaml", "Hi."), "no key for openai"),
        (("cast", "./bad.cantrip.yaml", "Hi."), "bad.cantrip.yaml"),
        (("cast", "./none.cantrip.yaml", "Hi."), "no such file"),
        (("cast", "./r.cantrip.yaml", "Hi.", "--model", "nobody:x"), "is not a crystal"),
        (("say hello", "--model", "nobody:x"), "is not a crystal"),
        (("loom", "fork", "none.loom.jsonl", "last", "Hi.", "--recipe", "./r.cantrip.yaml"), "none.loom.jsonl"),
    ):
        done = run(*words, "--json", cwd=tmp_path)
        (found,) = done.lines
        assert said in found["error"], found
        assert (done.status, found["exit_status"]) == (2, 2)
        assert {key: found[key] for key in ("event", "result", "reason")} == {
            "event": "result",
            "result": None,
            "reason": "error",
        }
        assert set(CAST) <= set(found)


def test_one_object_for_a_cast_that_fails_or_is_interrupted(tmp_path: Path) -> None:
    failing = GREETER.replace("    - thinking", "    - error: {status: 401, message: wrong key}\n    - thinking")
    done = run("cast", recipe(tmp_path, failing), "Hi.", "--json", cwd=tmp_path)
    assert done.status == 1
    results = [line for line in done.lines if "error" in line and line["event"] == "result"]
    assert results == [done.lines[-1]]
    process = start("cast", recipe(tmp_path, SLEEPER), "Hi.", "--json", cwd=tmp_path)
    assert process.stdout is not None
    lines = []
    while not any("begun" in line for line in lines):
        lines.append(process.stdout.readline())
    process.send_signal(2)
    out, _ = process.communicate(timeout=60)
    found = json.loads(out.splitlines()[-1])
    assert process.returncode == 130
    assert (found["event"], found["reason"]) == ("result", "cancelled")
    assert sum('"event": "result"' in line for line in out.splitlines()) == 1


def test_a_program_that_comes_after_the_dashes_has_its_own_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["client", "--no-such-option", "--", "agent", "--json"]) == 2
    assert capsys.readouterr().out == ""
