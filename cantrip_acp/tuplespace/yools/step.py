"""What a worker and a yool say to each other: the call of a step, its result, and how it can fail."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from cantrip_acp.telemetry.tracing import Trace
from cantrip_acp.tuplespace.budget import Budget
from cantrip_acp.tuplespace.tuples import WorkTuple

_OF_THE_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG}
)
"""Errors of the system that say nothing about the tuple during which they came: full disks, no more memory or files."""

Save = Callable[[Mapping[str, Any]], Awaitable[Budget | None]]


async def _forget(progress: Mapping[str, Any]) -> Budget | None:
    return None


class StepCall(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments with which a worker calls a yool."""

    yool: str
    args: Mapping[str, Any]
    tuple_id: str
    position: Mapping[str, Any]
    """The tuple's ``map_pos``."""
    left_usd: float | None
    """The rest of the tuple's budget; None if there is no budget."""
    left_tokens: int | None
    left_s: float | None
    """Seconds to the tuple's deadline."""
    lane: str = ""
    """The tuple's lane."""
    cpu_percent: int = 100
    """Processor time that what the step starts may use, in per cent of one processor."""
    disk_mb: float | None = None
    """MB that the step may write to disks."""
    trace: Trace | None = None
    """The trace of who put the tuple. Spans of the yool are children of the step's."""
    progress: Mapping[str, Any] | None = None
    """The progress that an interrupted attempt last saved with ``save``. None if there was none."""
    save: Save = _forget
    """Stores the progress of this step, for `progress` and for those who watch. ``cost`` in it is the cost so far.

    Returns the budget that the tuple shares with others, if there is one. If it is spent, stop.
    """


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The value that a yool returns. ``exit`` is 0 for success; any other number ends the tuple without another attempt."""

    exit: int = 0
    result: Any = None
    error: str | None = None
    cost: Mapping[str, Any] = {}
    artifacts: Sequence[Mapping[str, Any]] = ()
    children: Sequence[WorkTuple] = ()
    """Tuples that are put when this one ends, in the same transaction. Only for a step that is its tuple's only one."""


class StepFailed(Exception):
    """A step failed in a way that may not happen again. The worker tries again later.

    ``tried`` is False if nothing was tried yet: then the attempt does not count. ``outage`` is True if the reason is not the
    tuple: what all steps of this yool need is missing, for example without network. Then the worker starts no other step of
    this yool until one attempt succeeds, and attempts do not count. With ``perhaps``, it may be the tuple or an outage, such
    as after a server's error 500: it is an outage once another tuple fails, too. ``mistake`` is True if every step of this
    yool would fail in the same way, such as with a wrong key: a worker that has never got on with this yool ends.
    """

    def __init__(
        self, message: str, *, tried: bool = True, outage: bool = False, perhaps: bool = False, mistake: bool = False
    ) -> None:
        super().__init__(message)
        self.tried = tried
        self.outage = outage or mistake
        self.perhaps = perhaps
        self.mistake = mistake


Yool = Callable[[StepCall], Awaitable[StepResult]]
"""A function that runs the steps with one name. It may have the members of `YoolBase`."""


class YoolBase:
    """The defaults for the optional members of a yool."""

    needs: Mapping[str, Any] = MappingProxyType({})
    without: tuple[str, ...] = ()
    """``needs`` has the required values of arguments, ``without`` the arguments that a step must not have (`Runnable`)."""
    full_name: str = ""
    """The name with its version, if steps may name it in other ways: receipts have it."""
    authority: tuple[str, ...] = ()
    """Who may order it (`authority`); empty for everybody."""
    version: str = ""
    """On what of the yool itself the result depends, for the reuse of answers (`reuse`)."""

    async def input_digest(self, call: StepCall) -> str | None:
        """The digest of the files and the environment that a step declares as inputs. None if it declares none, so that its
        answer is not reused."""
        return None


def is_of_the_machine(error: BaseException) -> bool:
    """Whether the machine caused an error (for example a full disk), so that the tuple is not to blame."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _OF_THE_MACHINE:
            return True
        seen = seen.__cause__ or seen.__context__
    return False
