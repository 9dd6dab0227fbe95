"""Talk to a model of this machine, here qwen3 of Ollama. It remembers what was said, and no key is needed."""

import asyncio
import os
import sys

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage


async def main() -> None:
    os.environ.setdefault("OLLAMA_BASE_URL", "http://localhost:11434/v1")
    model = sys.argv[1] if sys.argv[1:] else "ollama:qwen3"
    agent = Agent(model, instructions="Answer in one sentence.")
    history: list[ModelMessage] = []
    for question in ("Why is the sky blue?", "And at sunset?"):
        result = await agent.run(question, message_history=history)
        history = result.all_messages()
        print(result.output, f"({result.usage.output_tokens} tokens)")


asyncio.run(main())
