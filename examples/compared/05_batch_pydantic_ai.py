"""Sort many messages, four at once, with a line of progress. Each answer comes as soon as it is there."""

import asyncio
import sys
from typing import Literal

from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError
from tqdm import tqdm

model = sys.argv[1] if sys.argv[1:] else "openai:gpt-5"
messages = ["My card was charged twice.", "The app crashes at start.", "How do I export my data?", "I want a refund."]

agent = Agent(
    model,
    instructions="Sort the message of a customer.",
    output_type=Literal["payment", "bug", "question"],
)


async def main() -> None:
    limit = asyncio.Semaphore(4)

    async def sort(message: str) -> str:
        async with limit:
            try:
                return f"{(await agent.run(message)).output}: {message}"
            except AgentRunError as error:
                return f"failed: {message} ({error})"

    for task in tqdm(asyncio.as_completed([sort(message) for message in messages]), total=len(messages)):
        tqdm.write(await task)


asyncio.run(main())
