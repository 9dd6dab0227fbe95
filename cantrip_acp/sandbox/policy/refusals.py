"""Why a program failed at a protected name: one line in its output, because the system's own message cannot say it.

The system says "Permission denied", "Is a directory" or "Read-only file system". A line of the output is explained only if it
has such a message and the name of a path that this policy protects, so that other failures are not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from cantrip_acp.files.env_files import is_env_file
from cantrip_acp.sandbox.policy.policy import Policy

_OF_EXISTING = ("Read-only file system", "Device or resource busy")
"""What a write to a protected path says. Reading it says neither."""
_OF_ABSENT = ("Permission denied", "Is a directory", "File exists", "Operation not permitted", *_OF_EXISTING)
"""What the creation of a protected name says."""
_MOST = 3
_LONGEST = 200_000
"""The most characters of output that are searched."""


def explain_refusals(policy_of: Callable[[], Policy], output: str) -> str:
    """A line for each protected name at which a program failed, at most some; empty if there is none.

    ``policy_of`` is called only if the output has such a message.
    """
    if not any(message in output for message in _OF_ABSENT):
        return ""
    policy = policy_of()
    lines = [line for line in output[-_LONGEST:].splitlines() if any(message in line for message in _OF_ABSENT)]
    found: dict[str, str] = {}
    for paths, messages in ((policy.absent, _OF_ABSENT), (policy.protected, _OF_EXISTING)):
        told = [line for line in lines if any(message in line for message in messages)]
        for path in paths:
            name = os.path.basename(path)
            word = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])")
            if name not in found and any(word.search(line) for line in told):
                found[name] = path
    masked = [path for path, _ in policy.replaced if is_env_file(path)]
    for path in masked:
        own = re.compile(rf"(?<![\w.-]){re.escape(os.path.basename(path))}(?![\w.-])")
        if any(own.search(line) for line in lines if any(message in line for message in _OF_EXISTING)):
            return (
                f"cantrip: {os.path.basename(path)} is read-only here, and its values are masked, because they may be secrets; "
                "only a person changes it. Say in your answer what should be changed there, or write names without values to "
                ".env.example\n"
            )
    if not found:
        return ""
    because = policy.reasons()
    return "".join(
        f"cantrip: {name} is protected here, because {because[path]}; only a person changes it. Say in your answer what should "
        "be changed there\n"
        for name, path in list(found.items())[:_MOST]
    )
