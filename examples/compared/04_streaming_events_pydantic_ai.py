"""Show words and calls while they happen."""

import asyncio
import sys

from pydantic_ai import Agent, AgentRunResultEvent, FunctionToolCallEvent
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

model = sys.argv[1] if sys.argv[1:] else "openai:gpt-5"
agent = Agent(model)


@agent.tool_plain
def weather(town: str) -> str:
    """Say what the weather is like."""
    return f"Rain in {town}."


async def main() -> None:
    async with agent.run_stream_events("Do I need an umbrella in Turin?") as stream:
        async for event in stream:
            match event:
                case PartStartEvent(part=TextPart(content=words)):
                    print(words, end="", flush=True)
                case PartDeltaEvent(delta=TextPartDelta(content_delta=words)):
                    print(words, end="", flush=True)
                case FunctionToolCallEvent(part=part):
                    print(f"[{part.tool_name} {part.args}]")
                case AgentRunResultEvent(result=result):
                    print(f"\n{result.usage.requests} turns")


asyncio.run(main())
