"""Sort many messages, four at once, with a line of progress. Each answer comes as soon as it is there."""

import sys
from typing import Literal

from cantrip_acp import Cantrip, CantripError

crystal = sys.argv[1] if sys.argv[1:] else f"scripted:{__file__[:-3]}.yaml"
messages = ["My card was charged twice.", "The app crashes at start.", "How do I export my data?", "I want a refund."]

cantrip = Cantrip(
    crystal,
    system_prompt="Sort the message of a customer.",
    result_type=Literal["payment", "bug", "question"],
    max_turns=3,
)
for item in cantrip.cast_batch(messages, concurrency=4, progress=True):
    try:
        print(f"{item.answer}: {item.intent}")
    except CantripError as error:
        print(f"failed: {item.intent} ({error})")
