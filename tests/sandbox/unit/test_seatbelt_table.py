"""sandbox-exec and bubblewrap decide alike: a table of operations on paths, for several policies of one real folder.

For sandbox-exec the evaluator of the profile decides. For bubblewrap its arguments do: the mount that a path is on.
`tests/sandbox/integration/test_seatbelt.py` asks the real bubblewrap about a part of this table.
The question is always about the file of the host: whether its content can be read, changed, deleted or made.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.sandbox import Policy, SandboxOptions
from cantrip_acp.sandbox.launch import bubblewrap
from cantrip_acp.sandbox.launch.bubblewrap import HostPaths
from cantrip_acp.sandbox.launch.seatbelt import profile
from cantrip_acp.sandbox.policy.host_toolchains import Host
from cantrip_acp.sandbox.policy.policy import compose
from cantrip_acp.sandbox.policy.protected import NEVER_MADE, Survey
from tests.support.sandbox_profile import Disk, Profile, Request

OWN = "/private/var/own"
OPERATIONS = {
    "read": ("file-read-data",),
    "write": ("file-write-data",),
    "delete": ("file-write-unlink",),
    "chmod": ("file-write-mode",),
    "make": ("file-write-create",),
}
FILES = (
    "work/notes.txt", "work/src/a.py", "work/src/deep/b.py", "work/.git/config", "work/.git/hooks/pre-commit", "work/.git/HEAD",
    "work/.env", "work/src/.env.local", "work/keys/id_ed25519", "work/.vscode/settings.json", "work/src/.idea/x.xml",
    "work/sub/.git/config", "work/sub/code.c", "work/deep/er/.mcp.json", "work/.venv/pyvenv.cfg", "work/.venv/bin/python",
    "work/.venv/lib/x.py", "work/.claude/.env", "work/.claude/settings.json", "outside/file", "outside/.env", "more/data.csv",
    "more/.netrc", "home/ada/.ssh/id_rsa", "home/ada/.netrc", "home/ada/.cargo/bin/tool", "home/ada/.cargo/credentials.toml",
)  # fmt: skip
LINKS = {"work/to_notes": "work/notes.txt", "work/to_outside": "outside/file", "work/to_env": "work/.env"}
NEW = (
    "work/new.txt", "work/src/new.py", "work/src/.vscode", "work/.git/new", "work/.git/hooks/post-commit", "outside/new",
    "more/new", "home/ada/new", "work/sub/.git/new", "work/.venv/bin/new", "work/.venv/lib/new.py", "work/.claude/new",
    "new", "work/.env.local", "work/to_outside_new",
)  # fmt: skip
FOLDERS = ("work", "work/src", "work/src/deep", "work/.git", "work/.git/hooks", "work/keys", "work/sub", "work/deep",
           "work/deep/er",
           "work/.venv", "work/.venv/bin", "work/.venv/lib", "work/.vscode", "outside", "more", "home/ada", "home/ada/.cargo/bin",
           "home/ada/.cargo")  # fmt: skip
CASES = ("work/.GIT/config", "work/.Git/hooks/pre-commit", "work/.ENV", "work/NOTES.txt", "work/.VSCode/Settings.json",
         "work/SRC/.Env.local")  # fmt: skip
"""Other spellings of files that exist. On a disk that ignores case they are the same file."""

POLICIES: dict[str, dict[str, Any]] = {
    "read-only": {},
    "writable": {"bash_writable_paths": ("work",)},
    "one folder writable": {"bash_writable_paths": ("work/src",)},
    "two folders writable": {"bash_writable_paths": ("work/src", "outside")},
    "the folder above writable": {"bash_writable_paths": ("work", "more")},
    "network": {"bash_network": True, "bash_writable_paths": ("work/sub",)},
    "hosts": {"bash_network": ("example.org",), "bash_writable_paths": ("work",)},
    "one name allowed": {"bash_writable_paths": ("work",), "allow_protected": (".vscode", ".mcp.json")},
}

DIFFERENT_BY_DESIGN = {
    "new protected name": "On Linux it can be made and is moved away. On Macs it cannot be made, in no case: on their disks "
    "`.VSCODE` is `.vscode`.",
}


def tree(root: Path) -> None:
    """Make the files of the table."""
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"content of {name}")
    for name, target in LINKS.items():
        (root / name).symlink_to(root / target)


def made(root: Path, wards: dict[str, Any]) -> tuple[Policy, list[str]]:
    """The policy of the table's folder and its arguments for bubblewrap."""
    home = str(root / "home/ada")
    host = Host(uid=501, gid=20, user="ada", home=home, system=(("/usr", None),), path=(f"{home}/.cargo/bin", "/usr/bin"),
                tools=(f"{home}/.cargo/bin",), links=(), environment=(), shell="/bin/bash", cores=2)  # fmt: skip
    writable = tuple(str(root / p) for p in wards.get("bash_writable_paths", ()))
    given = SandboxOptions(**{**wards, "bash_writable_paths": writable})
    work = str(root / "work")
    roots = [work, *(w for w in writable if not w.startswith(work)), str(root / "more")]
    surveys = {r: Survey(r, frozenset(given.allow_protected)) for r in roots}
    findings = {r: s.refresh() for r, s in surveys.items()}
    existing = tuple(os.path.join(w, n) for w in writable for n in NEVER_MADE if os.path.lexists(os.path.join(w, n)))
    policy = compose(given, work, host, findings, existing=existing, gates=("done",), wire=str(root / "wire"),
                     more_readable=(str(root / "more"),),
                     replaced=((f"{work}/.git/config", str(root / "kept")),))  # fmt: skip
    folders = frozenset(p for p in policy.hidden if os.path.isdir(p))
    return policy, bubblewrap.arguments(policy, HostPaths(str(root / "etc"), str(root / "note")), folders=folders)


