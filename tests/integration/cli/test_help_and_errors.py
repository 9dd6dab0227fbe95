"""The command line's frame: help, unknown commands, statuses, errors without tracebacks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cantrip_acp.cli.command_table import COMMANDS
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


def help_pages() -> list[list[str]]:
    groups = {"recipe": ["new", "check", "schema", "list", "show"], "loom": ["show", "thread"]}
    return [[name] for name in COMMANDS if name not in ("acp", "lsp")] + [
        [g, c] for g, names in groups.items() for c in names
    ]


@pytest.mark.parametrize("page", help_pages(), ids=" ".join)
def test_every_help_has_an_example(page: list[str], tmp_path: Path) -> None:
    done = run(*page, "--help", cwd=tmp_path)
    assert done.status == 0, done.err
    assert re.search(r"Examples?:\n +(cantrip|echo|printf) ?", done.out), done.out


OURS = [[], ["cast"], ["repl"], ["recipe"], ["trust"], ["loom"], *(p for p in help_pages() if len(p) == 2)]


@pytest.mark.parametrize("page", OURS, ids=" ".join)
def test_examples_work_when_pasted(page: list[str], tmp_path: Path) -> None:
    """One after the other, in an empty folder, as a person would try them."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cantrip").write_text(f'#!/bin/sh\nexec {" ".join(CANTRIP)} "$@"\n')
    (tmp_path / "bin" / "cantrip").chmod(0o755)
    (tmp_path / "here").mkdir()
    text = run(*page, "--help", cwd=tmp_path).out
    lines = [line.strip() for line in re.split(r"Examples?:\n", text)[1].splitlines() if line.strip()]
    assert lines
    for line in lines:
        if line == "cantrip demo":
            continue  # it has a test of its own
        done = subprocess.run(
            line,
            shell=True,
            cwd=tmp_path / "here",
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        )
        assert done.returncode == 0, (line, done.stderr)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cst"], "unknown command 'cst'; did you mean 'cast'?"),
        (["xyzzy"], "unknown command 'xyzzy' (known: acp, lsp, cast"),
        (["recipe", "chek"], "unknown recipe command 'chek'; did you mean 'check'?"),
        (["loom", "thred"], "unknown loom command 'thred'; did you mean 'thread'?"),
        (["cast"], "Missing argument 'RECIPE'"),
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
