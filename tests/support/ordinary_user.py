"""Running something as an ordinary user, for tests that were started as root.

Interpreters often lie where only root may look (``/root/.pyenv`` behind a 0700 ``/root``). In a mount namespace of its own,
such a folder is covered by one that shows nothing but what the test needs; the machine itself stays as it is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

NOBODY = 65534
ROOT = Path(__file__).parents[2]

_SCRIPT = """
set -e
mount --make-rprivate /
while [ "$1" != -- ]; do
  cover=$1; count=$2; shift 2
  stash=$(mktemp -d /run/cantrip-test-XXXXXX)
  mount --rbind "$cover" "$stash"
  mount -t tmpfs -o mode=755 tmpfs "$cover"
  while [ "$count" -gt 0 ]; do
    mkdir -p "$cover/$1"; mount --rbind "$stash/$1" "$cover/$1"
    shift; count=$((count - 1))
  done
  umount -l "$stash"; rmdir "$stash"
done
shift
exec setpriv --reuid 65534 --regid 65534 --clear-groups -- "$@"
"""


def command(*words: str) -> list[str]:
    """The words of a command that runs ``words`` as nobody, with this interpreter and this project readable."""
    needed = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix, ROOT)} | {Path(sys.prefix), ROOT}
    covers: dict[Path, list[str]] = {}
    for path in sorted(needed):
        closed = next((p for p in reversed(path.parents) if not os.stat(p).st_mode & 0o001), None)
        if closed is not None:
            covers.setdefault(closed, []).append(str(path.relative_to(closed)))
    arguments = [word for cover, paths in covers.items() for word in (str(cover), str(len(paths)), *paths)]
    return ["unshare", "--mount", "--", "sh", "-c", _SCRIPT, "as-nobody", *arguments, "--", *words]
