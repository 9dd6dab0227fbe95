"""Ask a model one question."""

import sys

from cantrip_acp import Cantrip

crystal = sys.argv[1] if sys.argv[1:] else f"scripted:{__file__[:-3]}.yaml"
cantrip = Cantrip(crystal, system_prompt="Answer in one sentence.", max_turns=3)
print(cantrip.cast_sync("Where does 'hello world' come from?").result)
