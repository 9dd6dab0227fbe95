"""Ask once, continue four times from that answer, and show the continuations by reward."""

import asyncio
import sys

from cantrip_acp import Cantrip, Scorer, Thread

crystal = sys.argv[1] if sys.argv[1:] else f"scripted:{__file__[:-3]}.yaml"


def brevity(thread: Thread) -> float:
    return 1 / len(str(thread.result).split())


async def main() -> None:
    cantrip = Cantrip(crystal, max_turns=3, score=Scorer(brevity, at="cast"))
    async with cantrip.invoke() as entity:
        await entity.cast("Choose an animal.")
        group = await entity.fork_group("Describe it in one sentence.", samples=4)
    for sample in sorted(group.samples, key=lambda sample: sample.reward or 0, reverse=True):
        print(f"{sample.reward:.2f} {sample.answer}")


asyncio.run(main())
