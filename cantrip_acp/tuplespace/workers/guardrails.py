"""Guardrails of a worker's machine: how much processor time a step may use, and how much disk.

Each has a default that an environment variable changes, and that the policy of a project can make stricter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cantrip_acp.files.folder import Folder
from cantrip_acp.text.codecs import convert
from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.space import max_waiting_from_environment
from cantrip_acp.tuplespace.tuples import AgentTerms, WorkTuple, new_tuple, now_iso

DEFAULT_CPU_PERCENT = 95
DEFAULT_FREE_MB = 1000
DEFAULT_CONCURRENCY = 32
DEFAULT_MAX_CONCURRENCY = 64
GC_LANE = "gc.urgent"
POLICY = Path(".catalog", "policy.yaml")
"""Where the policy of a project is."""
_MB = 1_000_000
_LONGEST_POLICY = 100_000


def number_from_environment(name: str, default: int, most: int, environment: Mapping[str, str] | None = None) -> int:
    """A whole number from 1 to ``most``. Raises `TupleError` for anything else."""
    text = (os.environ if environment is None else environment).get(name, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise TupleError(f"{name} must be a whole number from 1 to {most}, not {text!r}")
    return int(text)


_Count = Annotated[int, Meta(ge=1)]


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a project (``.catalog/policy.yaml``) for workers and for programs that put tuples there.

    A limit can only be stricter than those of the environment, of a tuple and of the command line, so the file needs no
    trust.
    """

    cpu_quota_pct: Annotated[int, Meta(ge=1, le=100)] | None = None
    lane_concurrency: _Count | None = None
    max_lane_concurrency: _Count | None = None
    queue_maxsize: _Count | None = None
    free_mb: _Count | None = None
    agent_terms: AgentTerms = AgentTerms()
    """For each tuple."""

    def limit(self, terms: AgentTerms) -> AgentTerms:
        """The limits of a tuple, none above those of the project."""
        changes: dict[str, Any] = {}
        for name in AgentTerms.__struct_fields__:
            most, own = getattr(self.agent_terms, name), getattr(terms, name)
            if most is not UNSET and (isinstance(own, UnsetType) or most < own):
                changes[name] = most
        return msgspec.structs.replace(terms, **changes) if changes else terms


