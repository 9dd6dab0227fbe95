"""Fan-outs: a description of many equal tuples, of which only those that are visited exist.

`batch_spawn` describes them. In a program, `FanOut.work` makes the tuple of any leaf, and `FanOut.visit` a leaf with notes of
its own, which is kept small while nobody uses it. In a tuple-space, `FanOut.first` is one tuple that stands for all: the
worker that takes it puts the first leaves and one more tuple for the rest (`spawn`), so that a lane never holds more of them
than one level has.
"""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from cantrip_acp.text.codecs import convert
from cantrip_acp.tuplespace.canonical_json import canonical_json
from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.tuples import WorkTuple, new_tuple
from cantrip_acp.tuplespace.workers.guardrails import number_from_environment
from cantrip_acp.tuplespace.workers.worker import StepCall, StepResult

SPAWN = "tuple.spawn"
DEFAULT_COMPRESSION_THRESHOLD = 1024
MOST_BRANCHES = 1000
MOST_LEAVES = 10**12


class Leaf:
    """A visited leaf: its index, its path from the root, its tuple, and notes (JSON data) of the visitor."""

    __slots__ = ("fan_out", "index", "notes")

    def __init__(self, fan_out: FanOut, index: int, notes: dict[str, Any]) -> None:
        self.fan_out = fan_out
        self.index = index
        self.notes = notes

    @property
    def path(self) -> tuple[int, ...]:
        return self.fan_out.path(self.index)

    @property
    def work(self) -> WorkTuple:
        return self.fan_out.work(self.index)


class FanOut:
    """``branching`` to the power of ``depth`` tuples with the same steps. The path of each is in its ``map_pos``.

    At most ``compression_threshold`` visited leaves are live at once. The others are tokens (`compress_token`), or nothing if
    they have no notes.
    """

    def __init__(
        self,
        lane: str,
        payload: Sequence[Mapping[str, Any]],
        depth: int,
        branching: int,
        *,
        compression_threshold: int | None = None,
        map_pos: Mapping[str, Any] | None = None,
        agent_terms: Mapping[str, Any] | None = None,
        authority: Mapping[str, Any] | None = None,
        src_ptr: Sequence[str] = (),
        flags: Mapping[str, Any] | None = None,
    ) -> None:
        if depth < 1 or not 1 <= branching <= MOST_BRANCHES or branching**depth > MOST_LEAVES:
            raise TupleError(
                f"a fan-out has a depth of 1 or more, 1 to {MOST_BRANCHES} branches and at most {MOST_LEAVES:,} leaves, "
                f"not depth {depth} and {branching} branches"
            )
        self.lane = lane
        self.payload = [dict(step) for step in payload]
        self.depth = depth
        self.branching = branching
        self.map_pos = dict(map_pos or {})
        self.agent_terms = dict(agent_terms or {})
        self._further: dict[str, Any] = {
            **({"authority": dict(authority)} if authority else {}),
            **({"src_ptr": list(src_ptr)} if src_ptr else {}),
            **({"flags": dict(flags)} if flags is not None else {}),
        }
        self.compression_threshold = compression_threshold or number_from_environment(
            "YOOL_TUPLE_COMPRESSION_THRESHOLD", DEFAULT_COMPRESSION_THRESHOLD, 10**9
        )
        self._live: OrderedDict[int, Leaf] = OrderedDict()
        self._tokens: dict[int, bytes] = {}
        self.work(0)

    def __len__(self) -> int:
        return int(self.branching**self.depth)

    def __iter__(self) -> Iterator[WorkTuple]:
        """Yield the tuples in order, without keeping any."""
        return map(self.work, range(len(self)))

    def path(self, index: int) -> tuple[int, ...]:
        """The branch at each level, from the root to a leaf. Raises IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(
                f"leaf {index} does not exist: the fan-out has {len(self):,} leaves, 0 to {len(self) - 1:,}"
            )
        digits = []
        for _ in range(self.depth):
            index, digit = divmod(index, self.branching)
            digits.append(digit)
        return tuple(reversed(digits))

    def work(self, index: int) -> WorkTuple:
        """The tuple of a leaf. The same leaf has the same id each time."""
        return new_tuple(
            self.lane,
            self.payload,
            map_pos={**self.map_pos, "path": list(self.path(index))},
            agent_terms=self.agent_terms,
            **self._further,
        )

    def visit(self, index: int) -> Leaf:
        """A leaf with its notes. It stays live while it is among the last visited ones."""
        leaf = self._live.get(index)
        if leaf is None:
            self.path(index)
            token = self._tokens.pop(index, None)
            leaf = self._live[index] = Leaf(self, index, expand_token(token) if token is not None else {})
        self._live.move_to_end(index)
        if len(self._live) > self.compression_threshold:
            self.prune_idle(keep=self.compression_threshold // 2)
        return leaf

    def prune_idle(self, keep: int = 0) -> int:
        """Reduce all leaves but the last ``keep`` visited ones to their notes. Returns their number."""
        count = max(0, len(self._live) - keep)
        for _ in range(count):
            index, leaf = self._live.popitem(last=False)
            if leaf.notes:
                self._tokens[index] = compress_token(leaf.notes)
        return count

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of all leaves, of live ones and of tokens."""
        return {"leaves": len(self), "live": len(self._live), "tokens": len(self._tokens)}

    def visited(self) -> Iterator[Leaf]:
        """Yield the leaves with notes, in order, without making them live."""
        for index in sorted(self._tokens.keys() | {i for i, leaf in self._live.items() if leaf.notes}):
            yield self._live.get(index) or Leaf(self, index, expand_token(self._tokens[index]))

    def first(self, start: int = 0) -> WorkTuple:
        """One tuple that stands for all leaves from ``start`` on. A worker with the yool `spawn` puts them, a level at a time."""
        definition = {
            "payload": self.payload,
            "depth": self.depth,
            "branching": self.branching,
            "map_pos": self.map_pos,
            "agent_terms": self.agent_terms,
            **self._further,
        }
        step = {"yool": SPAWN, "args": {"fan_out": definition, "lane": self.lane, "start": start}}
        # Earlier versions refuse unknown fields, so they do not take a tuple with flags.
        more = {"flags": {}, **self._further} if self._further else {}
        return new_tuple(self.lane, [step], map_pos={**self.map_pos, "leaves_from": start}, **more)


