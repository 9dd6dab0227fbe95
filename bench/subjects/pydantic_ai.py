"""pydantic-ai: an Agent with a FunctionModel, which keeps its messages in memory and nothing on disk."""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

from bench.subjects.report import ARGUMENT, Clock, arguments, finish


def main() -> None:
    turns, folder = arguments()
    clock = Clock()

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        clock.tick()
        if len(clock.ticks) > turns:
            return ModelResponse(parts=[TextPart("finished")])
        return ModelResponse(parts=[ToolCallPart("echo", {"text": ARGUMENT}, f"c{len(clock.ticks)}")])

    agent = Agent(FunctionModel(model))

    @agent.tool_plain
    def echo(text: str) -> str:
        """Return the text."""
        return text

    agent.run_sync("go", usage_limits=UsageLimits(request_limit=None))
    finish(clock, turns, folder)


if __name__ == "__main__":
    main()