class Mounts:
    """What bubblewrap's arguments mean for the files of the host."""

    OPERANDS = {"--ro-bind": 2, "--bind": 2, "--symlink": 2, "--tmpfs": 1, "--proc": 1, "--dev": 1}

    def __init__(self, args: list[str]) -> None:
        self.mounts: list[tuple[str, str, str]] = []
        for at, word in enumerate(args):
            if word in self.OPERANDS:
                operands = args[at + 1 : at + 1 + self.OPERANDS[word]]
                self.mounts.append((word, operands[0], operands[-1]))
        self.points = {target for _, _, target in self.mounts}

    def at(self, path: str) -> tuple[bool, bool]:
        """Whether the path is the same file as on the host, and whether its mount can be written."""
        kind, source, target = next(
            (m for m in reversed(self.mounts) if path == m[2] or path.startswith(m[2].rstrip("/") + "/")),
            ("--tmpfs", "/", "/"),
        )
        same = kind in ("--ro-bind", "--bind") and source == target
        return same, same and kind == "--bind"

    def allows(self, operation: str, path: str) -> bool:
        same, writable = self.at(path)
        if operation == "read":
            return same
        if operation in ("write", "chmod"):
            return writable
        # A mount point cannot be replaced, and to make or delete a name its folder must be that of the host.
        return writable and path not in self.points and self.at(os.path.dirname(path))[1]


def rows(root: Path) -> Iterator[tuple[str, str]]:
    """The table: operation and path, relative to the root."""
    yield from itertools.product(("read", "write", "delete", "chmod"), FILES)
    yield from itertools.product(("read", "write"), LINKS)
    yield from itertools.product(("read", "delete"), FOLDERS)
    yield from itertools.product(("make",), (path for path in NEW if not set(path.split("/")) & set(NEVER_MADE)))
    yield from itertools.product(("read", "write", "delete"), CASES)


def seatbelt(policy: Policy, without: str | None = None) -> Profile:
    """The parsed profile. ``without``: the comment above the rules to leave out."""
    rendered = profile(policy, home=f"{OWN}/home", temporary=f"{OWN}/tmp")
    text = (
        rendered.text
        if without is None
        else re.sub(rf"\n; {without}[^\n]*\n\(.*?\n\n", "\n\n", rendered.text, flags=re.DOTALL)
    )
    return Profile(text, dict(rendered.parameters))


def disk(root: Path, *, case_sensitive: bool = False) -> Disk:
    entries = {str(p) for p in root.rglob("*")} | {str(p) for p in (root, *root.parents)}
    return Disk(entries, {str(root / a): str(root / b) for a, b in LINKS.items()}, case_sensitive=case_sensitive)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    tree(folder)
    return folder


def compared(
    root: Path, without: str | None = None, policies: Iterable[str] = POLICIES
) -> tuple[list[str], Counter[tuple[str, bool]]]:
    """The rows that are decided differently, and how many rows of each kind there are. ``without``: rules to leave out."""
    on_mac = disk(root)
    count: Counter[tuple[str, bool]] = Counter()
    different: list[str] = []
    for name in policies:
        policy, args = made(root, POLICIES[name])
        rules, mounts = seatbelt(policy, without), Mounts(args)
        for operation, path in rows(root):
            real = on_mac.real(str(root / path))
            by_profile = all(rules.allows(Request(o, real)) for o in OPERATIONS[operation])
            by_mounts = mounts.allows(operation, real)
            count[operation, by_mounts] += 1
            if by_profile is not by_mounts:
                different.append(f"{name}: {operation} {path}: bubblewrap {by_mounts}, sandbox-exec {by_profile}")
    return different, count


