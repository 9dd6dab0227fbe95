"""Files that another program executes by itself: a command plants or changes one, and somebody opens the folder later.

The control takes away the one mount that protects the file; the rest of the sandbox stays.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_acp.files.protected_paths import PROTECTED_FILES
from tests.sandbox.attack.attack import Attack, control, held
from tests.sandbox.attack.attack_scene import Scene
from tests.sandbox.attack.weakened_sandbox import Defence, covered, options, without
from tests.sandbox.integration.conftest import Make, back_end, make, workspace  # noqa: F401 - fixtures

EXISTING = (
    ".helix/languages.toml", ".devcontainer/devcontainer.json", ".agents/hooks.json", "opencode.json", "x.code-workspace",
    ".pre-commit-config.yaml", ".cargo/config.toml", ".cargo/config", ".yarnrc.yml", ".mise.toml", ".gitmodules",
    "sub/.helix/languages.toml", "sub/deep/opencode.json", "sub/X.Code-Workspace",
    "gradle/wrapper/gradle-wrapper.jar", "tools/bazel", "lefthook.yml", ".dir-locals.el", ".tool-versions", ".HELIX/languages.toml",
)  # fmt: skip


def there(path: str) -> Callable[[Scene], None]:
    def prepare(scene: Scene) -> None:
        target = scene.workspace / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("mine\n")

    return prepare


def planted(path: str) -> Callable[[Scene], bool]:
    def look(scene: Scene) -> bool:
        target = scene.workspace / path
        return target.is_file() and "evil" in target.read_text()

    return look


def environment(scene: Scene) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(scene.workspace / ".venv")], check=True)


def shown_itself(args: list[str], scene: Scene) -> list[str]:
    """The programs of the environment themselves instead of a copy of them."""
    path = scene.fill("@WORK@/.venv/bin")
    at = next(
        i for i in range(len(args)) if args[i] == "--bind" and args[i + 2 : i + 3] == [path] and args[i + 1] != path
    )
    return [*args[: at + 1], path, *args[at + 2 :]]


def open_all(name: str, *folders: str) -> Defence:
    """Writable again: a folder that is read-only, and what holds it in place."""

    def edit(args: list[str], scene: Scene) -> list[str]:
        for folder in folders:
            args = without(args, ("--ro-bind", scene.fill(folder), scene.fill(folder)))
        return args

    return options(name, edit)


def _mounted(path: str) -> str:
    """What is mounted to protect a path: the first of its names that the table has."""
    folder, parts = "", path.split("/")
    names = {row.name for row in PROTECTED_FILES}
    for at, part in enumerate(parts):
        if part.lower() in names or f"{folder}/{part}" in names or part.lower().endswith(".code-workspace"):
            return "@WORK@/" + "/".join(parts[: at + 1])
        folder = part
    raise AssertionError(path)


ATTACKS = [
    *(
        Attack(
            f"change {path}",
            f"echo evil > {path}; rm -f {path}; echo evil > {path}; t={path}; d=${{t%/*}}; [ $d = $t ] || {{ "
            # Not mv: that copies where it cannot rename.
            "python3 -c 'import os, sys; os.rename(*sys.argv[1:])' $d moved; "
            f"mkdir -p $d; echo evil > {path}; }}",
            covered(_mounted(path)),
            prepare=there(path),
            host=planted(path),
        )
        for path in EXISTING
    ),
    Attack(
        "replace an interpreter of a virtual environment",
        # The control writes to the real folder, the sandbox to a copy.
        "rm -f .venv/bin/python3; printf '#!/bin/sh\\necho evil' > .venv/bin/python3; mv .venv old; mkdir -p .venv/bin; "
        "echo evil > .venv/bin/python3; ln -sf /bin/true .venv/bin/python",
        options("the interpreters read-only", shown_itself),
        prepare=environment,
        host=lambda scene: (scene.workspace / ".venv/bin/python3").read_bytes()[:100].find(b"evil") >= 0,
    ),
    Attack(
        "lead a virtual environment to another interpreter",
        "sed -i 's,^home = .*,home = /evil,' .venv/pyvenv.cfg; echo 'home = /evil' > .venv/pyvenv.cfg",
        open_all("its settings read-only", "@WORK@/.venv/pyvenv.cfg"),
        prepare=environment,
        host=lambda scene: "/evil" in (scene.workspace / ".venv/pyvenv.cfg").read_text(),
    ),
    Attack(
        "read an editor's copy of a secret",
        'grep -rqs "@HALF@""@REST@" sub/.env~ sub/.env.swp && broke read',
        covered("@WORK@/sub/.env~"),
        prepare=lambda scene: (scene.workspace / "sub/.env~").write_text(f"TOKEN={scene.secret}\n") and None,
    ),
    Attack(
        "read a credential of a submodule's settings",
        'grep -rqs "@HALF@""@REST@" .git && broke read',
        covered("@WORK@/.git/modules/m/config"),
        prepare=lambda scene: (
            (
                scene.repository(),
                there(".git/modules/m/HEAD")(scene),
                (scene.workspace / ".git/modules/m/config").write_text(f'[http "x"] extraheader = {scene.secret}\n'),
            )
            and None
        ),
    ),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_held(attack: Attack, scene: Scene) -> None:
    await held(attack, scene)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_control(attack: Attack, scene: Scene) -> None:
    reason = await control(attack, scene)
    if reason is not None:
        pytest.skip(f"unprovable here: {reason}")


async def test_a_recipe_that_allows_one_by_name_may_write_it(workspace: Path, make: Make) -> None:  # noqa: F811
    (workspace / ".helix").mkdir()
    box = make(bash_writable_paths=["workspace"], allow_protected=[".helix", ".pre-commit-config.yaml"])
    outcome = await box.run(
        "echo mine > .helix/x && echo mine > .pre-commit-config.yaml; echo x > opencode.json; mkdir .agents"
    )
    assert (workspace / ".helix/x").read_text() == "mine\n"
    assert (workspace / ".pre-commit-config.yaml").read_text() == "mine\n"
    assert not (workspace / "opencode.json").exists(), outcome
    assert not (workspace / ".agents").exists()


async def test_a_virtual_environment_that_a_command_made_is_its_own(workspace: Path, make: Make) -> None:  # noqa: F811
    box = make(bash_writable_paths=["workspace"])
    assert (
        await box.run("mkdir -p .venv/bin && echo x > .venv/pyvenv.cfg && echo x > .venv/bin/python")
    ).exit_code == 0
    assert (await box.run("echo y > .venv/bin/tool")).exit_code == 0
    later = await make(bash_writable_paths=["workspace"]).run("echo y > .venv/bin/tool2; echo evil > .venv/bin/python")
    assert later.exit_code == 0
    assert (workspace / ".venv/bin/tool2").read_text() == "y\n"
    assert (workspace / ".venv/bin/python").read_text() == "x\n"
