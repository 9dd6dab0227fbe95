"""What happens to tuples, as events: claimed, each step, put back for another attempt, and the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cantrip_acp.tuplespace.stores.base import BATCH_LANE
from cantrip_acp.tuplespace.tuples import Pattern

if TYPE_CHECKING:
    from cantrip_acp.tuplespace.stores.base import StoredReceipt, StoredTuple
    from cantrip_acp.tuplespace.stores.sql import TupleStore

FINAL = ("done", "failed", "taken")


class Story:
    """The events of one tuple. `told` returns those since its last call, including those that happened between two looks,
    except attempts that nobody saw."""

    def __init__(self) -> None:
        self._seen: tuple[str, int, str | None] | None = None
        self._claimed = False
        self._receipts: set[str] = set()

    @property
    def has_ended(self) -> bool:
        return self._seen is not None and self._seen[0] in FINAL

    def told(self, stored: StoredTuple, receipts: Sequence[StoredReceipt]) -> list[dict[str, Any]]:
        """Return the new events. Read the tuple first, then its receipts: once it has ended, they are complete."""
        about = {"tuple_id": stored.work.id, "lane": stored.work.lane}
        before, now = self._seen, (stored.state, stored.attempts, stored.worker)
        events: list[dict[str, Any]] = []
        last = next((each.document for each in receipts if each.step is None), None)
        ran = stored.state == "claimed" or (last is not None and stored.worker is not None)
        if ran and (not self._claimed or (stored.state == "claimed" and before != now)):
            self._claimed = True
            events.append({"event": "claimed", **about, "attempt": stored.attempts, "worker": stored.worker})
        for each in receipts:
            receipt = each.document
            step = each.step if each.step is not None or receipt["yool"] == "tuple.end" else 0
            if step is None or receipt["id"] in self._receipts:
                continue
            self._receipts.add(receipt["id"])
            state = "failed" if receipt["exit"] else "reused" if "reused" in receipt else "done"
            events.append(
                {
                    "event": "step",
                    **about,
                    "step": step,
                    "yool": receipt["yool"],
                    "state": state,
                    "exit": receipt["exit"],
                }
                | {"receipt_id": receipt["id"], "cost": receipt["cost"]}
                | {key: receipt[key] for key in ("reused", "error") if key in receipt}
            )
        if before is None or before[0] != stored.state:
            if stored.state in FINAL:
                end = {} if last is None else {"receipt_id": last["id"], "cost": last["cost"]}
                events.append(
                    {"event": stored.state, **about, **end, **({"error": stored.error} if stored.error else {})}
                )
            elif stored.state == "waiting":
                self._claimed = False
                events.append({"event": "waiting", **about, **({"reason": stored.error} if stored.error else {})})
        self._seen = now
        return events


class Watch:
    """Tuples of a store: those with some ids, or those that match a pattern and have not ended when the watch begins."""

    def __init__(self, store: TupleStore, *, ids: Sequence[str] = (), pattern: Pattern | None = None) -> None:
        self._store = store
        self._pattern = pattern
        self._cursor = ""
        self._stories: dict[str, Story] = {each: Story() for each in ids}
        self._is_first = True

    @property
    def is_over(self) -> bool:
        """Whether no more events can come."""
        return self._pattern is None and all(each.has_ended for each in self._stories.values())

    def look(self) -> Iterator[dict[str, Any]]:
        """Return the new events. Blocks. Raises KeyError for an id that the store does not know."""
        while self._pattern is not None:
            found, cursor = self._store.after(self._cursor, self._pattern)
            for each in found:
                if not (self._is_first and each.state in FINAL) and each.work.lane != BATCH_LANE:
                    self._stories.setdefault(each.work.id, Story())
            if cursor == self._cursor:
                break
            self._cursor = cursor
        self._is_first = False
        for identity, story in list(self._stories.items()):
            if story.has_ended:
                if self._pattern is not None:
                    del self._stories[identity]
                continue
            stored = self._store.get(identity)
            if stored is None:
                raise KeyError(identity)
            yield from story.told(stored, self._store.receipts(identity))


def sentence(event: dict[str, Any]) -> str:
    """Describe an event for people, without its tuple."""
    match event["event"]:
        case "claimed":
            again = f", attempt {event['attempt']}" if event["attempt"] > 1 else ""
            return f"claimed by {event['worker']}{again}"
        case "step":
            why = f": {event['error']}" if "error" in event else ""
            return f"step {event['step'] + 1} ({event['yool']}) {event['state']}{why}"
        case "waiting":
            return "waits" + (f": {event['reason']}" if "reason" in event else "")
        case name:
            return f"{name}: {event['error']}" if "error" in event else str(name)
