"""A bash medium without a sandbox, for tests of the loop on machines that cannot make one. It exists here alone.

Nothing in the package knows of it: no name, recipe, ward, setting or environment variable leads to it, and a test keeps it
so. Commands run as they are, with this process's rights: give it nothing that you would not type.
"""

from __future__ import annotations

import subprocess
import time
from typing import Any

import anyio

from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.mediums.bash import BashMedium, BashSession
from cantrip_acp.sandbox import Outcome


class PassThrough:
    """What `Sandbox.run` does, by a bare shell. Gates are not there as commands."""

    def __init__(self, wards: Any, workspace: Any, **_: Any) -> None:
        self._timeout = wards.bash_timeout_ms / 1000
        self._limit = wards.bash_max_output_bytes
        self._folder = workspace

    def join(self, network: Any) -> None:
        """There is one network."""

    async def run(self, command: str, *, listener: Any = None, environment: Any = None, **_: Any) -> Outcome:
        began = time.perf_counter()
        done = None
        with anyio.move_on_after(self._timeout):
            done = await anyio.run_process(
                ["/bin/sh", "-c", command], cwd=self._folder, check=False, stdin=subprocess.DEVNULL, env=environment
            )
        out = done.stdout.decode("utf-8", "replace") if done is not None else ""
        err = done.stderr.decode("utf-8", "replace") if done is not None else ""
        if listener is not None and out:
            await listener("stdout", out)
        return Outcome(
            exit_code=done.returncode if done is not None else None,
            stdout=out[: self._limit],
            stderr=err[: self._limit],
            truncated=len(out) > self._limit,
            timed_out=done is None,
            ended_because=None if done is not None else "it ran too long",
            last_line=out.rstrip("\n").rpartition("\n")[2],
            duration_ms=(time.perf_counter() - began) * 1000,
        )


class PassThroughMedium(BashMedium):
    """Give it to a `Circle` in place of the name ``bash``."""

    async def open(self, circle: Circle, entity_id: str) -> BashSession:
        make: Any = PassThrough
        return BashSession(circle, make)
