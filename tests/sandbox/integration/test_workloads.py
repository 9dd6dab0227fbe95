"""Ordinary work with its ordinary commands: if these fail, nobody keeps a sandbox on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.integration.conftest import GIT, Make, both_back_ends


async def ok(make: Make, command: str, **wards: object) -> str:
    outcome = await make(writable=True, **wards).run(command)
    assert outcome.exit_code == 0, (outcome.stdout, outcome.stderr, outcome.ended_because)
    return outcome.stdout


@both_back_ends
async def test_git_status_diff_and_log(repository: Path, make: Make) -> None:
    assert await ok(make, "git status --short") == " M notes.txt\n"
    assert "-two\n+2\n" in await ok(make, "git diff")
    assert "first" in await ok(make, "git log --oneline")
    assert await ok(make, "git show HEAD:notes.txt | sed -n 2p") == "two\n"
    assert await ok(make, "git ls-files; git blame -s notes.txt | wc -l") == "notes.txt\n3\n"


async def test_git_in_a_worktree(repository: Path, tmp_path: Path, make: Make) -> None:
    tree = tmp_path / "tree"
    subprocess.run(["git", "worktree", "add", "-q", str(tree)], cwd=repository, env={**os.environ, **GIT}, check=True)
    outcome = await make(tree, writable=True).run("git log --oneline && echo x > new && git status --short")
    assert outcome.exit_code == 0, outcome.stderr
    assert "first" in outcome.stdout
    assert "?? new" in outcome.stdout
    denied = await make(tree, writable=True).run(f"echo x > {repository}/.git/config")
    assert denied.exit_code != 0


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, env={**os.environ, **GIT}, check=True, capture_output=True)


async def test_git_in_a_worktree_of_a_bare_clone(repository: Path, tmp_path: Path, make: Make) -> None:
    tree = tmp_path / "tree"
    git(tmp_path, "clone", "-q", "--bare", str(repository), "bare.git")
    git(tmp_path / "bare.git", "worktree", "add", "-q", str(tree))
    outcome = await make(tree, writable=True).run("git log --oneline && echo x > new && git status --short")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert "?? new" in outcome.stdout
    denied = await make(tree, writable=True).run(f"echo x > {tmp_path}/bare.git/config")
    assert denied.exit_code != 0


async def test_git_with_its_folder_elsewhere(repository: Path, tmp_path: Path, make: Make) -> None:
    elsewhere = tmp_path / "elsewhere"
    git(repository, "init", "-q", f"--separate-git-dir={elsewhere}")
    # Until the git folder names this folder, it could be that of another project.
    assert (await make(repository).run(f"git log; ls {elsewhere}")).exit_code != 0
    git(repository, "config", "core.worktree", str(repository))
    outcome = await make(repository, writable=True).run("git log --oneline && git status --short")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert " M notes.txt" in outcome.stdout
    assert (await make(repository, writable=True).run(f"echo x > {elsewhere}/config")).exit_code != 0


@pytest.mark.parametrize("nested", [False, True], ids=["top", "nested"])
async def test_a_git_folder_of_another_name_in_the_workspace_is_protected(
    repository: Path, tmp_path: Path, make: Make, nested: bool
) -> None:
    """What git runs from there, it would run for the user, too."""
    git(repository, "init", "-q", f"--separate-git-dir={repository}/data")
    top = tmp_path / "above" if nested else repository
    if nested:
        top.mkdir()
        repository = repository.rename(top / "project")
        (repository / ".git").write_text("gitdir: data\n")
    outcome = await make(top, writable=True).run(
        f"cd {repository}; echo x >> data/config; echo x > data/hooks/pre-commit; mv data other; rm -f .git; echo x > file"
    )
    assert (repository / "file").exists()
    assert "x" not in (repository / "data" / "config").read_text().splitlines()
    assert not (repository / "data" / "hooks" / "pre-commit").exists()
    assert (repository / ".git").exists()
    assert "Read-only" in outcome.stderr


async def test_make_and_a_compiler(workspace: Path, make: Make) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    (workspace / "Makefile").write_text("out: in\n\ttr a-z A-Z < in > out\n")
    (workspace / "in").write_text("loud\n")
    await ok(make, "make -s && make -q")
    assert (workspace / "out").read_text() == "LOUD\n"


async def test_jq(make: Make) -> None:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    assert await ok(make, """echo '{"a": [1, 2]}' | jq -c '.a | add'""") == "3\n"


async def test_pytest_of_a_small_project(workspace: Path, make: Make) -> None:
    pytest_runs = await make().run("python -c 'import pytest'")
    (workspace / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (workspace / "test_calc.py").write_text("from calc import add\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    if pytest_runs.exit_code == 0:
        assert "1 passed" in await ok(make, "python -m pytest -q")
    assert await ok(make, "python3 -c 'from calc import add; print(add(2, 3))'") == "5\n"


async def test_pytest_of_a_virtual_environment_of_the_workspace(workspace: Path, make: Make) -> None:
    """Its interpreter is a link to wherever Python was installed, the home folder included."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(workspace / ".venv")], check=True)
    assert await ok(make, ".venv/bin/python -c 'import sys; print(sys.prefix)'") == f"{workspace}/.venv\n"
    assert await ok(make, ". .venv/bin/activate && python -c 'import json; print(1)'") == "1\n"


