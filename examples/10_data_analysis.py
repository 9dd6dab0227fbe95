"""Let a model analyse a file with Python code that it writes, in a sandbox without network."""

import sys
from dataclasses import dataclass
from pathlib import Path

from cantrip_acp import Cantrip

crystal = sys.argv[1] if sys.argv[1:] else f"scripted:{__file__[:-3]}.yaml"


@dataclass
class Wettest:
    town: str
    millimetres: float


data = Path(__file__).parent / "data"
wards = {"code_readable_paths": ["workspace"]}
cantrip = Cantrip(crystal, medium="code", workspace=data, wards=wards, result_type=Wettest, max_turns=9)
answer = cantrip.cast_sync("Which town in rain.csv has the most rain in a month on average?").result
print(f"{answer.town}: {answer.millimetres:.1f} mm")
