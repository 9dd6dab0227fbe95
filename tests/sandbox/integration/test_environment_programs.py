"""A virtual environment that was there before takes new commands, and its interpreters stay as they are."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import anyio
import pytest

from tests.sandbox.integration.conftest import Make


@pytest.fixture
def environment(workspace: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(workspace / ".venv")], check=True)
    return workspace / ".venv"


def wheel(folder: Path, version: str = "1.0", command: str = "greet") -> Path:
    """A wheel with one command."""
    path = folder / f"greeting-{version}-py3-none-any.whl"
    info = f"greeting-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("greeting.py", f"def main():\n    print('hello {version}')\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: greeting\nVersion: {version}\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{command} = greeting:main\n")
        file.writestr(f"{info}/RECORD", "")
    return path


async def test_pip_installs_upgrades_and_removes_commands(workspace: Path, environment: Path, make: Make) -> None:
    before = {each.name: os.lstat(each).st_ino for each in (environment / "bin").iterdir()}
    box = make(writable=True)
    wheel(workspace), wheel(workspace, "2.0", "welcome")
    done = await box.run(".venv/bin/pip install -q --no-index ./greeting-1.0-py3-none-any.whl && .venv/bin/greet")
    assert (done.exit_code, done.stdout) == (0, "hello 1.0\n"), done
    assert subprocess.check_output([environment / "bin" / "greet"], text=True) == "hello 1.0\n", "on the host, too"
    done = await box.run(
        ". .venv/bin/activate && pip install -q --no-index ./greeting-2.0-py3-none-any.whl && welcome; command -v greet"
    )
    assert done.stdout == "hello 2.0\n", done
    assert not (environment / "bin" / "greet").exists()
    done = await make(writable=True).run(".venv/bin/welcome && .venv/bin/python -m pip uninstall -q -y greeting")
    assert (done.exit_code, done.stdout) == (0, "hello 2.0\n"), done
    assert {each.name: os.lstat(each).st_ino for each in (environment / "bin").iterdir()} == before, (
        "nothing else changed"
    )


async def test_an_interpreter_stays_and_the_output_says_so(workspace: Path, environment: Path, make: Make) -> None:
    target = os.readlink(environment / "bin" / "python3")
    activate = (environment / "bin" / "activate").read_text()
    box = make(writable=True)
    done = await box.run(
        "cd .venv/bin; ln -sf /bin/true python3; echo evil >> activate; rm python; echo evil > python3.99; echo x > tool"
    )
    assert done.exit_code == 0, done
    assert "these stayed as before, because editors run them: activate, python, python3, python3.99\n" in done.stderr
    assert os.readlink(environment / "bin" / "python3") == target
    assert (environment / "bin" / "activate").read_text() == activate
    assert (environment / "bin" / "python").is_symlink()
    assert not (environment / "bin" / "python3.99").exists()
    assert (environment / "bin" / "tool").read_text() == "x\n"
    again = await box.run(
        "readlink .venv/bin/python3; test -e .venv/bin/python3.99 || echo gone; tail -1 .venv/bin/activate"
    )
    assert again.stdout.splitlines()[:2] == [target, "gone"], "later commands see the real ones"
    assert "evil" not in again.stdout
    assert again.stderr == ""


async def test_what_the_user_does_meanwhile_stays(workspace: Path, environment: Path, make: Make) -> None:
    box, tools = make(writable=True), environment / "bin"
    (tools / "mine").write_text("first")
    (tools / "old").write_text("old")
    assert (await box.run("cat .venv/bin/mine")).stdout == "first"
    (tools / "mine").write_text("second")
    (tools / "old").unlink()
    assert (await box.run("cat .venv/bin/mine; ls .venv/bin/old")).stdout == "second", "the next command sees it"
    async with anyio.create_task_group() as group:
        group.start_soon(box.run, "echo command > .venv/bin/mine; until test -e go; do sleep 0.02; done")
        with anyio.fail_after(30):
            while "started" not in (await box.run("grep -q command .venv/bin/mine && echo started")).stdout:
                await anyio.sleep(0.02)
        assert (tools / "mine").read_text() in ("second", "command\n")
        (tools / "mine").unlink()
        (tools / "mine").write_text("the user was here")
        (workspace / "go").touch()
    assert (tools / "mine").read_text() == "the user was here"


async def test_only_files_and_links_are_taken_over(workspace: Path, environment: Path, make: Make) -> None:
    outside = workspace.parent / "outside"
    outside.write_text("mine")
    done = await make(writable=True).run(
        "cd .venv/bin; mkfifo pipe; mkdir folder; ln -s ../../../outside link; echo x > plain; chmod 777 plain; "
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'; truncate -s 1T sparse; echo done"
    )
    assert done.stdout == "done\n", done
    tools = environment / "bin"
    assert not any((tools / name).exists() for name in ("pipe", "folder", "socket", "sparse"))
    assert (tools / "link").is_symlink()
    assert (tools / "plain").read_text() == "x\n"
    assert outside.read_text() == "mine"


async def test_a_folder_that_a_command_puts_in_its_place_gets_nothing(
    workspace: Path, environment: Path, make: Make
) -> None:
    elsewhere = workspace.parent / "elsewhere"
    elsewhere.mkdir()
    done = await make(writable=True).run(
        "echo x > .venv/bin/tool; mv .venv old || echo pinned; mv .venv/bin moved || echo mounted; rm -rf .venv/bin 2>/dev/null;"
        "ln -s ../../elsewhere .venv/bin 2>/dev/null; echo y > .venv/bin/evil; true"
    )
    assert done.stdout.splitlines()[:2] == ["pinned", "mounted"], done
    assert list(elsewhere.iterdir()) == []
    assert (environment / "bin" / "evil").exists()
    assert (environment / "bin" / "python3").exists(), "deleted in the copy alone"
