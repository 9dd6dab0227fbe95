"""A key that is not known fails its case with its path, wherever it stands; null in an expectation's place fails too."""

from __future__ import annotations

import pytest

from cantrip_acp.conformance.runner import run_case
from cantrip_acp.conformance.suite import read_suite

GOOD = """
- rule: A
  name: greet
  setup:
    crystal: { responses: [{ content: hi }] }
    circle: { gates: [done], wards: [{ max_turns: 5 }] }
  action: { cast: { intent: greet } }
  expect: { result: hi }
"""

UNKNOWN = [
    ("rule: A", "rule: A\n  bogus: 1", "bogus"),
    ("expect: {", "Expect: {}\n  expect: {", "Expect"),
    ("setup:\n", "setup:\n    circles: {}\n", "setup.circles"),
    ("setup:\n", "setup:\n    crystals: {}\n", "setup.crystals"),
    ("content: hi", "contents: hi", "setup.crystal.responses[0].contents"),
    ("content: hi", "content: hi, tool_calls: [{ gaet: done }]", "setup.crystal.responses[0].tool_calls[0].gaet"),
    ("content: hi", "content: hi, usage: { tokens: 3 }", "setup.crystal.responses[0].usage.tokens"),
    ("content: hi", "content: hi, error: { stauts: 3 }", "setup.crystal.responses[0].error.stauts"),
    ("responses: [", "record_input: true, responses: [", "setup.crystal.record_input"),
    ("responses: [", "children: [[{ contnet: hi }]], responses: [", "setup.crystal.children[0][0].contnet"),
    ("responses: [", "children: [{ response: [] }], responses: [", "setup.crystal.children[0].response"),
    ("gates: [done]", "gate: [done]", "setup.circle.gate"),
    ("gates: [done]", "gates: [{ name: done, paramters: {} }]", "setup.circle.gates[0].paramters"),
    ("max_turns: 5", "max_turns: 5, max_turn: 5", "setup.circle.wards[0].max_turn"),
    ("setup:\n", "setup:\n    call: { prompt: x }\n", "setup.call.prompt"),
    ("setup:\n", "setup:\n    retry: { max_retry: 3 }\n", "setup.retry.max_retry"),
    ("setup:\n", "setup:\n    folding: { after: 3 }\n", "setup.folding.after"),
    ("setup:\n", "setup:\n    child_crystal: { response: [] }\n", "setup.child_crystal.response"),
    ("intent: greet", "intnet: greet", "action.cast.intnet"),
    ("{ cast:", "{ casts:", "action.casts"),
    ("action: { cast: { intent: greet } }", "action: [{ cast: { intent: greet } }, { throw: 1 }]", "action[1].throw"),
    ("greet } }", "greet }, then: { delete: 0 } }", "action.then.delete"),
    ("greet } }", "greet }, then: [{ fork: { from: 1 } }] }", "action.then[0].fork.from"),
    ("greet } }", "greet }, then: { annotate_reward: { turns: 1 } } }", "action.then.annotate_reward.turns"),
    ("greet } }", "greet }, then: { mutate_call: { prompt: x } } }", "action.then.mutate_call.prompt"),
    ("result: hi", "reslut: hi", "expect.reslut"),
    ("result: hi", "result: hi, turn_0_observation: {}", "expect.turn_0_observation"),
    ("result: hi", "result: hi, turn_1_observation: { error: true }", "expect.turn_1_observation.error"),
    ("result: hi", "result: hi, thread_0: { turn: 1 }", "expect.thread_0.turn"),
    ("result: hi", "result: hi, thread_0: { last_turn: { done: true } }", "expect.thread_0.last_turn.done"),
    ("result: hi", "result: hi, crystal_invocations: [{ message: [] }]", "expect.crystal_invocations[0].message"),
    (
        "result: hi",
        "result: hi, crystal_invocations: [{ messages: [{ text: hi }] }]",
        "expect.crystal_invocations[0].messages[0].text",
    ),
    ("result: hi", "result: hi, crystal_received_tools: [{ names: done }]", "expect.crystal_received_tools[0].names"),
    ("result: hi", "result: hi, usage: { tokens: 1 }", "expect.usage.tokens"),
    ("result: hi", "result: hi, thread: [{ roles: entity }]", "expect.thread[0].roles"),
    ("result: hi", "result: hi, loom: { turn: [] }", "expect.loom.turn"),
    ("result: hi", "result: hi, loom: { turns: [{ parent: null }] }", "expect.loom.turns[0].parent"),
    (
        "result: hi",
        "result: hi, loom: { turns: [{ metadata: { tokens: 1 } }] }",
        "expect.loom.turns[0].metadata.tokens",
    ),
    (
        "result: hi",
        "result: hi, loom: { turns: [{ utterance: { words: null } }] }",
        "expect.loom.turns[0].utterance.words",
    ),
    ("result: hi", "result: hi, loom: { call: { prompt: null } }", "expect.loom.call.prompt"),
]


