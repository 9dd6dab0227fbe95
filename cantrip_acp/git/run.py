"""Runs the host's git so that a repository's settings cannot run programs.

A ``.git/config`` may name programs: a file system monitor, hooks, filters, pagers, ssh commands, credential helpers. So git
runs with its own environment without secrets, and with the settings of user and system only if the caller requests them.
Every setting that has a fixed name and names a program is overridden. The repository chooses the names of filters, text
converters and merge drivers, so they cannot be overridden. Therefore commands on files must use `SafeGitFolder`, which does
not read the repository's settings.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

from msgspec import Struct

from cantrip_acp.types.errors import GitError

TIMEOUT = 60.0
"""Default time limit in seconds."""
_LARGEST = 256 * 1024 * 1024
_LARGEST_ERROR = 64 * 1024

COMMANDS = frozenset(
    {
        "branch", "cat-file", "check-attr", "check-ignore", "check-ref-format", "checkout-index", "commit-tree", "config", "diff",
        "diff-files", "diff-index", "diff-tree", "for-each-ref", "hash-object", "init", "log", "ls-files", "ls-tree", "merge-base",
        "mktree", "read-tree", "reflog", "rev-list", "rev-parse", "show", "show-ref", "status", "symbolic-ref", "update-index",
        "update-ref", "var", "version", "worktree", "write-tree",
    }
)  # fmt: skip
"""The allowed git commands. None of them is an alias, uses the network, or leaves a process running."""

_SHOWS = frozenset({"diff", "diff-files", "diff-index", "diff-tree", "log", "show"})

SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "core.sshCommand=false",
    "core.gitProxy=none",
    "core.askPass=",
    "core.editor=:",
    "core.pager=cat",
    "core.splitIndex=false",
    "core.untrackedCache=false",
    "sequence.editor=:",
    "credential.helper=",
    "credential.interactive=false",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "log.showSignature=false",
    "gpg.program=false",
    "gpg.ssh.program=false",
    "gpg.x509.program=false",
    "gc.auto=0",
    "gc.recentObjectsHook=",
    "maintenance.auto=false",
    "protocol.allow=never",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "diff.ignoreSubmodules=all",
    "status.submoduleSummary=false",
    "advice.detachedHead=false",
)
"""Overrides of a repository's settings. They are used in every run."""


class GitResult(Struct, frozen=True):
    """The result of a run: exit status, standard output as bytes, error output as text (its first 64 KiB)."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """The output as text, without the final line end."""
        return os.fsdecode(self.out).rstrip("\n")


@lru_cache(maxsize=8)
def executable(path: str | None = None) -> str:
    """The absolute path of git, searched only in absolute folders of PATH. Raises `GitError` if there is none."""
    for folder in (path or os.environ.get("PATH") or os.defpath).split(os.pathsep):
        found = os.path.join(folder, "git")
        if os.path.isabs(folder) and os.path.isfile(found) and os.access(found, os.X_OK):
            return found
    raise GitError("git is not installed, or not on PATH; install it (apt install git)")


def environment(*, users: bool = False) -> dict[str, str]:
    """The whole environment of git. With ``users``, git also reads the user's and the system's settings."""
    env = {
        "PATH": ":".join(dict.fromkeys((os.path.dirname(executable()), "/usr/bin", "/bin"))),
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        # Missing objects of a partial clone are never fetched: a remote's address may be a command.
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_SSH_COMMAND": "false",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "SSH_ASKPASS": "",
        "GIT_EDITOR": ":",
        "GIT_SEQUENCE_EDITOR": ":",
        "GIT_PAGER": "cat",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_MERGE_AUTOEDIT": "no",
    }
    if users:
        for name in ("GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_GLOBAL"):
            del env[name]
        kept = ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_GLOBAL")
        env.update({name: os.environ[name] for name in kept if name in os.environ})
    return env


def run(
    args: Sequence[str],
    *,
    env: Mapping[str, str] = {},
    cwd: str = "/",
    stdin: bytes = b"",
    timeout: float = TIMEOUT,
    statuses: Sequence[int] = (0,),
    users: bool = False,
) -> GitResult:
    """Run ``git ARGS`` and wait. ``args[0]`` is one of `COMMANDS`; ``env`` is added to `environment`.

    Blocking: call it in a thread (`anyio.to_thread.run_sync`). Raises `GitError` for an exit status that is not in
    ``statuses``, after ``timeout`` seconds, and for more than 256 MiB of output.
    """
    if not args or args[0] not in COMMANDS:
        raise ValueError(f"git {args[0] if args else ''} is not an allowed git command")
    line = [executable(), "--no-pager"]
    for setting in SETTINGS:
        line += ["-c", setting]
    line.append(args[0])
    if args[0] in _SHOWS:
        line += ["--no-ext-diff", "--no-textconv", "--ignore-submodules=all"]
    line += args[1:]
    ran = _Process(line, {**environment(users=users), **env}, cwd, stdin, timeout).ran()
    if ran.status not in statuses:
        said = " ".join(ran.err.split()) or f"exit status {ran.status}"
        raise GitError(f"git {args[0]} failed: {said[:500]}")
    return ran


class _Process:
    """One git process in its own session. It has no terminal for questions, and is killed with all its children."""

    def __init__(self, line: list[str], env: dict[str, str], cwd: str, stdin: bytes, timeout: float) -> None:
        self._name = next(word for word in line if word in COMMANDS)
        self._timeout = timeout
        self._late = False
        self._err = b""
        try:
            self._process = subprocess.Popen(
                line,
                cwd=cwd,
                env=env,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise GitError(f"git could not be started in {cwd}: {error.strerror}") from None
        self._threads = [threading.Thread(target=self._read_errors, daemon=True)]
        if stdin:
            self._threads.append(threading.Thread(target=self._write, args=(stdin,), daemon=True))

    def ran(self) -> GitResult:
        timer = threading.Timer(self._timeout, self._kill, (True,))
        timer.daemon = True
        out = self._process.stdout
        assert out is not None
        try:
            timer.start()
            for thread in self._threads:
                thread.start()
            data = out.read(_LARGEST + 1)
            if len(data) > _LARGEST:
                raise GitError(f"git {self._name} printed more than {_LARGEST:,} bytes; the repository is too large")
            for thread in self._threads:
                thread.join()
            status = self._process.wait()
        finally:
            timer.cancel()
            self._kill(False)
            self._process.wait()
            out.close()
        if self._late:
            raise GitError(f"git {self._name} took longer than {self._timeout:g} seconds and was stopped")
        return GitResult(status, data, self._err.decode("utf-8", "replace"))

    def _kill(self, late: bool) -> None:
        if self._process.poll() is None:
            self._late = late
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _read_errors(self) -> None:
        err = self._process.stderr
        assert err is not None
        with err:
            self._err = err.read(_LARGEST_ERROR)
            while err.read(_LARGEST_ERROR):
                pass

    def _write(self, data: bytes) -> None:
        into = self._process.stdin
        assert into is not None
        # If git ends early, it reports the reason itself.
        with suppress(BrokenPipeError), into:
            into.write(data)
