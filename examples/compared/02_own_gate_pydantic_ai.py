"""Give a model a function of yours."""

import sys
from datetime import date

from pydantic_ai import Agent

model = sys.argv[1] if sys.argv[1:] else "openai:gpt-5"
agent = Agent(model)


@agent.tool_plain
def days_between(start: date, end: date) -> int:
    """Count the days from one day to another."""
    return (end - start).days


print(agent.run_sync("How many days did the war from 1870-07-19 to 1871-01-28 last?").output)