def read_policy(project: Path) -> Policy:
    """The policy of a project; without a file, one that limits nothing. Raises `TupleError` with file and line."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    where = str(project / POLICY)
    try:
        with Folder.top(project) as folder, folder.file(str(POLICY)) as file:
            text = file.read(_LONGEST_POLICY + 1)
        if len(text) > _LONGEST_POLICY:
            raise TupleError(f"it has more than {_LONGEST_POLICY:,} bytes", where=where)
        found = YAML(pure=True).load(text.decode())
    except (FileNotFoundError, NotADirectoryError):
        return Policy()
    except OSError as error:
        raise TupleError(f"it cannot be read: {error.strerror or error}", where=where) from None
    except UnicodeDecodeError as error:
        raise TupleError(f"not UTF-8 ({error}); save the file in the encoding UTF-8", where=where) from None
    except (YAMLError, ValueError, RecursionError) as error:
        problem, mark = (error.problem, error.problem_mark) if isinstance(error, MarkedYAMLError) else (None, None)
        line = "" if mark is None else f":{mark.line + 1}"
        raise TupleError(f"{problem or error}", where=where + line) from None
    if found is None:
        return Policy()
    if not isinstance(found, dict):
        raise TupleError("it must have a key and a value in each line, such as cpu_quota_pct: 60", where=f"{where}:1")
    terms = found.get("agent_terms")
    if isinstance(terms, dict):
        _check(terms, AgentTerms, f"{where}:", "agent_terms.")
        if "deadline_iso" in terms:
            raise TupleError("agent_terms: a project has no deadline", where=f"{where}:{_line(terms, 'deadline_iso')}")
    _check(found, Policy, f"{where}:", "")
    return convert({key: _plain(value) for key, value in found.items()}, Policy)


def _check(part: Any, shape: type[msgspec.Struct], where: str, prefix: str) -> None:
    """Check each key by itself, so that an error has its line."""
    for key, value in part.items():
        if key not in shape.__struct_fields__:
            known = ", ".join(shape.__struct_fields__)
            raise TupleError(
                f"{prefix}{key} is not a limit; the limits are {known}", where=f"{where}{_line(part, key)}"
            )
        try:
            convert({key: _plain(value)}, shape)
        except msgspec.ValidationError as error:
            raise TupleError(
                f"{prefix}{key}: {str(error).partition(' - ')[0]}", where=f"{where}{_line(part, key)}"
            ) from None


def _line(part: Any, key: Any) -> int:
    return int(part.lc.key(key)[0]) + 1


def _plain(value: Any) -> Any:
    """Convert a YAML value, or a map of values, to plain data without file positions."""
    if isinstance(value, dict):
        return {str(key): each if isinstance(each, dict) else _plain(each) for key, each in value.items()}
    if isinstance(value, float):
        return float(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def cpu_percent(policy: Policy) -> int:
    """``YOOL_TUPLE_CPU_QUOTA_PCT``: the maximum for each step, in per cent of one processor. A tuple can only lower it."""
    return min(
        number_from_environment("YOOL_TUPLE_CPU_QUOTA_PCT", DEFAULT_CPU_PERCENT, 100), policy.cpu_quota_pct or 100
    )


def max_waiting(policy: Policy, wanted: int | None = None) -> int:
    """The maximum number of waiting tuples in a lane: ``wanted``, else ``YOOL_TUPLE_QUEUE_MAXSIZE``. Raises `TupleError` if
    that is not a number above 0."""
    most = wanted or max_waiting_from_environment()
    return min(most, policy.queue_maxsize or most)


def lane_concurrency(wanted: int | None, default: int = DEFAULT_CONCURRENCY, policy: Policy | None = None) -> int:
    """The number of a lane's tuples that a process runs at once: ``wanted``, else ``YOOL_TUPLE_LANE_CONCURRENCY``, else
    ``default``.

    At most ``YOOL_TUPLE_MAX_LANE_CONCURRENCY`` (or ``YOOL_MAX_LANE_CONCURRENCY``). Raises `TupleError` for more.
    """
    policy = policy or Policy()
    name = "YOOL_TUPLE_MAX_LANE_CONCURRENCY"
    if name not in os.environ and "YOOL_MAX_LANE_CONCURRENCY" in os.environ:
        name = "YOOL_MAX_LANE_CONCURRENCY"
    most = number_from_environment(name, DEFAULT_MAX_CONCURRENCY, 10_000)
    what = f"set {name} to allow more"
    if policy.max_lane_concurrency is not None and policy.max_lane_concurrency < most:
        most, what = policy.max_lane_concurrency, f"{POLICY} of the project says so"
    if wanted is None:
        usual = number_from_environment("YOOL_TUPLE_LANE_CONCURRENCY", default, 10_000)
        return min(most, usual, policy.lane_concurrency or usual)
    if wanted > most:
        raise TupleError(f"--concurrency is {wanted}, and at most {most} are allowed: {what}")
    return wanted


def needed_mb(policy: Policy) -> int:
    """``YOOL_TUPLE_FREE_MB``: a worker with less free space in MB claims nothing."""
    return max(number_from_environment("YOOL_TUPLE_FREE_MB", DEFAULT_FREE_MB, 10**9), policy.free_mb or 0)


def free_mb(folder: Path) -> float:
    """The free space in MB on the disk of this folder, or of its nearest existing parent."""
    while True:
        try:
            disk = os.statvfs(folder)
        except FileNotFoundError:
            folder = folder.parent
            continue
        return disk.f_bavail * disk.f_frsize / _MB


class DiskFloor:
    """Checks that a disk has some free space. ``notice`` gets a text when it has too little, and when it has enough again."""

    def __init__(self, folder: Path, least_mb: float, notice: Callable[[str], object] = lambda _: None) -> None:
        self.folder = folder
        self.least_mb = least_mb
        self.is_low = False
        self._notice = notice

    def look(self) -> bool:
        """Check the disk. Returns whether it has just become too full."""
        free, before = free_mb(self.folder), self.is_low
        self.is_low = free < self.least_mb
        if self.is_low and not before:
            self._notice(
                f"the disk with {self.folder} has {free:.0f} MB of free space, and {self.least_mb:g} MB must stay free "
                "(YOOL_TUPLE_FREE_MB): nothing new starts. Free some, for example with cantrip gc"
            )
        elif before and not self.is_low:
            self._notice(f"the disk with {self.folder} has {free:.0f} MB of free space again: the work goes on")
        return self.is_low and not before

    def call_for_help(self, worker: str) -> WorkTuple:
        """The tuple that tells the watchers of the lane `GC_LANE` that this machine needs space."""
        return new_tuple(
            GC_LANE,
            [{"yool": "fs.gc.run", "args": {"folder": str(self.folder), "free_mb": round(free_mb(self.folder))}}],
            map_pos={"worker": worker, "at": now_iso()},
        )
