"""Stands in for macOS's sandbox-exec on Linux, in tests of the back end for macOS.

It takes the same arguments, reads the profile with the evaluator, and runs the command in a bubblewrap that shows and protects
what the rules for files say, in their order. It has a process namespace, so that no command of a test can signal a process of
this machine: that is how it enforces the rule for signals. It denies the network if no rule allows any. Other rules it only reads.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.support.sandbox_profile import Profile, ProfileError, Symbol, parse

SYSTEM = (
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/passwd",
    "/etc/group",
)
BAD_PROFILE = 65
READ_ONLY = ("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/")
"""A command of a test must not change settings of this machine's kernel, even as root."""


def mounts(profile: Profile) -> list[str]:
    """bubblewrap's options for the rules about files: the later rule is mounted later, and so wins."""
    args = ["--ro-bind", "/usr", "/usr"]
    for path in SYSTEM:
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            args += ["--ro-bind", path, path]
    args += ["--dev", "/dev", "--proc", "/proc"]
    rules = [
        (at, allow, operation, os.path.realpath(path))
        for at, (allow, operation, path) in enumerate(files(profile))
        if os.path.exists(path) and (not path.startswith(("/usr/", "/dev/")) or path.startswith("/dev/shm/"))
    ]
    # A folder must be mounted before what is below it, and of two rules for one path the later one counts.
    for _, allow, operation, path in sorted(rules, key=lambda rule: (rule[3].count("/"), rule[0])):
        if allow:
            args += ["--bind" if operation.startswith("file-write") else "--ro-bind", path, path]
        elif operation.startswith("file-read"):
            args += ["--perms", "0000", "--tmpfs", path] if os.path.isdir(path) else ["--ro-bind", "/dev/null", path]
        elif operation == "file-write*":
            args += ["--ro-bind", path, path]
    return args


def files(profile: Profile) -> list[tuple[bool, str, str]]:
    """The rules for files and whole folders: whether allowed, the widest operation, and the path."""
    found = []
    for expression in parse(profile.text)[1:]:
        operations = [str(word) for word in expression[1:] if isinstance(word, Symbol)]
        widest = "file-write*" if expression[0] == "allow" and "file-write*" in operations else operations[0]
        if widest not in ("file-read*", "file-write*", "file-write-data"):
            continue
        for part in expression[1:]:
            if isinstance(part, list) and part[0] in ("subpath", "literal"):
                path = profile.parameters[part[1][1]] if isinstance(part[1], list) else str(part[1])
                # The name of a folder alone does not show what is in it.
                if part[0] == "subpath" or not os.path.isdir(path):
                    found.append((expression[0] == "allow", widest, path))
    return found


def main(argv: list[str]) -> None:
    parameters, text, at = {}, "", 0
    while at < len(argv) and argv[at] in ("-D", "-p", "-f"):
        option, value = argv[at : at + 2]
        if option == "-D":
            name, _, path = value.partition("=")
            parameters[name] = path
        elif option == "-p":
            text = value
        else:
            with open(value, encoding="utf-8") as file:
                text = file.read()
        at += 2
    try:
        profile = Profile(text, parameters)
    except ProfileError as error:
        sys.stderr.write(f"sandbox-exec: {error}\n")
        sys.exit(BAD_PROFILE)
    alone = [] if "(allow network-outbound" in text else ["--unshare-net"]
    denied = [path for allow, operation, path in files(profile) if not allow and operation == "file-write*"]
    missing = [path for path in denied if is_missing(path)]
    shut = [word for path in missing for word in ("--tmpfs", path, "--remount-ro", path)]
    options = [
        "--unshare-user",
        "--unshare-pid",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
        *alone,
        *mounts(profile),
        *shut,
        *READ_ONLY,
        "--chdir",
        os.getcwd(),
    ]
    inherited = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
    with subprocess.Popen(["/usr/bin/bwrap", *options, *argv[at:]], pass_fds=inherited) as child:
        # sandbox-exec becomes the command, so nobody else has its descriptors.
        for fd in inherited:
            with contextlib.suppress(OSError):
                os.close(fd)
        code = child.wait()
    # bubblewrap makes the folders that it mounts something on.
    for path in missing:
        if os.path.isdir(path):
            os.rmdir(path)
    sys.exit(code if code >= 0 else 128 - code)


def command_process(leader: int) -> int:
    """The process of the command, as the host counts: the first one that bubblewrap's first process has started.

    sandbox-exec itself becomes the command, so there it is the leader of the group.
    """
    pending = [leader]
    while pending:
        pid = pending.pop()
        try:
            with open(f"/proc/{pid}/status", encoding="utf-8") as file:
                numbers = next(line for line in file if line.startswith("NSpid:")).split()[1:]
            with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
                children = [int(word) for word in file.read().split()]
        except OSError:
            continue
        if len(numbers) > 1 and numbers[-1] == "2" and pid != leader:
            return pid
        pending += children
    raise ProcessLookupError(f"no command below {leader}")


def is_missing(path: str) -> bool:
    """Whether a path does not exist and could be made."""
    return not os.path.lexists(path) and os.access(os.path.dirname(path), os.W_OK)


if __name__ == "__main__":
    main(sys.argv[1:])
