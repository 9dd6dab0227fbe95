"""The command line's frame: help, unknown commands, statuses, errors without tracebacks."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cantrip_acp.cli.command_table import COMMANDS, cantrip
from tests.support import processes
from tests.support.command_line import CANTRIP, GREETER, recipe, run


def test_help_lists_every_command(tmp_path: Path) -> None:
    done = run("--help", cwd=tmp_path)
    assert done.status == 0
    for name in COMMANDS:
        assert f"\n  {name} " in done.out
    assert "Examples:" in done.out


def test_help_imports_no_command(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['cantrip', '--help']\n"
        "try:\n    from cantrip_acp.cli.main import main; main()\n"
        "finally:\n    print('loaded', *sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    loaded = set(done.stderr.split())
    assert "click" in loaded
    assert not {"rich", "pydantic", "anyio", "msgspec", "ruamel.yaml", "cantrip_acp.cli.commands.cast"} & loaded


def test_the_agent_is_started_before_anything_is_imported(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['cantrip', 'acp', '--version']\n"
        "try:\n    from cantrip_acp.cli.main import main; main()\n"
        "finally:\n    print('loaded', *sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.startswith("cantrip-acp ")
    assert not {"click", "asyncio", "anyio"} & set(done.stderr.split())


def pages(command: click.Command = cantrip, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command and every command of a group, as words."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from pages(inner, (*path, name))


PAGES = [page for page in pages() if page[:1] not in (("acp",), ("lsp",))]

ELSEWHERE = {
    "cantrip demo": "tests/cli/integration/client/test_demo.py runs it",
    "cantrip models pull": "downloads 98 MB; tests/crystals/integration/test_embedded.py does it",
    "cantrip demo --live": "needs the model that `models pull` downloads",
    "cantrip train": "needs that model and PyTorch; tests/training/integration/test_train.py runs it",
    "cantrip quarantine keep 2026": "needs an entry; tests/cli/integration/test_quarantine.py has one",
    "cantrip quarantine drop 2026": "needs an entry; tests/cli/integration/test_quarantine.py has one",
    "cantrip sandbox run --host": "reaches pypi.org",
    "cantrip doctor --probe": "reaches the providers",
}
"""Beginnings of examples that this test does not run, and why."""

CRYSTAL = """
responses:
  - {content: "I was asked, and this is the answer.", repeat: true}
"""


def example_lines(page: tuple[str, ...], folder: Path) -> list[str]:
    done = run(*page, "--help", cwd=folder)
    assert done.status == 0, done.err
    _, colon, lines = done.out.partition("Example:\n" if "Example:\n" in done.out else "Examples:\n")
    assert colon, done.out
    found = [line.strip() for line in lines.splitlines() if line.strip()]
    assert found
    assert all(re.match(r"(cantrip|echo|printf|seq|cp) ", line) for line in found), found
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_examples_work_when_pasted(page: tuple[str, ...], tmp_path: Path) -> None:
    """One after the other, in an empty folder, as a person would try them. A script plays the role of the model."""
    (tmp_path / "here").mkdir()
    (tmp_path / "crystal.yaml").write_text(CRYSTAL)
    environment = {
        **os.environ,
        "PATH": f"{processes.programs()}:{os.environ['PATH']}",
        "CANTRIP_CRYSTAL": f"scripted:{tmp_path / 'crystal.yaml'}",
    }
    for line in example_lines(page, tmp_path):
        if any(line.startswith(beginning) for beginning in ELSEWHERE):
            continue
        done = subprocess.run(
            line,
            shell=True,
            cwd=tmp_path / "here",
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        # As with diff(1), a difference is an exit status.
        expected = 1 if line == "cantrip substrate diff 1" else 0
        assert done.returncode == expected, (line, done.stdout, done.stderr)


LISTS = ["recipe list", "gates", "wards", "models list", "catalog list", "trust --list", "loom list", "substrate tree",
         "substrate log", "tuple status", "tuple rd", "gc", "loom tree"]  # fmt: skip


@pytest.mark.parametrize("command", LISTS)
def test_every_list_is_also_json(command: str, tmp_path: Path) -> None:
    run("recipe", "new", "greeter", cwd=tmp_path)
    run("cast", "greeter", "Say hello.", cwd=tmp_path)
    words = command.split()
    if command == "tuple rd":
        unit = {"schema": "yool-tuple/v1", "lane": "build", "payload": [{"yool": "agent.lint.ruff"}]}
        (tmp_path / "one.json").write_text(json.dumps(unit))
        run("tuple", "out", "one.json", cwd=tmp_path)
        words.append('{"lane": "build"}')
    done = run(*words, "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    try:
        found = [json.loads(done.out)]
    except ValueError:
        found = done.lines
    assert found
    assert all(isinstance(each, dict) for each in found)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cst"], "unknown command 'cst'; did you mean 'cast'?"),
        (["fix"], "unknown command 'fix'; did you mean 'cast'?"),
        (["loom", "fork", "x.loom.jsonl", "last", "y"], "--recipe is missing: a loom does not hold the recipe"),
        (["xyzzy"], "unknown command 'xyzzy' (known: acp, lsp, cast"),
        (["recipe", "chek"], "unknown recipe command 'chek'; did you mean 'check'?"),
        (["loom", "thred"], "unknown loom command 'thred'; did you mean 'thread'?"),
        (["repl", "--loom"], "Option '--loom' requires an argument"),
        (["cast"], "say what to do: cantrip cast"),
        (["cast", "coding", "x", "--cwd", "/nowhere"], "Directory '/nowhere' does not exist"),
        (["cast", "coding", "x", "--jsn"], "No such option '--jsn'"),
    ],
)
def test_usage_errors(arguments: list[str], says: str, tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.status == 2
    assert says.replace("'", "") in done.err.replace("'", "")
    assert "Traceback" not in done.err


def test_a_bug_is_a_message_unless_debugging(tmp_path: Path) -> None:
    script = (
        "import sys; from cantrip_acp.cli import errors; import cantrip_acp.recipes as r\n"
        "r.load = lambda *a, **k: 1 / 0\n"
        "sys.exit(errors.run(['recipe', 'show', 'coding']))"
    )
    for debug in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env={"CANTRIP_DEBUG": debug, "PATH": "/bin"}
        )
        assert done.returncode == 1
        assert "a bug: ZeroDivisionError" in done.stderr
        assert ("Traceback" in done.stderr) is (debug == "1")


def test_secrets_are_masked_in_errors(tmp_path: Path) -> None:
    key = "sk-abcdefghijklmnopqrstuvwx"
    done = run("cast", f"./{key}.cantrip.yaml", "x", cwd=tmp_path)
    assert done.status == 2
    assert key not in done.err


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    recipe(tmp_path, GREETER)
    command = " ".join(CANTRIP)
    done = subprocess.run(
        f"{command} recipe schema | head -c 10", shell=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == '{\n  "$sche'
    assert done.stderr == ""


def test_the_language_servers_help_shows_how_to_use_it(tmp_path: Path) -> None:
    """Its own help, since it starts without click; what it shows can be pasted."""
    text = run("lsp", "--help", cwd=tmp_path).out
    assert "vim.lsp.enable('cantrip')" in text
    shown = text.rpartition("hangs up):\n")[2].replace("\\\n", " ")
    done = subprocess.run(
        shown.replace("| cantrip lsp", f"| {' '.join(CANTRIP)} lsp"), shell=True, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert '"capabilities"' in done.stdout
