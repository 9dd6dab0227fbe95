"""Secrets are masked at doors: this names them, so that nobody masks in passing and nobody forgets a door."""

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "cantrip_acp"
MASKS = {"masked", "diagnostic", "text", "styled"}
FUNCTIONS = {"as_recorded", "beginning", "ShapeMask"}
DOORS = {
    "acp/permissions/interceptor.py": 1,
    "acp/sessions/session.py": 1,
    "acp/sessions/title.py": 2,
    "acp/wire/jsonrpc.py": 1,
    "acp/wire/send_queue.py": 2,
    "cli/commands/recipe.py": 1,
    "cli/errors.py": 2,
    "cli/json_errors.py": 1,
    "cli/render/terminal.py": 3,
    "core/casting/inbox.py": 3,
    "core/casting/query_digest.py": 1,
    "core/casting/query_stream.py": 3,
    "core/entity.py": 1,
    "core/event_hub.py": 1,
    "core/forking/earlier_casts.py": 1,
    "core/scoring.py": 1,
    "crystals/provider_errors.py": 1,
    "evaluation/report.py": 1,
    "evaluation/run.py": 2,
    "core/casting/gate_executor.py": 2,
    "gates/mcp/connection.py": 2,
    "loom/base.py": 2,
    "loom/view/html_export.py": 1,
    "mediums/program_events.py": 2,
    "recipes/inspect.py": 1,
    "substrate/chunks.py": 1,
    "substrate/writing.py": 1,
    "telemetry/genai_spans.py": 1,
    "telemetry/tracing.py": 2,
    "text/logs.py": 1,
    "training/export/rows.py": 6,
    "training/importing/importer.py": 2,
    "tuplespace/alarms.py": 1,
    "tuplespace/cast_yool.py": 1,
    "tuplespace/command_yool.py": 1,
    "tuplespace/mcp_edge/mcp_server.py": 1,
    "tuplespace/monitoring/report.py": 1,
    "tuplespace/receipts.py": 2,
    "tuplespace/step.py": 1,
    "tuplespace/tuples.py": 1,
}
"""What masks, by file, and how often it does at most."""


def test_masking_happens_at_the_doors() -> None:
    found: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        if path.name == "redaction.py":
            continue
        tree = ast.parse(path.read_text())
        names = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "cantrip_acp.text.redaction"
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in MASKS:
                of = ast.unparse(node.value)
                masks = (of == "shared()" and "shared" in names) or of == "self._redactor"
            else:
                masks = isinstance(node, ast.Name) and node.id in FUNCTIONS & names
            if masks:
                found[str(path.relative_to(PACKAGE))] += 1
    unknown = {path: count for path, count in found.items() if count > DOORS.get(path, 0)}
    assert not unknown, f"these mask what a door masks already, or are doors without a name: {unknown}"
