"""Delegation as a command: words or JSON in, the answer out, a failure on standard error with status 1."""

from __future__ import annotations

import pytest

from tests.support.scripted_children import done, first_result, of_root, parent


def bash(text: str) -> dict[str, str]:
    return {"bash": text}


@pytest.mark.parametrize(
    "command",
    [
        "call_agent 'do it' --context data --max-depth 0",
        "call_agent do\\ it --context=data --max-depth 0",
        """echo '{"intent": "do it", "context": "data", "max_depth": 0}' | call_agent""",
        """call_agent - <<<'{"intent": "do it", "context": "data", "max_depth": 0}'""",
        """call_agent '{"intent": "do it", "context": "data", "max_depth": 0}'""",
        """call_agent --json '{"intent": "do it", "context": "data", "max_depth": 0}'""",
        """call_entity 'do it' --context data --max-depth 0""",
    ],
)
async def test_words_and_json(command: str) -> None:
    spell = parent(bash(f'x=$({command}); cantrip_done "<$x>"'), medium="bash", children=[[done("an answer")]])
    assert (await spell.cast("go")).result == "<an answer>"
    assert first_result(spell).args == {"intent": "do it", "context": "data", "max_depth": 0}


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("call_agent_batch one two", ["one", "two"]),
        ("""call_agent_batch '[{"intent": "one"}, "two"]'""", [{"intent": "one"}, "two"]),
        ("""echo '["one", {"intent": "two"}]' | call_agent_batch""", ["one", {"intent": "two"}]),
        ("""echo '{"requests": ["one", "two"]}' | call_agent_batch""", ["one", "two"]),
    ],
)
async def test_a_batch(command: str, args: list) -> None:
    spell = parent(bash(f'cantrip_done "$({command})"'), medium="bash", children=[[done(1)], [done("b")]])
    assert (await spell.cast("go")).result == '[1, "b"]'
    assert first_result(spell).args == {"requests": args}


async def test_a_failure_is_on_standard_error_with_status_1() -> None:
    spell = parent(
        bash(
            'echo before; call_agent fail 2>&1; echo "status $?"; echo \'{"intent": \' | call_agent; echo "status $?"'
        ),
        done(),
        medium="bash",
        children=[[{"error": {"status": 400, "message": "boom"}}]],
    )
    await spell.cast("go")
    shown = spell.crystal.invocations[1].messages[-1].content or ""
    assert "before\ncall_agent: the child failed: boom\nstatus 1\nstatus 2" in shown
    assert "call_agent: standard input: it begins like JSON but is not valid JSON" in shown
    assert [t.observation.output.stdout for t in of_root(spell)[:1] if t.observation.output] == ["before\n"]


async def test_a_childs_time_is_the_childs() -> None:
    spell = parent(
        bash("call_agent slow >/dev/null; cantrip_done 'in time'"),
        medium="bash",
        wards=[{"bash_timeout_ms": 1500}],
        children=[[{"delay_ms": 2500, "content": "at last"}]],
    )
    assert (await spell.cast("go")).result == "in time"


async def test_a_commands_own_time_still_ends_after_a_child() -> None:
    spell = parent(
        bash("call_agent quick; sleep 30"),
        done("gave up"),
        medium="bash",
        wards=[{"bash_timeout_ms": 1500}],
        children=[[done("quick")]],
    )
    assert (await spell.cast("go")).result == "gave up"
    assert "timed out after 1.5 seconds" in (spell.crystal.invocations[1].messages[-1].content or "")


async def test_data_is_a_file() -> None:
    look = 'cantrip_done "$(cat "$CANTRIP_CONTEXT")|$(test -w "$CANTRIP_CONTEXT" && echo writable)"'
    spell = parent(
        bash('cantrip_done "$(call_agent look --context "two words")"'), medium="bash", children=[[bash(look)]]
    )
    assert (await spell.cast("go")).result == "two words|"


async def test_at_depth_0_a_command_says_why_it_cannot_be() -> None:
    spell = parent(bash('e=$(call_agent x 2>&1); cantrip_done "$? $e"'), medium="bash", wards=[{"max_depth": 0}])
    said = (await spell.cast("go")).result
    assert said.startswith("1 call_agent: gate not available: 'call_agent'. max_depth is 0 here")
    assert "call_agent" not in (spell.circle.presentation or "")
