"""Files and links: what lies outside of the workspace, what is hidden in it, and what leads from one to the other."""

from __future__ import annotations

import shutil

import pytest

from tests.sandbox.attack.attack import Attack, control, held
from tests.sandbox.attack.attack_scene import Scene
from tests.sandbox.attack.weakened_sandbox import (
    covered,
    option,
    options,
    read_only,
    unseen,
    without,
    writable_root,
)

_READ = 'grep -rqs "@HALF@""@REST@" {0} && broke read'


def read(path: str) -> str:
    return _READ.format(path)


def touched(path: str) -> object:
    return lambda scene: (scene.base / path).exists()


def link_out(scene: Scene) -> None:
    (scene.workspace / "innocent").symlink_to(scene.beside / "secret")
    (scene.workspace / "folder").symlink_to(scene.beside)


def link_env(scene: Scene) -> None:
    (scene.workspace / "config.txt").symlink_to(".env")


def own_etc(args: list[str], scene: Scene) -> list[str]:
    """A writable copy of the prepared /etc, which other commands go on using."""
    at = next(n for n in range(len(args)) if args[n : n + 1] == ["--ro-bind"] and args[n + 2] == "/etc")
    copy = scene.base / "etc"
    if not copy.exists():
        shutil.copytree(args[at + 1], copy, symlinks=True)
    return [*args[:at], "--bind", str(copy), "/etc", *args[at + 3 :]]


ATTACKS = [
    Attack("read a file beside", read("@BESIDE@/secret"), unseen("@BESIDE@")),
    Attack("read by a way up", read("../beside/secret ../../*/*/secret"), unseen("@BESIDE@")),
    Attack("read by the process's root", read("/proc/1/root@BESIDE@ /proc/self/cwd/../beside"), unseen("@BESIDE@")),
    Attack("read by a planted link", read("innocent folder/"), unseen("@BESIDE@"), prepare=link_out),
    Attack("read a key of the home", read("@HOME@/.ssh ~/.ssh"), unseen("@HOME@/.ssh")),
    Attack("read cloud credentials", read("~/.aws"), unseen("@HOME@/.aws")),
    Attack("read .netrc", read("~/.netrc"), unseen("@HOME@/.netrc")),
    Attack("read credentials beside a shown tool", read("~/.cargo"), unseen("@HOME@/.cargo/credentials.toml")),
    Attack("read .env", read(".env ./.env @WORK@/.env"), covered("@WORK@/.env")),
    Attack("read .env by a link to it", read("config.txt"), covered("@WORK@/.env"), prepare=link_env),
    Attack("read .env by a hard link", "ln .env hard; " + read("hard"), covered("@WORK@/.env")),
    Attack("read a nested .env.production", read("sub"), covered("@WORK@/sub/.env.production")),
    Attack("read a key in the workspace", read("sub/deep"), covered("@WORK@/sub/deep/id_ed25519")),
    Attack(
        "move a folder to bare a secret in it",
        "mv sub moved; mkdir sub; " + read("sub moved"),
        covered("@WORK@/sub/.env.production"),
    ),
    Attack(
        "overwrite a secret",
        "echo 'TOKEN=mine' > .env && broke wrote",
        covered("@WORK@/.env"),
    ),
    Attack("remove a secret", "rm -f .env && broke removed", covered("@WORK@/.env")),
    Attack(
        "write beside",
        "echo x > @BESIDE@/new && broke wrote; echo x >> @BESIDE@/file",
        unseen("@BESIDE@", writable=True),
    ),
    Attack(
        "write by a link made inside",
        "ln -s @BESIDE@ out; echo x > out/new && broke wrote",
        unseen("@BESIDE@", writable=True),
    ),
    Attack(
        "write the home's start-up file",
        "echo evil >> @HOME@/.bashrc; [ -e @HOME@/.cargo/bin/tool ] && grep -q mine @HOME@/.bashrc && broke wrote",
        unseen("@HOME@", writable=True),
    ),
    Attack(
        "replace a tool of the user's",
        "echo evil > ~/.cargo/bin/tool && broke wrote; cp /bin/true ~/.cargo/bin/ls",
        read_only("@HOME@/.cargo/bin"),
    ),
    Attack(
        "write a workspace that is shown only",
        "echo x > new && broke wrote; echo x > README.md",
        read_only("@WORK@"),
        writable=False,
    ),
    Attack(
        "write what a narrower ward leaves out",
        "echo x > sub/new; echo x > new && broke wrote",
        read_only("@WORK@"),
        writable=False,
        wards={"bash_writable_paths": ["sub"]},
    ),
    Attack("fill the root, which has no size", "echo x > /x && broke wrote", writable_root("/")),
    Attack("fill /dev, which has no size", "echo x > /dev/x && broke wrote", writable_root("/dev")),
    Attack(
        "change the system's accounts",
        "echo evil:x:0:0::/:/bin/sh >> /etc/passwd && broke wrote",
        options("/etc read-only", own_etc),
    ),
    Attack(
        "remount what is read-only",
        "mount -o remount,bind,rw / ; mount -o remount,rw /usr; umount -l /etc; echo x > /x && broke wrote",
        writable_root("/"),
    ),
    Attack(
        "a device of the machine's disk",
        "ls /dev/[vsn][dv][am]* /dev/mem /dev/kmsg /dev/nvme* | grep -q . && broke sees-a-disk",
        options(
            "a private /dev",
            lambda args, _: [*without(args, ("--dev", "/dev"))[: args.index("--dev")], "--dev-bind", "/dev", "/dev",
                             *without(args, ("--dev", "/dev"))[args.index("--dev") :]],
        ),
    ),
    Attack(
        "make a device of the machine's disk",
        "mknod disk b 254 0 && broke made; mknod /tmp/disk b 254 0 && broke made",
        option("--cap-drop", "ALL"),
        outer="device nodes cannot be made in a user namespace, whatever its capabilities",
    ),
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_held(attack: Attack, scene: Scene) -> None:
    await held(attack, scene)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_control(attack: Attack, scene: Scene) -> None:
    reason = await control(attack, scene)
    if reason is not None:
        pytest.skip(f"unprovable here: {reason}")
