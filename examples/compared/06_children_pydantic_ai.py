"""Let an agent give parts of its task to children, which work beside each other."""

import asyncio
import sys

from pydantic_ai import Agent, ModelRetry

model = sys.argv[1] if sys.argv[1:] else "openai:gpt-5"
child = Agent(model)
agent = Agent(model, instructions="Give each part of a task to a child with ask_children. Then combine their answers.")


@agent.tool_plain
async def ask_children(tasks: list[str]) -> list[str]:
    """Give each task to a child. Returns their answers in the same order."""
    if len(tasks) > 5:
        raise ModelRetry("at most 5 children")
    results = await asyncio.gather(*(child.run(task) for task in tasks))
    return [result.output for result in results]


print(agent.run_sync("Say in one sentence each how Rome, Tokyo and Lima began.").output)
