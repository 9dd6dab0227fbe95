"""One defence taken away, for controls. It exists here alone: nothing in the package can be told to leave one out.

What is edited is what a command is started with: bubblewrap's options, the system call filter, the limits, and how the
program is started. The rest of the sandbox stays.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from cantrip_acp.sandbox import Sandbox
from cantrip_acp.sandbox.launch import bubblewrap, process_tree, seccomp
from cantrip_acp.sandbox.launch.sandbox import Prepared
from cantrip_acp.sandbox.launch.unix_sockets import Supervisor

if TYPE_CHECKING:
    from tests.sandbox.attack.attack_scene import Scene

Edit = Callable[[list[str], "Scene"], list[str]]


@dataclass(frozen=True)
class Defence:
    """What is taken away, by name, and how."""

    name: str
    removed: Callable[[Scene], AbstractContextManager[None]]


def options(name: str, edit: Edit) -> Defence:
    """A change of bubblewrap's options."""

    def change(prepared: Prepared, scene: Scene) -> Prepared:
        edited = edit(list(prepared.options), scene)
        assert edited != prepared.options, f"{name}: the defence is not there to be taken away"
        # Without a network namespace of its own a sandbox with a proxy, or with a supervisor of its Unix sockets, would not
        # start, which is a defence of its own.
        own = "--unshare-net" in edited
        policy = replace(prepared.policy, hosts=prepared.policy.hosts if own else None)
        supervisor = prepared.supervisor if own else None
        return replace(
            prepared, options=edited, encoded=bubblewrap.encode(edited), policy=policy, supervisor=supervisor
        )

    return prepared(name, change)


def prepared(name: str, change: Callable[[Prepared, Scene], Prepared]) -> Defence:
    """A change of what a command is started with."""

    @contextlib.contextmanager
    def removed(scene: Scene) -> Iterator[None]:
        original = Sandbox._prepare
        with mock.patch.object(Sandbox, "_prepare", lambda self: change(original(self), scene)):
            yield

    return Defence(name, removed)


def patched(name: str, target: Any, attribute: str, value: Any) -> Defence:
    """Something of the package's own replaced."""

    @contextlib.contextmanager
    def removed(scene: Scene) -> Iterator[None]:
        with mock.patch.object(target, attribute, value):
            yield

    return Defence(name, removed)


def option(*words: str) -> Defence:
    """Without one option and its values."""
    return options(" ".join(words), lambda args, _: without(args, words))


def covered(path: str) -> Defence:
    """Without the mount that covers or protects a path."""
    return options(f"the mount over {path}", lambda args, scene: _unmounted(args, scene.fill(path)))


def read_only(path: str) -> Defence:
    """With a read-only mount made writable."""

    def edit(args: list[str], scene: Scene) -> list[str]:
        where = scene.fill(path)
        return [
            "--bind" if word == "--ro-bind" and args[at + 2 : at + 3] == [where] else word
            for at, word in enumerate(args)
        ]

    return options(f"{path} read-only", edit)


def unseen(path: str, *, writable: bool = False) -> Defence:
    """With something of the host shown that is not, since nothing is until it is added."""
    how = "--bind" if writable else "--ro-bind"
    return options(
        f"{path} {'not writable' if writable else 'not shown'}",
        lambda args, scene: _before_end(args, [how, scene.fill(path), scene.fill(path)]),
    )


def writable_root(path: str) -> Defence:
    """Without the last step that makes a mount read-only."""
    return options(f"{path} made read-only", lambda args, _: without(args, ("--remount-ro", path)))


def calls(*names: str) -> Defence:
    """The filter without some of its calls; all others stay filtered."""
    return filtered(f"the filter's rule for {', '.join(names)}", lambda: filter_without(*names))


def unsupervised() -> Defence:
    """With a supervisor of Unix sockets that lets each call go on, as if there were none."""
    return patched("the supervisor of Unix sockets", Supervisor, "_answer", lambda self, *call: 1)


def unnotified() -> Defence:
    """With Unix sockets, and without the supervisor's own filter."""
    return prepared("the filter of the supervisor", lambda p, _: replace(p, supervisor=None))


def filtered(name: str, make: Callable[[], bytes]) -> Defence:
    """Another filter: in what a command is started with, and in what a worker is."""

    @contextlib.contextmanager
    def removed(scene: Scene) -> Iterator[None]:
        with mock.patch.object(seccomp, "program", return_value=make()):
            yield

    return Defence(name, removed)


def limited(name: str, **values: int) -> Defence:
    """With wider limits."""
    return prepared(name, lambda p, _: replace(p, policy=replace(p.policy, limits=replace(p.policy.limits, **values))))


def hidden_environment() -> Defence:
    """bubblewrap started with this process's environment, as any program is."""
    original = subprocess.Popen

    def popen(*args: Any, **more: Any) -> Any:
        return original(*args, **{**more, "env": dict(os.environ)})

    return patched("the empty environment", process_tree.subprocess, "Popen", popen)  # type: ignore[attr-defined]


def without(args: list[str], words: Sequence[str]) -> list[str]:
    for at in range(len(args)):
        if args[at : at + len(words)] == list(words):
            return args[:at] + args[at + len(words) :]
    return args


def _unmounted(args: list[str], path: str) -> list[str]:
    for at in range(len(args) - 1, -1, -1):
        if args[at] == path and at >= 1 and args[at - 1] == "--tmpfs":
            begin = at - 1
            while begin >= 2 and args[begin - 2] in ("--perms", "--size"):
                begin -= 2
            return args[:begin] + args[at + 1 :]
        if args[at] == path and at >= 2 and args[at - 2] in ("--ro-bind", "--bind"):
            return args[: at - 2] + args[at + 1 :]
    return args


def _before_end(args: list[str], more: list[str]) -> list[str]:
    at = args.index("--remount-ro")
    return args[:at] + more + args[at:]


_NO_CALL = 1_000_000


def filter_without(*names: str) -> bytes:
    machine = seccomp.MACHINES[os.uname().machine]
    numbers = {name: _NO_CALL + at if name in names else nr for at, (name, nr) in enumerate(machine.numbers.items())}
    return seccomp.assemble(seccomp._filter(replace(machine, numbers=numbers), seccomp.Allowed()))


def number(name: str) -> int:
    """A system call's number on this machine."""
    return seccomp.MACHINES[os.uname().machine].numbers[name]
