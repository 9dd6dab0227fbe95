"""The tests of `tests/gates/unit/test_write_file.py` that start processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ordinary_user

FULL = """
import os, sys
from pathlib import Path
from cantrip_acp.types.errors import GateError
from cantrip_acp.gates.files.edit_file import EDIT_FILE
from cantrip_acp.gates.files.write_file import WRITE_FILE
from tests.support.fixtures.gates import call_in, context_of

folder = Path(sys.argv[1])
context = context_of(folder)
(folder / "f").write_text("old NEEDLE\\n")
for gate, args in (
    (WRITE_FILE, {"path": "f", "content": "x" * 2_000_000}),
    (WRITE_FILE, {"path": "new/f", "content": "x" * 2_000_000}),
    (EDIT_FILE, {"path": "f", "old_text": "NEEDLE", "new_text": "y" * 900_000}),
):
    try:
        call_in(context, gate, **args)
    except GateError as error:
        print(error)
    else:
        print("WRITTEN")
assert (folder / "f").read_text() == "old NEEDLE\\n"
assert not [name for name in os.listdir(folder) if name.startswith(".cantrip-")], os.listdir(folder)
"""


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """In a mount namespace of its own, on a file system of 64 kB."""
    command = f'mount -t tmpfs -o size=64k none {tmp_path} && exec {sys.executable} -c "$1" {tmp_path}'
    done = subprocess.run(
        ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", command, "sh", FULL],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    if done.returncode and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip(f"no small file system to be had here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "cannot write 'f': the disk is full; the old file is unchanged"
    assert lines[1] == "cannot write 'new/f': the disk is full; no file was made"
    assert lines[2] == "cannot write 'f': the disk is full; the old file is unchanged"


DENIED = """
import os, sys
from pathlib import Path
from cantrip_acp.types.errors import GateError
from cantrip_acp.gates.files.list_dir import LIST_DIR
from cantrip_acp.gates.files.read_file import READ_FILE
from cantrip_acp.gates.search.search import SEARCH
from cantrip_acp.gates.files.edit_file import EDIT_FILE
from cantrip_acp.gates.files.write_file import WRITE_FILE
from tests.support.fixtures.gates import call_in, context_of

folder = Path(sys.argv[1])
context = context_of(folder)
for gate, args in (
    (READ_FILE, {"path": "closed.txt"}),
    (READ_FILE, {"path": "closed/inner.txt"}),
    (LIST_DIR, {"path": "closed"}),
    (WRITE_FILE, {"path": "readonly.txt", "content": "x"}),
    (EDIT_FILE, {"path": "readonly.txt", "old_text": "o", "new_text": "x"}),
    (WRITE_FILE, {"path": "fixed/new.txt", "content": "x"}),
    (WRITE_FILE, {"path": "fixed/sub/new.txt", "content": "x"}),
    (WRITE_FILE, {"path": "fixed/old.txt", "content": "x"}),
):
    try:
        print("DONE", call_in(context, gate, **args).result)
    except GateError as error:
        print(error)
print(call_in(context, LIST_DIR, depth=3).result)
print(call_in(context, SEARCH, pattern="needle").result)
"""


def test_permission_denied(tmp_path: Path) -> None:
    """As somebody who is not root."""
    folder = tmp_path / "w"
    (folder / "closed").mkdir(parents=True)
    (folder / "closed" / "inner.txt").write_text("needle")
    (folder / "closed.txt").write_text("needle")
    (folder / "open.txt").write_text("needle")
    (folder / "readonly.txt").write_text("old")
    (folder / "fixed").mkdir()
    (folder / "fixed" / "old.txt").write_text("old")
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 65534, 65534)
        above = tmp_path
        while above != above.parent:
            if not above.stat().st_mode & 0o001 and above.stat().st_uid == 0:
                above.chmod(above.stat().st_mode | 0o011)
            above = above.parent
    (folder / "closed.txt").chmod(0)
    (folder / "closed").chmod(0)
    (folder / "readonly.txt").chmod(0o444)
    (folder / "fixed").chmod(0o555)
    (folder / "fixed" / "old.txt").chmod(0o666)
    words = [sys.executable, "-B", "-c", DENIED, str(folder)]
    done = subprocess.run(
        ordinary_user.command(*words) if os.geteuid() == 0 else words,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), "HOME": "/nonexistent"},
    )
    (folder / "closed").chmod(0o755)
    (folder / "fixed").chmod(0o755)
    if done.returncode and "GateError" not in done.stderr and ("Permission denied" in done.stderr or not done.stdout):
        pytest.skip(f"the interpreter does not run without root here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "cannot use 'closed.txt': permission denied",
        "cannot use 'closed/inner.txt': permission denied",
        "cannot use 'closed': permission denied",
        "'readonly.txt' is read-only: permission denied; the file was not changed",
        "'readonly.txt' is read-only: permission denied; the file was not changed",
        "cannot write 'fixed/new.txt': permission denied; no file was made",
        "cannot make its folder 'fixed/sub/new.txt': permission denied",
        "cannot write 'fixed/old.txt': permission denied; the old file is unchanged",
        "['closed/', 'closed.txt', 'fixed/', 'fixed/old.txt', 'open.txt', 'readonly.txt']",
        "open.txt:1:needle",
    ]
