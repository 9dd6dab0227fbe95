"""The graph of a verifiers trace: which message of a model follows which, and what other programs wrote between them."""

from __future__ import annotations

from cantrip_acp.core.folding.summary import folded_through
from cantrip_acp.core.turn_renderer import NUDGE
from cantrip_acp.training.importing.json_lines import Report
from cantrip_acp.training.importing.verifiers_trace import Message, Trace

_LINKS = ("compaction", "continuation", "subagent_call", "subagent_return")


class TraceGraph:
    """The messages of a model in a trace, each with what stands before it. Nodes are named by their number.

    ``before``: for each message of a model, the one before it, their link, and the messages between them, in order.
    ``answers``: the result of each call in a message of a model, by the call's id.
    """

    def __init__(self, trace: Trace, report: Report) -> None:
        self._trace = trace
        self._report = report
        self.before = self._sampled_before()
        self.answers = self._answered()
        self._note_lost_parts()

    def _note_lost_parts(self) -> None:
        """Note the parts of the graph that become no turn."""
        note, nodes = self._report.note, self._trace.nodes
        read = {at for _, _, between in self.before.values() for at in between}
        called = {c.id: c.name for node in nodes if node.sampled for c in node.message.tool_calls or ()}
        for number, node in enumerate(nodes):
            message = node.message
            tool = message.role == "tool"
            if not node.sampled and number not in read and not (tool and message.tool_call_id in called):
                note(f"a message of the {message.role} that no model answered")
            elif tool and number in read and message.tool_call_id not in called and self._above(number)[0] is not None:
                note("an answer of a tool to a call that nobody made")
            # verifiers writes the name of the tool, which the call has too.
            if message.name is not None and not (tool and called.get(message.tool_call_id or "") == message.name):
                note("the name of who wrote a message")
            for part in message.content if isinstance(message.content, list) else ():
                kind = part.get("type", "text" if "text" in part else "image_url")
                if kind not in ("text", "image_url"):
                    note(f"a part of a message of the type {str(kind)[:40]!r}")
            if message.images and message.role != "user":
                note(f"an image in a message of the {message.role}")
            if node.logprobs and len(node.logprobs) != sum(node.mask):
                note("log-probabilities that are not those of the sampled tokens")
            for link in node.semantic_parents:
                if link.type not in _LINKS:
                    note(f"a link of the type {link.type[:40]!r}")
        for call in self._trace.calls:
            if call.node is None or call.node not in self.before:
                note("a call of a model that gave no message")
        if not self.before:
            note("a trace in which no model said anything")
            if any(r is not None for r in self._trace.rewards.values()):
                note("the reward of a trace in which no model said anything")
        for _ in self._trace.errors[:-1]:
            note("an error of a trace before its last")
        if self._trace.errors and (self._trace.ok or not self._trace.is_completed):
            note("an error of a trace that did not end with it")

    def _above(self, number: int) -> tuple[int | None, list[int]]:
        """The nearest sampled node above a node, and the nodes between them, from the lowest up."""
        between: list[int] = []
        at = self._trace.nodes[number].parent
        while at is not None and not self._trace.nodes[at].sampled:
            between.append(at)
            at = self._trace.nodes[at].parent
        return at, between

    def _sampled_before(self) -> dict[int, tuple[int | None, str, list[int]]]:
        found: dict[int, tuple[int | None, str, list[int]]] = {}
        for number, node in enumerate(self._trace.nodes):
            if not node.sampled:
                continue
            at, between = self._above(number)
            kind = "path"
            if at is None:
                links = {link.type: link.node for link in node.semantic_parents if link.node in found}
                for kind_ in ("compaction", "continuation", "subagent_call"):
                    if kind_ in links:
                        at, kind = links[kind_], kind_
                        break
            found[number] = (at, kind, between[::-1])
        return found

    def _answered(self) -> dict[int, dict[str, str]]:
        answers: dict[int, dict[str, str]] = {}

        def answer(said: int, message: Message) -> None:
            called = {c.id for c in self._trace.nodes[said].message.tool_calls or ()}
            if message.tool_call_id in called and message.tool_call_id is not None:
                known = answers.setdefault(said, {})
                if known.setdefault(message.tool_call_id, message.text) != message.text:
                    self._report.note("answers to one call that differ between branches; the first is kept")

        for before, kind, between in self.before.values():
            if before is not None and kind != "subagent_call":
                for at in between:
                    if self._trace.nodes[at].message.role == "tool":
                        answer(before, self._trace.nodes[at].message)
        for number, node in enumerate(self._trace.nodes):
            if node.message.role == "tool" and (said := self._above(number)[0]) is not None:
                answer(said, node.message)
        return answers

    def intent_at(self, between: list[int]) -> int | None:
        """The index of a new intent among the messages before an utterance; None where the cast continues."""
        for place in range(len(between) - 1, self.new_from(between) - 1, -1):
            message = self._trace.nodes[between[place]].message
            if message.role == "user" and message.text != NUDGE:
                # Another program's summary is also a user message; it cannot be told from a new intent.
                return place
        return None

    def new_from(self, between: list[int]) -> int:
        """The index of the first message after a fold that did not exist before the fold."""
        for place in range(len(between) - 1, -1, -1):
            message = self._trace.nodes[between[place]].message
            if message.role in ("assistant", "tool") or folded_through(message.text) is not None:
                return place + 1
        return 0

    def is_childs(self, number: int | None) -> bool:
        while number is not None:
            before, kind, _ = self.before[number]
            if kind == "subagent_call":
                return True
            number = before
        return False
