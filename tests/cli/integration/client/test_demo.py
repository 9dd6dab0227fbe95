"""The demo, whole: a real agent, a real sandbox, a test that fails and then passes."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.integration.client.client_processes import Terminal, environment
from tests.support import processes

DEMO = [sys.executable, "-m", "cantrip_acp.cli.main", "demo"]
pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the demo makes its temporary folders."""
    folder = tmp_path / "t"
    folder.mkdir()
    return folder


def play(folder: Path, *arguments: str, argv: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    return processes.run(
        [*(argv or DEMO), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(TMPDIR=str(folder)),
        check=False,
    )


def processes_in(folder: Path) -> list[str]:
    """Command lines of what still works in the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            place = os.readlink(process / "cwd")
        except OSError:
            continue
        if str(folder) in line or place.startswith(str(folder)):
            found.append(line)
    return found


def test_in_a_pipe(folder: Path) -> None:
    done = play(folder)
    out = done.stdout
    assert done.returncode == 0, out + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in out
    in_order = [
        "❯ The tests fail.",
        "● Let me look around first.",
        "▸ execute",
        "ls -p Makefile README.md pennywise tests",
        "  │ split.py",
        "  │ FAILED (failures=1)",
        "  ✗ failed · exit 2",
        "  ↳ search",
        "  ↳ read",
        "  │ def evenly",
        "▸ read",
        "▸ edit",
        "  │ --- a/pennywise/split.py",
        "  │ -    share = total // people",
        "  │ +    share, left_over = divmod(total, people)",
        "  ✓ completed",
        "  │ OK",
        "  │ Ana   33.34",
        "● Fixed: evenly()",
        "■ end_turn · 7 turns · ",
        "✓ in the sandbox, `make test` failed and then passed (exit 2 then 0)",
        "✓ outside of it the same tests failed before (FAILED (failures=1)) and pass now (OK)",
        "✓ changed in the project: pennywise/split.py\n",
        "✓ every gate did its work: ",
        "✓ the entity was done by itself after 7 turns (end_turn, done)",
        "7 turns · 5 commands · ",
        "look at it with  ",
    ]
    place = 0
    for part in in_order:
        found = out.find(part, place)
        assert found >= 0, f"{part!r} is missing after {out[place:][:300]!r}"
        place = found
    if shutil.which("git"):
        assert "Test that shares add up" in out
    loom = re.search(r"^loom +(\S+)$", out, re.MULTILINE)
    assert loom is not None
    assert Path(loom[1]).is_file()
    said = re.search(r"^look at it with +(.+)$", out, re.MULTILINE)
    assert said is not None
    shown = subprocess.run(shlex.split(said[1]), capture_output=True, text=True, timeout=60, env=environment())
    assert "The tests fail." in shown.stdout, shown.stderr
    assert not list(folder.iterdir()), "the copy of the project is left"
    assert not processes_in(folder)


def test_on_a_terminal_in_colour(folder: Path, terminal: Callable[..., Terminal]) -> None:
    at = terminal(DEMO, TMPDIR=str(folder))
    assert at.wait(90) == 0
    assert re.search(r"\x1b\[3?2?;?32m\+ {4}share, left_over", at.seen), "an added line is green"
    assert "\x1b[31m-    share = total" in at.seen
    assert not list(folder.iterdir())


def test_the_project_is_kept_when_asked_for(folder: Path) -> None:
    done = play(folder, "--keep")
    assert done.returncode == 0
    kept = re.search(r"^project +(\S+) \(kept\)$", done.stdout, re.MULTILINE)
    assert kept is not None
    assert "divmod" in (Path(kept[1]) / "pennywise" / "split.py").read_text()


def test_slow_speaks_in_words(folder: Path) -> None:
    started = time.monotonic()
    assert play(folder, "--slow").returncode == 0
    assert time.monotonic() - started > 3


SPOILED = """
import sys
from cantrip_acp.demo import sample_project
read = sample_project._read_script
def spoiled(file):
    script = read(file)
    {change}
    return script
sample_project._read_script = spoiled
from cantrip_acp.cli.main import main
main(["demo"])
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("script[4]['tool_calls'][0]['args']['new_text'] += '#\\nevenly = by_weight = None\\n'", "then 2)"),
        ("del script[4]", "changed in the project: nothing"),
        ("script[4]['bash'] = 'touch more'", "changed in the project: more"),
        ("script[1]['bash'] = 'make test || true'", "`make test` failed and then passed (exit 0 then 0)"),
        ("script[3]['tool_calls'][0]['args']['path'] = '../x'", "✗ every gate did its work"),
        ("script.pop()", "cantrip: the agent"),
    ],
)  # fmt: skip
def test_what_goes_differently_is_told(folder: Path, change: str, words: str) -> None:
    done = play(folder, argv=[sys.executable, "-c", SPOILED.replace("{change}", change)])
    assert done.returncode == 1, done.stdout
    assert words in done.stdout + done.stderr
    assert "✗" in done.stdout
    assert "(kept)" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare to hide bwrap")
def test_without_bubblewrap_it_says_how_to_install_it(folder: Path) -> None:
    hide = 'for p in /usr/bin/bwrap /usr/local/bin/bwrap; do [ ! -e $p ] || mount --bind /dev/null $p; done; exec "$@"'
    done = play(folder, argv=["unshare", "--mount", "sh", "-c", hide, "sh", *DEMO])
    assert done.returncode == 3
    assert "apt install bubblewrap" in done.stderr
    assert not list(folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen([*DEMO, "--slow"], stdout=subprocess.PIPE, text=True, env=environment(TMPDIR=str(folder)))
    assert demo.stdout is not None
    while "Let me look around" not in (line := demo.stdout.readline()):
        assert line
    demo.send_signal(number)
    rest = demo.stdout.read()
    assert demo.wait(60) == 128 + number, rest
    demo.stdout.close()
    assert not list(folder.iterdir())
    assert not processes_in(folder)
