"""A toy task, run once by verifiers with cantrip-acp as its agent; prints what its trace says as JSON.

    python toy_task.py --model gpt-5.4-mini --base-url https://api.openai.com/v1 --agent "$(command -v cantrip-acp)"

The key is read from OPENAI_API_KEY. verifiers wants an environment of its own (`pip install verifiers uv`): it pins an older
`mcp` than cantrip-acp needs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

import verifiers.v1 as vf


class Sum(vf.Task):
    """The answer is a number, and the reward says whether it is the right one."""

    @vf.reward
    async def right(self, trace: Any) -> float:
        return float((trace.root_reply or "").strip().endswith("42"))


async def run(options: argparse.Namespace) -> dict[str, Any]:
    agent = vf.Agent(
        vf.AgentConfig(
            harness={"id": "cantrip_harness", "command": options.agent, "recipe": options.recipe},
            model=options.model,
            client=vf.EvalClientConfig(base_url=options.base_url, api_key_var="OPENAI_API_KEY"),
            runtime=vf.SubprocessConfig(),
        )
    )
    async with agent:
        trace = await agent.run(Sum(vf.TaskData(prompt="What is 6 times 7? Ask a helper, and answer with the number.")))
    return {
        "ok": trace.ok,
        "stop": trace.stop_condition,
        "reward": trace.reward,
        "errors": [error.message for error in trace.errors],
        "reply": trace.root_reply,
        "calls": [{"node": call.node, "request": call.acp and call.acp.request_id} for call in trace.calls],
        "links": [[link.node, at, link.type] for at, node in enumerate(trace.nodes) for link in node.semantic_parents],
        "branches": len(trace.branches),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--agent", required=True, help="the command that starts the agent")
    parser.add_argument("--recipe", default="coding")
    print(json.dumps(asyncio.run(run(parser.parse_args())), indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