def test_the_table_is_decided_alike(root: Path) -> None:
    different, count = compared(root)
    assert different == []
    assert count.total() > 1000, count
    # Each kind of decision occurs often enough that a mistake would show.
    assert min(count[operation, allowed] for operation in OPERATIONS for allowed in (True, False)) >= 5, count


@pytest.mark.parametrize("rules", ["Your tools", "What may be read", "What may be written", "Protected:", "The roots", "Hidden:",
                                   "On the way to those"])  # fmt: skip
def test_the_table_notices_rules_that_are_missing(root: Path, rules: str) -> None:
    assert compared(root, rules, ("read-only", "the folder above writable"))[0]


def test_new_protected_names_are_the_difference_by_design(root: Path) -> None:
    """With bubblewrap they are moved away after they were made."""
    assert "new protected name" in DIFFERENT_BY_DESIGN
    policy, args = made(root, POLICIES["writable"])
    rules, mounts = seatbelt(policy), Mounts(args)
    for name in NEVER_MADE:
        for spelled in (name, name.upper()):
            path = str(root / "work" / spelled)
            if not os.path.lexists(root / "work" / name):
                assert mounts.allows("make", path), path
                assert not rules.allows(Request("file-write-create", path)), path
                assert not rules.allows(Request("file-write-create", f"{path}/below")), path


def test_other_operations(root: Path) -> None:
    policy, _ = made(root, POLICIES["writable"])
    rules = seatbelt(policy)
    wire = f"{root}/wire"
    for request, allowed in {
        Request("process-exec", "/bin/bash"): True,
        Request("signal", same_sandbox=True): True,
        Request("signal"): False,
        Request("network-outbound", remote="tcp example.org:443"): False,
        Request("network-outbound", remote="tcp localhost:21128"): False,
        Request("network-outbound", "/private/var/run/docker.sock"): False,
        Request("mach-lookup", name="com.apple.SecurityServer"): False,
        Request("file-link", f"{root}/work/.env"): False,
        # Gate calls: requests and pipes can be written, the scripts and the folders themselves cannot be replaced.
        Request("file-write-create", f"{wire}/requests/7"): True,
        Request("file-write-data", f"{wire}/announce"): True,
        Request("file-write-data", f"{wire}/answers/7"): True,
        Request("file-write-unlink", f"{wire}/requests"): False,
        Request("file-write-unlink", f"{wire}/answers/7"): False,
        Request("file-write-unlink", f"{wire}/announce"): False,
        Request("file-write-create", f"{wire}/bin/x"): False,
        Request("file-write-data", f"{wire}/call"): False,
        Request("file-read-data", f"{wire}/call"): True,
        # The private folders, the system, and other people's files.
        Request("file-write-create", f"{OWN}/home/x"): True,
        Request("file-write-unlink", f"{OWN}/home"): False,
        Request("file-read-data", f"{OWN}/other"): False,
        Request("file-read-data", "/usr/bin/true"): True,
        Request("file-write-create", "/usr/bin/x"): False,
        Request("file-read-data", "/private/etc/passwd"): True,
        Request("file-read-data", "/private/etc/master.passwd"): False,
        Request("file-read-data", "/private/tmp/x"): False,
        Request("file-read-data", "/dev/urandom"): True,
        Request("file-write-data", "/dev/null"): True,
        Request("file-write-data", "/dev/disk0"): False,
    }.items():
        assert rules.allows(request) is allowed, request
    hosts = seatbelt(made(root, POLICIES["hosts"])[0])
    assert hosts.allows(Request("network-outbound", remote="tcp localhost:21128"))
    assert not hosts.allows(Request("network-outbound", remote="tcp localhost:80"))
    assert not hosts.allows(Request("network-outbound", remote="tcp example.org:21128"))
    assert seatbelt(made(root, POLICIES["network"])[0]).allows(
        Request("network-outbound", remote="tcp example.org:443")
    )


def test_a_name_cannot_end_the_text(root: Path) -> None:
    """Submodule paths come from a file of the repository."""
    policy, _ = made(root, POLICIES["writable"])
    evil = f'{root}/work/x"))(allow default)(deny x (regex "é'
    from dataclasses import replace

    rules = seatbelt(replace(policy, absent=(*policy.absent, evil)))
    assert not rules.allows(Request("file-write-create", evil))
    assert not rules.allows(Request("file-read-data", "/Users/bob/secret"))