def batch_spawn(
    lane: str,
    payload: Sequence[Mapping[str, Any]],
    depth: int,
    branching: int,
    compression_threshold: int | None = None,
    **more: Any,
) -> FanOut:
    """Describe a fan-out. Takes no memory for its leaves. Raises `TupleError`."""
    return FanOut(lane, payload, depth, branching, compression_threshold=compression_threshold, **more)


def compress_token(notes: Mapping[str, Any]) -> bytes:
    """Compress notes. Raises `TupleError` if they are not JSON data."""
    plain = canonical_json(dict(notes))
    small = zlib.compress(plain, 9)
    return b"z" + small if len(small) < len(plain) else b"j" + plain


def expand_token(token: bytes) -> dict[str, Any]:
    """Return the notes from which `compress_token` made ``token``."""
    body = token[1:]
    notes: dict[str, Any] = json.loads(zlib.decompress(body) if token[:1] == b"z" else body)
    return notes


class _Definition(msgspec.Struct, forbid_unknown_fields=True):
    payload: list[dict[str, Any]]
    depth: int
    branching: int
    map_pos: dict[str, Any] = {}
    agent_terms: dict[str, Any] = {}
    authority: dict[str, Any] = {}
    src_ptr: list[str] = []
    flags: dict[str, Any] | None = None


async def spawn(call: StepCall) -> StepResult:
    """The yool `SPAWN`: ends its tuple with the next leaves, and with a tuple for the leaves after them."""
    lane, start = call.args.get("lane"), call.args.get("start", 0)
    if lane != call.lane or not isinstance(start, int):
        return StepResult(exit=64, error="a fan-out puts its tuples into its own lane, from the number `start` on")
    try:
        given = convert(call.args.get("fan_out"), _Definition)
        fan_out = FanOut(lane, **msgspec.structs.asdict(given))
        end = min(len(fan_out), start + fan_out.branching)
        children = [fan_out.work(index) for index in range(start, end)]
    except (msgspec.ValidationError, TupleError, IndexError) as error:
        return StepResult(exit=64, error=f"the fan-out is not valid: {error}")
    rest = [fan_out.first(end)] if end < len(fan_out) else []
    return StepResult(result={"put": len(children), "left": len(fan_out) - end}, children=[*children, *rest])
