"""Let an agent give parts of its task to children, which work beside each other."""

import sys

from cantrip_acp import Cantrip

crystal = sys.argv[1] if sys.argv[1:] else f"scripted:{__file__[:-3]}.yaml"
cantrip = Cantrip(
    crystal,
    system_prompt="Give each part of a task to a child with call_agent_batch. Then combine their answers.",
    gates=["call_agent_batch"],
    wards={"max_children_total": 5},
    max_turns=5,
)
print(cantrip.cast_sync("Say in one sentence each how Rome, Tokyo and Lima began.").result)
