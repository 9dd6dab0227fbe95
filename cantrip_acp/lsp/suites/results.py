"""Open suites: diagnostics while the user types, and results of cases that were run."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cantrip_acp.lsp.commands.worker_thread import Aside
from cantrip_acp.lsp.suites import document, schema_lookup
from cantrip_acp.lsp.suites.document import Cases, Finding
from cantrip_acp.text.sanitize import clean_line

if TYPE_CHECKING:
    from cantrip_acp.conformance.case import Case
    from cantrip_acp.conformance.runner import Outcome
    from cantrip_acp.lsp.server.documents import Held
    from cantrip_acp.lsp.server.server import Server

SOON_S = 0.05
Name = tuple[str, str]
"""A case's rule and name."""


class Suites:
    """One server's suites, by document URI."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._cases: dict[str, Cases] = {}
        self._reading: dict[str, asyncio.Task[Any]] = {}
        self._outcomes: dict[str, dict[Name, Outcome]] = {}

    def changed(self, held: Held, after: float = SOON_S) -> None:
        """A text was opened or changed: read it after ``after`` seconds without another change."""
        held.drop()
        held.waiting = asyncio.get_running_loop().call_later(after, lambda: self._server.keep(self._read(held)))

    def closed(self, held: Held) -> None:
        """The document was closed: drop its results and clear its diagnostics."""
        self._cases.pop(held.uri, None)
        self._outcomes.pop(held.uri, None)
        self._server.protocol.tell("textDocument/publishDiagnostics", {"uri": held.uri, "diagnostics": []})

    def outcomes(self, held: Held) -> dict[Name, str]:
        """A mark for each case that was run."""
        marks = {"passed": "✓ passed", "failed": "✗ failed", "skipped": "skipped"}
        return {name: marks[outcome.status] for name, outcome in self._outcomes.get(held.uri, {}).items()}

    async def _read(self, held: Held) -> None:
        before = self._reading.get(held.uri)
        if before is not None and not before.done():
            # One reading at a time, because it reuses pieces of the last one.
            with contextlib.suppress(Exception):
                await asyncio.shield(before)
        task = self._reading[held.uri] = self._server.beside(self._published(held))
        await task

    async def _published(self, held: Held) -> None:
        text, version, root = held.text, held.version, held.tree
        cases = self._cases.setdefault(held.uri, Cases())
        read, found = await asyncio.to_thread(document.findings, text, held.path, root, cases)
        if held.text is not text or self._server.documents.held.get(held.uri) is not held:
            return
        found = found + self._failures(held, read)
        told = [document.diagnostic(text, each, lambda span: _range(held, span)) for each in found]
        about: dict[str, Any] = {"uri": held.uri, "diagnostics": told}
        if version is not None:
            about["version"] = version
        self._server.protocol.tell("textDocument/publishDiagnostics", about)

    def _failures(self, held: Held, cases: list[Case]) -> list[Finding]:
        """Diagnostics of failed cases, as long as the cases have not changed since they were run."""
        known = self._outcomes.get(held.uri, {})
        out = []
        for case in cases:
            outcome = known.get((case.rule, case.name))
            if outcome is None or outcome.status != "failed" or outcome.case.data != case.data or case.problems():
                continue
            node = document.node_of(held.text, held.tree, case)
            for problem in outcome.problems:
                span = document.place(held.text, case, node, problem.path)
                rule = case.rule if case.rule in schema_lookup.rules() else "failed-case"
                out.append(Finding(span, rule, clean_line(f"failed: {problem}", 1_000)))
        return out

    async def run(
        self, held: Held, chosen: Callable[[Case], bool], say: Callable[[str], None], on_cancel: Callable[..., None]
    ) -> dict[str, Any]:
        """Run cases one after the other in a thread of their own; return their results."""
        cases = await asyncio.to_thread(self._cases.setdefault(held.uri, Cases()).read, held.path, held.text.source)
        wanted = [case for case in cases if chosen(case)]
        loop = asyncio.get_running_loop()
        outcomes: list[Outcome] = []

        async def every() -> None:
            from cantrip_acp.conformance.runner import run_case

            for number, case in enumerate(wanted, 1):
                loop.call_soon_threadsafe(
                    say, f"{number:,} of {len(wanted):,}: {case.rule} {clean_line(case.name, 80)}"
                )
                outcomes.append(await run_case(case))

        running = Aside(every, "conformance")
        on_cancel(running.cancel)
        try:
            await running.wait()
        except asyncio.CancelledError:
            if not running.cancelled:
                running.cancel()
                raise
        self._outcomes.setdefault(held.uri, {}).update({(o.case.rule, o.case.name): o for o in outcomes})
        await self._read(held)
        self._server.lenses_changed()
        counts = Counter(outcome.status for outcome in outcomes)
        say(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
        return {
            **{status: counts[status] for status in ("passed", "failed", "skipped")},
            "cancelled": running.cancelled,
            "cases": [_record(outcome) for outcome in outcomes],
        }


def _record(outcome: Outcome) -> dict[str, Any]:
    case = outcome.case
    return {
        "line": case.line,
        "rule": case.rule,
        "name": case.name,
        "status": outcome.status,
        "problems": [{"path": problem.path, "message": problem.message} for problem in outcome.problems],
        "reason": outcome.reason or None,
        "duration_ms": round(outcome.duration_ms, 3),
    }


def _range(held: Held, span: tuple[int, int]) -> dict[str, Any]:
    found = held.text.range(*span)
    return {
        "start": {"line": found.start.line, "character": found.start.character},
        "end": {"line": found.end.line, "character": found.end.character},
    }
