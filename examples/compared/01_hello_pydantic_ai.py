"""Ask a model one question."""

import sys

from pydantic_ai import Agent

model = sys.argv[1] if sys.argv[1:] else "openai:gpt-5"
agent = Agent(model, instructions="Answer in one sentence.")
print(agent.run_sync("Where does 'hello world' come from?").output)
