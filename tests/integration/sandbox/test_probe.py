"""Why there is no sandbox: the causes are told apart, each with its own mend."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cantrip_acp.core.definition.wards import Wards
from cantrip_acp.core.errors import SandboxMissing
from cantrip_acp.sandbox.launch import availability
from cantrip_acp.sandbox.launch.sandbox import Sandbox


@pytest.mark.parametrize(
    ("words", "settings", "cause"),
    [
        (
            "bwrap: setting up uid map: Permission denied",
            {"kernel/apparmor_restrict_unprivileged_userns": "1"},
            "apparmor",
        ),
        (
            "bwrap: No permissions to create new namespace",
            {"kernel/unprivileged_userns_clone": "0"},
            "user-namespaces-off",
        ),
        ("bwrap: Creating new namespace failed: Operation not permitted", {}, "nested-sandbox"),
        ("bwrap: Creating new namespace failed", {"user/max_user_namespaces": "0"}, "user-namespaces-off"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", {}, "nested-sandbox"),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", {}, "no-network-namespace"),
        ("bwrap: Unknown option --size", {}, "old-bubblewrap"),
        ("bwrap: Can't find source path /x: No such file", {}, "bubblewrap-failed"),
        ("", {}, "bubblewrap-failed"),
    ],
)
def test_causes(words: str, settings: dict[str, str], cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "_setting", lambda name: settings.get(name))
    monkeypatch.setattr(availability.os, "getuid", lambda: 1000)
    found = availability.explain(words)
    assert found.name.startswith(cause)
    assert found.mend
    error = found.error()
    assert isinstance(error, SandboxMissing) == (cause != "bubblewrap-failed")
    assert found.mend in str(error)


async def test_a_sandbox_inside_a_sandbox_is_told_apart(workspace: Path) -> None:
    """An editor that sandboxes its agents leaves no room for ours: that is said, and nothing runs."""
    program = (
        "import asyncio, sys\n"
        "from cantrip_acp.sandbox.launch.sandbox import Sandbox\n"
        "from cantrip_acp.core.definition.wards import Wards\n"
        "print(asyncio.run(Sandbox(Wards(), None).run('echo RAN')))\n"
    )
    root = Path(__file__).parents[3]
    runs = [sys.prefix, sys.base_prefix, str(root)]
    (workspace / "p.py").write_text(program)
    outer = subprocess.run(
        ["bwrap", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
         "--symlink", "usr/lib64", "/lib64", "--ro-bind", "/etc", "/etc", "--proc", "/proc", "--dev", "/dev",
         "--tmpfs", "/tmp", *[w for p in dict.fromkeys(runs) for w in ("--ro-bind", p, p)],
         "--ro-bind", str(workspace), str(workspace), "--unshare-user", "--disable-userns", "--cap-drop", "ALL",
         "--chdir", str(root), sys.executable, str(workspace / "p.py")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "RAN" not in outer.stdout
    assert "SandboxMissing" in outer.stderr, outer.stderr
    assert "no sandbox can be created" in outer.stderr or "does not allow ordinary users" in outer.stderr


async def test_a_back_end_that_fails_is_no_result(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words are not the command's output, and the command did not run."""
    fake = workspace / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(availability.find_bubblewrap, "__defaults__", (str(workspace),))
    with pytest.raises(SandboxMissing):
        await Sandbox(Wards(), None).run("echo hi")


def test_bubblewrap_is_not_taken_from_path(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH may begin with a folder that a command can write."""
    fake = workspace / "bwrap"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(workspace))
    assert availability.find_bubblewrap() != str(fake)
