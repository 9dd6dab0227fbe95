"""Secrets are masked at doors: this names them, so that nobody masks in passing and nobody forgets a door."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "cantrip_acp"
MASKS = {"masked", "diagnostic", "text", "styled"}
FUNCTIONS = {"ShapeMask", "without_shapes"}
DOORS = {
    "acp/wire/send_queue.py": 1,
    "cli/render/terminal.py": 1,
    "core/casting/gate_executor.py": 1,
    "core/event_hub.py": 1,
    "crystals/provider_errors.py": 1,
    "gates/mcp/connection.py": 1,
    "loom/base.py": 1,
    "loom/view/html_export.py": 1,
    "mediums/program_events.py": 1,
    "substrate/substrate.py": 1,
    "telemetry/tracing.py": 1,
    "text/logs.py": 1,
    "text/storable.py": 1,
    "training/export/rows.py": 1,
    "tuplespace/mcp_edge/mcp_server.py": 1,
}
"""What masks, by file, and how often it does at most."""
FORMS = {"as_kept": 5, "storable": 10, "shown_error": 4}
"""How often other files make a value as a door leaves it, by the door's function: to compare it with records, to hash it, or
before it is divided."""


def test_masking_happens_at_the_doors() -> None:
    found: Counter[str] = Counter()
    for path, tree in modules():
        names = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "cantrip_acp.text.redaction"
            for alias in node.names
        }
        # A redactor in a variable is one, too.
        redactors = {"shared()", "Redactor()"} | {
            ast.unparse(target)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and ast.unparse(node.value) == "shared()"
            for target in node.targets
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in MASKS:
                masks = bool(names) and ast.unparse(node.value) in redactors
            else:
                masks = isinstance(node, ast.Call) and ast.unparse(node.func) in FUNCTIONS & names
            found[path] += masks
    unknown = {path: count for path, count in found.items() if count > DOORS.get(path, 0)}
    assert not unknown, f"these mask what a door masks already, or are doors without a name: {unknown}"
    assert +found == Counter(DOORS), "a door that is named here masks no more"


def test_few_ask_a_door_for_its_form() -> None:
    found: Counter[str] = Counter()
    for _, tree in modules():
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and str(node.module).endswith((".base", ".storable", ".terminal"))
            for alias in node.names
        }
        names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
        found.update(name for name in names if name in FORMS and name in imported)
    assert found == Counter(FORMS)


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in PACKAGE.rglob("*.py"):
        if path.name != "redaction.py":
            yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text())
