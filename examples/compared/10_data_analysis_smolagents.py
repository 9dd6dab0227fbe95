"""Let a model analyse a file with Python code that it writes, in a sandbox (a container of Docker)."""

import sys
from dataclasses import dataclass
from pathlib import Path

from smolagents import CodeAgent, InferenceClientModel

model = InferenceClientModel(*sys.argv[1:])
data = (Path(__file__).parents[1] / "data" / "rain.csv").read_text()


@dataclass
class Wettest:
    town: str
    millimetres: float


task = "Which town in the table has the most rain in a month on average? Give {'town': text, 'millimetres': number}."
with CodeAgent(tools=[], model=model, executor_type="docker", max_steps=10) as agent:
    answer = Wettest(**agent.run(task, additional_args={"table": data}))
print(f"{answer.town}: {answer.millimetres:.1f} mm")
