"""Structs are made of data by `cantrip_acp.text.codecs` alone: msgspec's first look at one is not fit for several threads."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "cantrip_acp"
EXEMPT = {
    "text/codecs.py",
    # Runs in the sandbox too, where it must load little; its shapes are its own and are met once, at import.
    "sandbox/worker/messages.py",
}


def direct(tree: ast.AST) -> Iterator[int]:
    """The lines that make a Struct of data by msgspec itself."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        typed = any(keyword.arg == "type" for keyword in node.keywords)
        if name == "msgspec.convert" or (name.startswith("msgspec.") and name.endswith(".Decoder") and node.args):
            yield node.lineno
        elif typed and name.startswith("msgspec.") and name.endswith((".decode", ".Decoder")):
            yield node.lineno


def test_nobody_asks_msgspec_itself() -> None:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name not in EXEMPT and (lines := list(direct(ast.parse(path.read_text())))):
            found[name] = lines
    assert found == {}
    assert list(direct(ast.parse("msgspec.convert(x, Y)\nmsgspec.json.decode(x, type=Y)\nmsgspec.json.decode(x)"))) == [
        1,
        2,
    ]


RACE = """
import sys, threading, types
import msgspec
from cantrip_acp.text import codecs

sys.setswitchinterval(1e-6)
SOURCE = '''
from __future__ import annotations
import msgspec
class Inner(msgspec.Struct):
    a: float = 0
    b: dict[str, float] | None = None
class Outer(msgspec.Struct):
    x: int = 0
    inner: Inner | None = None
    more: tuple[Inner, ...] = ()
'''
convert = {"codecs": codecs.convert, "msgspec": msgspec.convert}[sys.argv[1]]
for number in range(int(sys.argv[2])):
    module = sys.modules[f"made{number}"] = types.ModuleType(f"made{number}")
    exec(SOURCE, module.__dict__)
    begin = threading.Barrier(4)
    def go():
        begin.wait()
        assert convert({"x": 1, "inner": {"a": 1.0}}, module.Outer).inner.a == 1.0
    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print("whole")
"""


@pytest.mark.timeout(400)
def test_threads_that_meet_a_struct_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", RACE, "codecs", "100"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr
