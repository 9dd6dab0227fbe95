"""smolagents: its ToolCallingAgent, which keeps its steps in memory and nothing on disk."""

from __future__ import annotations

from typing import Any

from smolagents import Model, Tool, ToolCallingAgent
from smolagents.models import (
    ChatMessage,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    MessageRole,
)
from smolagents.monitoring import LogLevel

from bench.subjects.report import ARGUMENT, Clock, arguments, finish


class Echo(Tool):
    name = "echo"
    description = "Return the text."
    inputs = {"text": {"type": "string", "description": "what to return"}}  # noqa: RUF012 - as the framework wants it
    output_type = "string"

    def forward(self, text: str) -> str:
        return text


def main() -> None:
    turns, folder = arguments()
    clock = Clock()

    class Instant(Model):
        def generate(self, messages: Any, **options: Any) -> ChatMessage:
            clock.tick()
            name, args = (
                ("echo", {"text": ARGUMENT}) if len(clock.ticks) <= turns else ("final_answer", {"answer": "ok"})
            )
            function = ChatMessageToolCallFunction(name=name, arguments=args)
            call = ChatMessageToolCall(id=f"c{len(clock.ticks)}", type="function", function=function)
            return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=[call])

    agent = ToolCallingAgent(tools=[Echo()], model=Instant(), max_steps=turns + 2, verbosity_level=LogLevel.OFF)
    agent.run("go")
    finish(clock, turns, folder)


if __name__ == "__main__":
    main()