def changed(write, old: str, new: str):
    assert old in GOOD
    (case,) = read_suite(write(GOOD.replace(old, new, 1)))
    return case


async def test_the_case_itself_is_good(write) -> None:
    (case,) = read_suite(write(GOOD))
    assert (await run_case(case)).status == "passed"


@pytest.mark.parametrize(("old", "new", "path"), UNKNOWN, ids=[path for _, _, path in UNKNOWN])
async def test_unknown_key(write, old: str, new: str, path: str) -> None:
    outcome = await run_case(changed(write, old, new))
    assert outcome.status == "failed"
    (problem,) = [p for p in outcome.problems if p.path == path]
    assert problem.message.startswith("unknown key")


@pytest.mark.parametrize(
    "expectation",
    [
        "result_contains: null",
        "turns: null",
        "usage: null",
        "loom: null",
        "loom: { turns: null }",
        "thread: null",
        "thread_0: null",
        "turn_1_observation: null",
        "turn_1_observation: { content_contains: null }",
        "crystal_invocations: null",
        "crystal_invocations: [{ messages: null }]",
        "crystal_invocations: [{ messages_exclude: null }]",
        "crystal_received_tools: null",
        "gate_results: null",
        "results: null",
        "loom: { turns: [{ observation_contains: null }] }",
    ],
)
async def test_an_expectation_of_nothing_fails(write, expectation: str) -> None:
    outcome = await run_case(changed(write, "{ result: hi }", f"{{ {expectation} }}"))
    assert outcome.status == "failed"
    assert outcome.problems[0].path.startswith("expect.")


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        ("loom: 3", "must be a mapping, not 3"),
        ("usage: [1]", "a list has no meaning here"),
        ("turns: { a: 1 }", "a mapping has no meaning here"),
        ("thread: 2", "must be a mapping or a list, not 2"),
        ("results: hi", "must be a list, not 'hi'"),
    ],
)
async def test_a_shape_out_of_place_fails(write, expectation: str, message: str) -> None:
    outcome = await run_case(changed(write, "{ result: hi }", f"{{ {expectation} }}"))
    assert outcome.status == "failed"
    assert message in str(outcome.problems[0])


async def test_a_key_of_a_case_that_would_be_skipped_fails_all_the_same(write) -> None:
    outcome = await run_case(changed(write, "setup:\n", "setup:\n    folding: { trigger_after_turns: 1, bogus: 2 }\n"))
    assert outcome.status == "failed"


async def test_skip_is_never_a_pass(write) -> None:
    outcome = await run_case(changed(write, "rule: A", "rule: A\n  skip: true"))
    assert (outcome.status, outcome.reason) == ("skipped", "the suite says to skip it")


async def test_a_case_without_action_needs_rule_and_name(outcomes) -> None:
    named, nameless = await outcomes("- { rule: A, name: elsewhere, expect: { turns: 3 } }\n- { name: no rule }\n")
    assert named.status == "skipped"
    assert nameless.status == "failed"
