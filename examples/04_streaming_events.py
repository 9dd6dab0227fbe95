"""Show words and calls while they happen."""

import asyncio
import sys

from cantrip_acp import Cantrip, events

crystal = sys.argv[1] if sys.argv[1:] else f"scripted:{__file__[:-3]}.yaml"


def weather(town: str) -> str:
    """Say what the weather is like."""
    return f"Rain in {town}."


async def main() -> None:
    cantrip = Cantrip(crystal, gates=[weather], max_turns=5)
    async for event in cantrip.cast_stream("Do I need an umbrella in Turin?"):
        match event:
            case events.Text(delta=words):
                print(words, end="", flush=True)
            case events.GateCalled(gate=name, args=args):
                print(f"[{name} {args}]")
            case events.CastEnded(record=end):
                print(f"\n{end.turns} turns")


asyncio.run(main())
