"""The host around an attack: a workspace, secrets beside it, a home, something that listens, something that runs.

`picture` is what all of it looks like; an attack must leave it as it was, new files in the writable workspace apart.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import socket
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cantrip_acp.files.protected_paths import why_protected
from cantrip_acp.gates.sandbox_options import sandbox_options
from cantrip_acp.gates.wards import Wards
from cantrip_acp.sandbox import Outcome, Sandbox, SandboxOptions
from cantrip_acp.sandbox.policy.host_toolchains import Host

if TYPE_CHECKING:
    from tests.sandbox.attack.attack import Attack

GIT = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}
_KERNEL = ("kernel/core_pattern", "kernel/modprobe", "kernel/panic", "kernel/hostname", "vm/overcommit_memory")


class Scene:
    """Make it in a folder of its own; `close` it in any case."""

    def __init__(self, base: Path) -> None:
        self.base = Path(os.path.realpath(base))
        self.secret = f"bait{secrets.token_hex(8)}"
        self.workspace = self.base / "work"
        self.beside = self.base / "beside"
        self.home = self.base / "home"
        for folder in (self.workspace, self.beside, self.home):
            folder.mkdir()
        self._furnish()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self._unix = self.beside / "docker.sock"
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(self._unix))
        self.unix.listen()
        self.unix.setblocking(False)
        self.abstract = f"cantrip-attack-{os.getpid()}-{secrets.token_hex(4)}"
        self.hidden = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.hidden.bind(f"\0{self.abstract}")
        self.hidden.setblocking(False)
        self.victim = subprocess.Popen(["sleep", "infinity"], env={"VICTIM": self.secret})
        self.victim_priority = os.getpriority(os.PRIO_PROCESS, self.victim.pid)
        self.host = Host.detect(
            {"HOME": str(self.home), "PATH": f"{self.home}/.cargo/bin:/usr/local/bin:/usr/bin:/bin"}
        )
        self.sandbox: Sandbox | None = None
        self.more: dict[str, Any] = {}
        self.seen = 0
        self.met = False
        """Whether somebody who connected was hung up on."""
        self.hold_s = 1.6
        """How long an attack holds what it took. What ends it looks now and then, and on a busy machine seldom."""
        self.more_descriptor = -1

    def _furnish(self) -> None:
        secret = f"TOKEN={self.secret}\n"
        for path in (
            self.beside / "secret",
            self.workspace / ".env",
            self.workspace / "sub/.env.production",
            self.workspace / "sub/deep/id_ed25519",
            self.home / ".ssh/id_ed25519",
            self.home / ".netrc",
            self.home / ".aws/credentials",
            self.home / ".cargo/credentials.toml",
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(secret)
            path.chmod(0o600)
        for path, text in (
            (self.workspace / "README.md", "A project.\n"),
            (self.workspace / "sub/plain.txt", "plain\n"),
            (self.workspace / ".vscode/settings.json", "{}\n"),
            (self.workspace / "sub/.idea/workspace.xml", "<x/>\n"),
            (self.beside / "file", "untouched\n"),
            (self.home / ".bashrc", "# mine\n"),
            (self.home / ".cargo/bin/tool", "#!/bin/sh\necho tool\n"),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.home / ".cargo/bin/tool").chmod(0o755)

    def repository(self, *, credential: bool = False) -> None:
        """Put the workspace under version control, with one commit and, if wanted, a credential in its settings."""
        for words in (["init", "-q", "-b", "main"], ["add", "README.md"], ["commit", "-q", "-m", "first"]):
            subprocess.run(["git", *words], cwd=self.workspace, env={**os.environ, **GIT}, check=True)
        if credential:
            with open(self.workspace / ".git/config", "a") as config:
                config.write(f'[remote "origin"]\n\turl = https://ada:{self.secret}@example.org/x.git\n')

    def fill(self, text: str) -> str:
        facts = {
            "BASE": self.base,
            "WORK": self.workspace,
            "BESIDE": self.beside,
            "HOME": self.home,
            "HOLD": self.hold_s,
            "PORT": self.listener.getsockname()[1],
            "UNIX": self._unix,
            "ABSTRACT": self.abstract,
            "VICTIM": self.victim.pid,
            "HALF": self.secret[: len(self.secret) // 2],
            "REST": self.secret[len(self.secret) // 2 :],
        }
        for name, value in facts.items():
            text = text.replace(f"@{name}@", str(value))
        return text

    def options(self, attack: Attack) -> SandboxOptions:
        wards: dict[str, Any] = {"bash_timeout_ms": attack.timeout_ms, **attack.wards}
        if attack.writable:
            wards.setdefault("bash_writable_paths", ["workspace"])
        return sandbox_options(Wards.of(wards, base=self.workspace))

    async def run(self, attack: Attack) -> Outcome:
        self.sandbox = Sandbox(self.options(attack), self.workspace, host=self.host, **self.more)
        return await self.sandbox.run(attack.command(self))

    # What the host shows

    def connected(self) -> bool:
        """Whether anybody connected to what listens here, or sent to it."""
        if self.met:
            return True
        for listening in (self.listener, self.unix):
            try:
                listening.accept()[0].close()
                return True
            except BlockingIOError:
                continue
        try:
            return bool(self.hidden.recv(100))
        except BlockingIOError:
            return False

    def victim_hurt(self) -> bool:
        try:
            state = Path(f"/proc/{self.victim.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state in "TZX" or self.victim.poll() is not None or self.priority_changed()

    def priority_changed(self) -> bool:
        return os.getpriority(os.PRIO_PROCESS, self.victim.pid) != self.victim_priority

    def picture(self) -> Mapping[str, str]:
        """Every file, folder and link around, with kind, mode and content."""
        seen: dict[str, str] = {}
        for folder, folders, files in os.walk(self.base):
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                status = os.lstat(path)
                text = f"{stat.filemode(status.st_mode)} {status.st_uid}"
                if stat.S_ISLNK(status.st_mode):
                    text += " -> " + os.readlink(path)
                elif stat.S_ISREG(status.st_mode):
                    text += " " + hashlib.sha256(Path(path).read_bytes()).hexdigest()
                seen[path] = text
        for name in _KERNEL:
            try:
                seen[name] = Path(f"/proc/sys/{name}").read_text()
            except OSError:
                continue
        return seen

    def compare(self, before: Mapping[str, str]) -> None:
        after = self.picture()
        changed = sorted(p for p in before if after.get(p) != before[p])
        assert not changed, f"changed on the host: {changed}"
        inside = f"{self.workspace}/"
        new = sorted(p for p in after.keys() - before.keys() if not p.startswith(inside))
        assert not new, f"new on the host: {new}"
        guarded = [
            p for p in after.keys() - before.keys() if why_protected(p.removeprefix(inside).split("/")) is not None
        ]
        assert not guarded, f"made on the host: {guarded}"
        assert not self.victim_hurt()
        assert not self.connected()

    def close(self) -> None:
        self.victim.kill()
        self.victim.wait()
        for one in (self.listener, self.unix, self.hidden):
            one.close()
        shutil.rmtree(self.base, ignore_errors=True)
