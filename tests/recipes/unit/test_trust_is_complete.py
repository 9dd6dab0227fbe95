"""Each gate and each ward is decided: does the trust question name it, or can it do nothing that a user must agree to?"""

from cantrip_acp.gates import registry
from cantrip_acp.gates.wards import WARDS
from cantrip_acp.recipes import trust

HARMLESS_GATES = {
    "ask_user": "a question",
    "call_agent_batch": "as call_agent, which is named",
    "done": "an end",
    "echo": "its own text",
    "git_diff": "reads the workspace, without what is hidden",
    "git_log": "as git_diff",
    "git_show": "as git_diff",
    "git_status": "as git_diff",
    "output": "reads what the entity's own services printed",
    "plan": "a list that is shown",
    "stop": "ends the entity's own services",
}
"""Gates that an untrusted recipe may have, without a word in the question, and what they do at most."""
ONLY_NARROWS = {
    "bash_max_output_bytes", "bash_submit", "bash_timeout_ms", "child_gate_allowlist", "child_gate_denylist",
    "child_max_depth_ceiling", "child_max_turns_ceiling", "child_medium_allowlist", "code_max_output_bytes", "code_memory_mb",
    "code_timeout_ms", "hidden_paths", "max_children_total", "max_concurrent_children", "max_cost_usd", "max_depth",
    "max_seconds", "max_services", "max_total_tokens", "max_turns", "remove_gate", "require_done_tool", "sandbox_cpu_percent",
    "sandbox_max_processes",
}  # fmt: skip
"""Wards that open nothing outside the sandbox, whatever their value."""


def test_each_built_in_gate_is_decided() -> None:
    named = trust._GATE_POWERS.keys() | trust._REFUSED_GATES.keys()
    assert named & HARMLESS_GATES.keys() == set()
    assert set(registry.BUILT_IN) - named == set(HARMLESS_GATES)


def test_each_ward_is_decided() -> None:
    assert trust._WARD_POWERS.keys() & ONLY_NARROWS == set()
    assert set(WARDS) - trust._WARD_POWERS.keys() == ONLY_NARROWS
