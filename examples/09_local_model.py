"""Talk to a model of this machine, here qwen3 of Ollama. It remembers what was said, and no key is needed."""

import asyncio
import sys

from cantrip_acp import Cantrip


async def main() -> None:
    crystal = sys.argv[1] if sys.argv[1:] else "ollama:qwen3"
    cantrip = Cantrip(crystal, system_prompt="Answer in one sentence.", max_turns=3)
    async with cantrip.invoke() as entity:
        for question in ("Why is the sky blue?", "And at sunset?"):
            result = await entity.cast(question)
            print(result.result, f"({result.usage.completion_tokens} tokens)")


asyncio.run(main())