@both_back_ends
async def test_find_sed_and_grep_pipelines(workspace: Path, make: Make) -> None:
    for name in ("a.py", "b.py", "c.txt"):
        (workspace / name).write_text(f"# TODO in {name}\nprint()\n")
    text = await ok(make, "find . -name '*.py' | sort | xargs grep -l TODO | sed 's|^./||'")
    assert text == "a.py\nb.py\n"
    await ok(make, "sed -i 's/TODO/DONE/' a.py && awk 'NR==1' a.py > first")
    assert (workspace / "first").read_text() == "# DONE in a.py\n"


async def test_null_redirects_and_here_documents(workspace: Path, make: Make) -> None:
    await ok(make, "ls nothing 2>/dev/null >/dev/null || true")
    await ok(make, "cat > poem <<'EOF'\n$roses\n  are 'red'\nEOF")
    assert (workspace / "poem").read_text() == "$roses\n  are 'red'\n"
    assert await ok(make, "tr a-z A-Z <<< quiet; diff <(echo a) <(echo a) && echo same") == "QUIET\nsame\n"
    assert await ok(make, "echo hi | tee >(cat >&2) /dev/stderr > /dev/null; echo done > /dev/stdout") == "done\n"


async def test_a_long_command_is_cut_with_its_output_kept(make: Make) -> None:
    outcome = await make().run("echo begun; sleep 600; echo never", timeout_ms=3_000)
    assert outcome.timed_out
    assert outcome.exit_code is None
    assert outcome.stdout == "begun\n"
    assert "3000 ms" in (outcome.ended_because or "")
    assert outcome.duration_ms < 30_000


@both_back_ends
async def test_a_command_longer_than_one_argument_may_be(workspace: Path, make: Make) -> None:
    body = "x" * 300_000
    await ok(make, f"cat > big <<'EOF'\n{body}\nEOF\ntest -t 0 || echo")
    assert (workspace / "big").read_text() == body + "\n"


async def test_sockets_of_the_sandbox_itself(make: Make) -> None:
    program = (
        "import asyncio, multiprocessing as m, socket\n"
        "async def main():\n"
        "    async def answer(r, w):\n"
        "        w.write(await r.readline()); await w.drain(); w.close()\n"
        "    server = await asyncio.start_server(answer, '127.0.0.1', 8001)\n"
        "    r, w = await asyncio.open_connection('localhost', 8001)\n"
        "    w.write(b'hello\\n'); print((await r.readline()).decode(), end='')\n"
        "asyncio.run(main())\n"
        "a, b = m.Pipe(); a.send(3); print(b.recv(), m.Lock())\n"
    )
    text = await ok(make, f"cat > p.py <<'EOF'\n{program}EOF\npython3 p.py")
    assert text.startswith("hello\n3 ")


async def test_tools_of_the_user_are_there(make: Make) -> None:
    """Wherever PATH leads: version managers in the home folder among it."""
    for tool, words in (("cargo", "--version"), ("node", "--version"), ("uv", "--version"), ("rg", "--version")):
        if shutil.which(tool) is None or subprocess.run([tool, words], capture_output=True, check=False).returncode:
            continue
        outcome = await make().run(f"{tool} {words}")
        assert outcome.exit_code == 0, (tool, outcome.stderr)


@both_back_ends
async def test_files_stay_and_nothing_else(workspace: Path, make: Make) -> None:
    box = make(writable=True)
    await box.run("cd /tmp && X=1 && echo kept > $OLDPWD/file && echo lost > /tmp/file && echo lost > ~/file")
    again = await box.run("pwd; echo ${X-unset}; cat file; ls /tmp/file ~/file 2>/dev/null; true")
    assert again.stdout == f"{workspace}\nunset\nkept\n"


async def test_a_persistent_home(workspace: Path, tmp_path: Path) -> None:
    from cantrip_acp.sandbox import Sandbox, SandboxOptions

    home = tmp_path / "home"
    home.mkdir()
    box = Sandbox(SandboxOptions(), workspace, home_source=str(home))
    assert (await box.run("echo cached > ~/cache")).exit_code == 0
    assert (await box.run("cat ~/cache")).stdout == "cached\n"
    assert (home / "cache").read_text() == "cached\n"


@both_back_ends
async def test_the_status_is_the_commands_own(make: Make) -> None:
    for status in (0, 1, 7, 126, 255):
        assert (await make().run(f"exit {status}")).exit_code == status
    assert (await make().run("no-such-program")).exit_code == 127
    assert (await make().run("kill -9 $$")).exit_code == 137
