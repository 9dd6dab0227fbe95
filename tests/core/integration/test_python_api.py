"""The Python API in processes of its own: what it imports, keys, progress on a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import Any

import pytest
from pydantic import BaseModel

from cantrip_acp import Cantrip, MissingKey, ScriptedCrystal
from tests.support.processes import on_terminal, run


def test_what_a_script_does_not_use_is_not_imported() -> None:
    """A crystal by name and gates with plain types need no pydantic, no provider's SDK, no YAML and no terminal library."""
    script = (
        "import sys\nbefore = set(sys.modules)\nimport cantrip_acp\nassert 'anyio' not in sys.modules\n"
        "def add(a: int, b: int = 2) -> int:\n    'Add.'\n    return a + b\n"
        "cantrip_acp.Cantrip('ollama:qwen3', gates=[add], max_turns=10)\n"
        "heavy = {'pydantic', 'openai', 'anthropic', 'google', 'ruamel', 'rich', 'click', 'mcp', 'httpx'}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))\n"
    )
    # A new process: one that is forked has everything already.
    fresh = {**os.environ, "TESTS_EXECUTE_COMMANDS": "1"}
    ran = run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=fresh)
    assert ran.stdout.strip() == "[]"


def test_a_missing_key_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(key, raising=False)
    with pytest.raises(MissingKey, match="set ANTHROPIC_API_KEY"):
        Cantrip("anthropic:claude-sonnet-5-5", max_turns=3)


class Finding(BaseModel):
    file: str
    parts: list[Finding] = []


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("kind", "command"),
    [
        (Finding, """cantrip_done '{"file": "a"}'"""),
        (Finding, """echo '{"file": "a"}' | cantrip_done"""),
        (list[Finding], """cantrip_done '[{"file": "a"}]'"""),
        (list[Finding], """cantrip_done '{"file": "a"}'"""),
    ],
)
def test_a_command_in_the_shell_gives_an_answer_with_a_type(kind: Any, command: str) -> None:
    script = [{"bash": "cantrip_done nothing"}, {"bash": command}]
    cantrip = Cantrip(ScriptedCrystal(script), medium="bash", max_turns=2, result_type=kind)
    found = Finding(file="a")
    assert cantrip.cast_sync("Find it.").result == (found if kind is Finding else [found])


@pytest.mark.sandbox
def test_a_cell_gives_an_answer_with_a_type_after_a_wrong_one() -> None:
    script = [{"code": "found = {'file': 'a'}\ndone([found])"}, {"code": "done(found)"}]
    cantrip = Cantrip(ScriptedCrystal(script), medium="code", max_turns=2, result_type=Finding)
    assert cantrip.cast_sync("Find it.").result == Finding(file="a")


SCRIPT = """
from cantrip_acp import Cantrip, ScriptedCrystal
done = [{"tool_calls": [{"gate": "done", "args": {"answer": n}}]} for n in range(3)]
for item in Cantrip(ScriptedCrystal(done), max_turns=2).cast_batch(["a", "b", "c"], progress=True):
    print("read", flush=True)
"""


def shown_on_a_terminal(script: str) -> str:
    process, terminal = on_terminal([sys.executable, "-c", script])
    shown = b""
    with process, contextlib.suppress(OSError):
        # Linux reports the end of a terminal as an error.
        while piece := os.read(terminal, 65536):
            shown += piece
    os.close(terminal)
    assert process.returncode == 0
    return shown.decode()


def test_progress_is_for_a_terminal() -> None:
    ran = run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("read\n" * 3, "")
    shown = shown_on_a_terminal(SCRIPT)
    assert "[....................] 0/3 casts" in shown
    assert "[####################] 3/3 casts" in shown
    assert len(re.findall(r"\r +\rread\r\n", shown)) == 3, "the reader's words are on lines of their own"
    assert "casts" not in shown_on_a_terminal(SCRIPT.replace(", progress=True", ""))
