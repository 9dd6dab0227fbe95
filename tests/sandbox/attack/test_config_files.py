"""Git's, editors', agents' and shells' settings: whoever writes them runs code outside of the sandbox later."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cantrip_acp.sandbox.launch.new_names import NewNames
from tests.sandbox.attack.attack import Attack, control, held
from tests.sandbox.attack.attack_scene import GIT, Scene
from tests.sandbox.attack.weakened_sandbox import Defence, covered, patched, read_only


def versioned(scene: Scene) -> None:
    scene.repository()


def host_runs_git(scene: Scene) -> bool:
    """Whether git on the host, used as a person does, now runs something of the attacker's."""
    mark = scene.workspace / "ran-on-the-host"
    env = {**os.environ, **GIT, "GIT_EDITOR": "true"}
    (scene.workspace / "README.md").write_text("Changed.\n")
    for words in (
        ["status"],
        ["diff"],
        ["add", "README.md"],
        ["commit", "-q", "-m", "x"],
        ["checkout", "-q", "-b", "y"],
    ):
        subprocess.run(["git", *words], cwd=scene.workspace, env=env, capture_output=True, check=False, timeout=60)
    (scene.workspace / "README.md").write_text("A project.\n")
    return mark.exists()


def host_runs_shell(scene: Scene) -> bool:
    """Whether a shell started with the workspace as its home runs something of the attacker's."""
    env = {"HOME": str(scene.workspace), "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-lic", "true"], cwd=scene.workspace, env=env, capture_output=True, check=False, timeout=60)
    return (scene.workspace / "ran-on-the-host").exists()


def has(path: str, text: str) -> object:
    def check(scene: Scene) -> bool:
        try:
            return text in Path(scene.fill(path)).read_text()
        except OSError:
            return False

    return check


def with_submodule(scene: Scene) -> None:
    """A repository with a submodule that nobody fetched: an empty folder, as a clone makes it; and one in a folder that is
    not there."""
    scene.repository()
    env = {**os.environ, **GIT}
    for name in ("lib", "vendor/lib"):
        words = ["update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},{name}"]
        subprocess.run(["git", *words], cwd=scene.workspace, env=env, check=True)
    subprocess.run(["git", "commit", "-q", "-m", "submodules"], cwd=scene.workspace, env=env, check=True)
    (scene.workspace / "lib").mkdir()


_EVIL = 'touch "@WORK@/ran-on-the-host"'
_HOOK = f"printf '#!/bin/sh\\n{_EVIL}\\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit"
_GIT = covered("@WORK@/.git")
_UNWATCHED = patched("the watch over new names", NewNames, "_move", lambda self, last: False)


@contextmanager
def _neither(scene: Scene) -> Iterator[None]:
    with _UNWATCHED.removed(scene), covered("@WORK@/lib").removed(scene):
        yield


_BOTH = Defence("the mount over a submodule's folder, and the watch over new names", _neither)

IN_GIT = {
    "a hook": _HOOK,
    "fsmonitor": "git config core.fsmonitor '" + _EVIL.replace('"', "") + "; false'",
    "hooksPath": f"mkdir h; printf '#!/bin/sh\\n{_EVIL}\\n' > h/pre-commit; chmod +x h/*; git config core.hooksPath h",
    "a filter": "git config filter.x.clean '"
    + _EVIL.replace('"', "")
    + "; cat'; git config filter.x.required true; mkdir -p .git/info; echo '* filter=x' > .git/info/attributes",
    "an external diff": "git config diff.external '" + _EVIL.replace('"', "") + "; true'",
    "an include of settings": f"printf '[core]\\n\\tfsmonitor = {_EVIL.replace(chr(34), '')}; false\\n' > mine; "
    "git config include.path ../mine",
}

_REPOSITORY = (
    "git init -q . && git commit -q --allow-empty -m x && git config core.fsmonitor '"
    + _EVIL.replace('"', "")
    + "; false'"
)
_AUTHOR = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; "

