"""Request graph: how the model requests of a tree of entities follow from each other.

A trainer between this package and a model sees single requests. It cannot tell which request continues a
conversation, which starts a child's conversation, and which contains a child's answer. `RequestGraph` records this as
edges between request ids (`Query.request_id`). Each entity has one; all entities of a tree write into one list.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cantrip_acp.types.records import new_id

EdgeType = Literal["continuation", "compaction_attempt", "compaction", "subagent_call", "subagent_return"]


class Edge(msgspec.Struct, frozen=True):
    """One request led to another.

    continuation: the same conversation, longer. compaction: the same conversation, with a summary of its earlier
    part; if a model wrote the summary, its request is in between (compaction_attempt leads to it). subagent_call:
    from the request whose answer asked for a child to the child's first request. subagent_return: from a child's last
    request to the request that contains its answer.
    """

    source_request_id: str
    target_request_id: str
    type: EdgeType


class RequestGraph:
    """The requests of one entity. Only answered requests are recorded.

    ``named``: whether each query has an id of its own, which providers send as a header (`Query.request_id`).
    """

    __slots__ = ("_causes", "_edges", "_last", "_type", "named")

    def __init__(self, parent: RequestGraph | None = None) -> None:
        self.named: bool = parent is not None and parent.named
        self._edges: list[Edge] = [] if parent is None else parent._edges
        self._last = ""
        self._type: EdgeType = "continuation"
        self._causes: list[tuple[str, EdgeType]] = []

    def next_id(self) -> str:
        """The id of a new request; empty if they have none."""
        return new_id("q") if self.named else ""

    def answered(self, request_id: str) -> None:
        """Record that a request was answered. An empty id is ignored."""
        if not request_id:
            return
        if self._last:
            self._edges.append(Edge(self._last, request_id, self._type))
        for source, kind in self._causes:
            self._edges.append(Edge(source, request_id, kind))
        self._last, self._type, self._causes = request_id, "continuation", []

    def folded(self, request_id: str = "") -> None:
        """Record that a summary replaced earlier turns.

        ``request_id`` is the request that a model answered with the summary.
        """
        if self._last and request_id:
            self._edges.append(Edge(self._last, request_id, "compaction_attempt"))
            self._last = request_id
        self._type = "compaction"

    def called(self, parent: RequestGraph) -> None:
        """Record the start of a cast that the parent's last answer asked for."""
        if parent._last:
            self._causes.append((parent._last, "subagent_call"))

    def returned(self, parent: RequestGraph) -> None:
        """Record the end of the cast that `called` recorded. The parent's next request contains its answer."""
        cause: tuple[str, EdgeType] = (self._last, "subagent_return")
        if self._last and cause not in parent._causes:
            parent._causes.append(cause)

    def drain(self) -> list[Edge]:
        """Remove and return the edges of the whole tree since the last call."""
        edges = self._edges.copy()
        self._edges.clear()
        return edges
