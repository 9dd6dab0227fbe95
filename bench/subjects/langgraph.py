"""LangGraph with its SQLite checkpointer: a model node and a tool node."""

from __future__ import annotations

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from bench.subjects.report import ARGUMENT, Clock, arguments, finish


def main() -> None:
    turns, folder = arguments()
    clock = Clock()

    @tool
    def echo(text: str) -> str:
        """Return the text."""
        return text

    def model(state: MessagesState) -> dict[str, list[AIMessage]]:
        clock.tick()
        if len(clock.ticks) > turns:
            return {"messages": [AIMessage("finished")]}
        call = {"name": "echo", "args": {"text": ARGUMENT}, "id": f"c{len(clock.ticks)}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def after(state: MessagesState) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode([echo]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", after, ["tools", END])
    graph.add_edge("tools", "model")
    with SqliteSaver.from_conn_string(str(folder / "checkpoints.sqlite")) as saver:
        config = {"configurable": {"thread_id": "1"}, "recursion_limit": 2 * turns + 10}
        graph.compile(checkpointer=saver).invoke({"messages": [HumanMessage("go")]}, config)
        finish(clock, turns, folder)


if __name__ == "__main__":
    main()