MADE = {
    "editor settings": (".vscode/tasks.json", "covered"),
    "another editor's": (".idea/runConfigurations/x.xml", "absent"),
    "zed tasks": (".zed/tasks.json", "absent"),
    "an MCP server": (".mcp.json", "absent"),
    "an agent's hooks": (".claude/settings.json", "absent"),
    "a recipe": (".cantrip/evil.cantrip.yaml", "absent"),
    "cursor's rules": (".cursor/mcp.json", "absent"),
    "codex's settings": (".codex/config.toml", "absent"),
    "direnv": (".envrc", "absent"),
}


def made(name: str, path: str, there: str) -> Attack:
    top = path.split("/")[0]
    folder = os.path.dirname(path)
    tries = f"rm -rf {top}; rmdir {top}; mv {top} away; " + (f"mkdir -p {folder}; " if folder else "")
    return Attack(
        f"plant {name}",
        f"{tries} echo evil > {path}",
        _UNWATCHED if there == "absent" else covered(f"@WORK@/{top}"),
        host=has(f"@WORK@/{path}", "evil"),  # type: ignore[arg-type]
    )


ATTACKS = [
    *(Attack(f"git: {name}", program, _GIT, prepare=versioned, host=host_runs_git) for name, program in IN_GIT.items()),
    Attack(
        "git: move the folder away and make another",
        f"mv .git old && mkdir -p .git/hooks && cp old/config old/HEAD .git/; {_HOOK}",
        _GIT,
        prepare=versioned,
        host=lambda scene: (scene.workspace / "old").exists(),
    ),
    Attack(
        "git: change history",
        "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m evil && broke committed",
        _GIT,
        prepare=versioned,
    ),
    Attack(
        "git: read the credential in a remote's address",
        'grep -qs "@HALF@""@REST@" .git/config && broke read; git remote -v | grep -q "@HALF@""@REST@" && broke read',
        covered("@WORK@/.git/config"),
        prepare=lambda scene: scene.repository(credential=True),
    ),
    Attack(
        "git: plant a repository where there is none",
        f"git init -q .; mkdir -p .git/hooks; {_HOOK}",
        _UNWATCHED,
        host=lambda scene: (scene.workspace / ".git").exists(),
    ),
    Attack(
        "git: a repository of one's own in the place of a submodule",
        f"{_AUTHOR}mv lib l; mkdir -p lib; cd lib && {_REPOSITORY}",
        _BOTH,
        prepare=with_submodule,
        host=host_runs_git,
    ),
    Attack(
        "git: the same where even its folder is missing",
        f"{_AUTHOR}rmdir vendor; mv vendor v; mkdir -p vendor/lib; cd vendor/lib && {_REPOSITORY}",
        _UNWATCHED,
        prepare=with_submodule,
        host=host_runs_git,
    ),
    *(made(name, path, there) for name, (path, there) in MADE.items()),
    Attack(
        "an editor's settings that exist",
        "echo evil > .vscode/settings.json && broke wrote; sed -i s/{}/evil/ .vscode/settings.json",
        covered("@WORK@/.vscode"),
    ),
    Attack(
        "another agent's settings that exist, wherever they lie",
        "mv sub moved; mkdir -p sub/.gemini; echo evil > sub/.gemini/settings.json && broke wrote",
        covered("@WORK@/sub/.gemini"),
        prepare=lambda scene: (scene.workspace / "sub/.gemini").mkdir(),
        host=lambda scene: bool(list((scene.workspace / "sub/.gemini").glob("*"))),
    ),
    Attack(
        "nested settings by moving their parent",
        "mv sub moved && mkdir -p sub/.idea && echo evil > sub/.idea/workspace.xml",
        covered("@WORK@/sub"),
        host=has("@WORK@/sub/.idea/workspace.xml", "evil"),  # type: ignore[arg-type]
    ),
    Attack(
        "settings of a parent that is writable too",
        "echo evil > sub/.vscode/tasks.json && broke wrote",
        read_only("@WORK@/sub/.vscode"),
        prepare=lambda scene: (scene.workspace / "sub/.vscode").mkdir(),
        host=lambda scene: bool(list((scene.workspace / "sub/.vscode").glob("*"))),
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
