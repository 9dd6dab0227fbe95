"""Secrets are masked at doors: this names them, so that nobody masks in passing and nobody forgets a door."""

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "cantrip_acp"
MASKS = {"masked", "diagnostic", "text", "styled"}
FUNCTIONS = {"as_recorded", "ShapeMask"}
DOORS = {
    "acp/permissions/interceptor.py": 1,
    "acp/sessions/title.py": 1,
    "acp/wire/jsonrpc.py": 1,
    "acp/wire/send_queue.py": 1,
    "cli/errors.py": 1,
    "cli/render/terminal.py": 1,
    "core/casting/gate_executor.py": 2,
    "core/casting/inbox.py": 1,
    "core/casting/query_digest.py": 1,
    "core/entity.py": 1,
    "core/event_hub.py": 1,
    "core/forking/earlier_casts.py": 1,
    "crystals/provider_errors.py": 1,
    "evaluation/report.py": 1,
    "evaluation/run.py": 1,
    "gates/mcp/connection.py": 1,
    "loom/base.py": 2,
    "loom/view/html_export.py": 1,
    "mediums/program_events.py": 1,
    "recipes/inspect.py": 1,
    "substrate/substrate.py": 1,
    "telemetry/tracing.py": 2,
    "text/logs.py": 1,
    "training/export/rows.py": 1,
    "training/importing/importer.py": 2,
    "tuplespace/yools/cast_yool.py": 1,
    "tuplespace/yools/command_yool.py": 1,
    "tuplespace/mcp_edge/mcp_server.py": 1,
    "tuplespace/receipts.py": 2,
    "tuplespace/retention.py": 1,
    "tuplespace/yools/step.py": 1,
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
                masks = isinstance(node, ast.Call) and ast.unparse(node.func) in FUNCTIONS & names
            if masks:
                found[str(path.relative_to(PACKAGE))] += 1
    unknown = {path: count for path, count in found.items() if count > DOORS.get(path, 0)}
    assert not unknown, f"these mask what a door masks already, or are doors without a name: {unknown}"
