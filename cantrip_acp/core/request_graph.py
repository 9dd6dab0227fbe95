"""How the model requests of a tree of entities follow from each other, for a trainer that saw each of them by itself.

A harness between us and a model sees requests one by one. Which of them go on with which conversation, which began a child's
and which took its answer up, only the tree knows. `Lineage` keeps that as edges between request ids
(`Query.request_id`): an entity has one, and all of a tree write into one list.
"""

from __future__ import annotations

from typing import Literal

import msgspec

EdgeType = Literal["continuation", "compaction_attempt", "compaction", "subagent_call", "subagent_return"]


class Edge(msgspec.Struct, frozen=True):
    """One request led to another.

    continuation: the same conversation, longer. compaction: the same one, with a summary for what was before; where a model
    wrote the summary, its request stands between (compaction_attempt leads to it). subagent_call: the request whose answer
    asked for a child, and the child's first. subagent_return: a child's last request, and the one that was told its answer.
    """

    source_request_id: str
    target_request_id: str
    type: EdgeType


class Lineage:
    """One entity's requests. Only those that were answered count: of others, nobody kept anything."""

    __slots__ = ("_causes", "_edges", "_last", "_type")

    def __init__(self, parent: Lineage | None = None) -> None:
        self._edges: list[Edge] = [] if parent is None else parent._edges
        self._last = ""
        self._type: EdgeType = "continuation"
        self._causes: list[tuple[str, EdgeType]] = []

    def answered(self, request_id: str) -> None:
        """A request was answered; an empty id is none."""
        if not request_id:
            return
        if self._last:
            self._edges.append(Edge(self._last, request_id, self._type))
        for source, kind in self._causes:
            self._edges.append(Edge(source, request_id, kind))
        self._last, self._type, self._causes = request_id, "continuation", []

    def folded(self, request_id: str = "") -> None:
        """What was before went into a summary; ``request_id`` is the one that a model answered with it."""
        if self._last and request_id:
            self._edges.append(Edge(self._last, request_id, "compaction_attempt"))
            self._last = request_id
        self._type = "compaction"

    def called(self, parent: Lineage) -> None:
        """A cast begins that an entity's last answer asked for."""
        if parent._last:
            self._causes.append((parent._last, "subagent_call"))

    def returned(self, parent: Lineage) -> None:
        """It has ended, and that entity's next request tells of it."""
        cause: tuple[str, EdgeType] = (self._last, "subagent_return")
        if self._last and cause not in parent._causes:
            parent._causes.append(cause)

    def take(self) -> list[Edge]:
        """The edges of the whole tree since the last time."""
        edges = self._edges.copy()
        self._edges.clear()
        return edges
