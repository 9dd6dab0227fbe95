"""Ask once, continue four times from that answer, and show the continuations by reward."""

import asyncio
import sys

from pydantic_ai import Agent

model = sys.argv[1] if sys.argv[1:] else "openai:gpt-5"


def brevity(answer: str) -> float:
    return 1 / len(answer.split())


async def main() -> None:
    agent = Agent(model)
    first = await agent.run("Choose an animal.")
    history = first.all_messages()
    forks = [agent.run("Describe it in one sentence.", message_history=history) for _ in range(4)]
    answers = [run.output for run in await asyncio.gather(*forks)]
    for reward, answer in sorted(((brevity(answer), answer) for answer in answers), reverse=True):
        print(f"{reward:.2f} {answer}")


asyncio.run(main())
