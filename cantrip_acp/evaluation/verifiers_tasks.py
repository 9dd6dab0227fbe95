"""Tasks of verifiers (`verifiers.v1`): their prompts and rewards, with a cast of a recipe as the rollout.

A task that needs a runtime or tools of verifiers is refused, because the entity has the sandbox and the gates of its recipe. The
taskset is Python and runs on this machine, outside of the sandbox.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cantrip_acp.evaluation.inspect_tasks import Ask
from cantrip_acp.types.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class VerifiersSample:
    """One task of a taskset. ``content`` is its data as JSON."""

    name: str
    intent: str
    reference: Any
    content: str
    task: Any = field(repr=False)
    messages: tuple[Any, ...] = field(repr=False)
    files: Mapping[str, str] = field(default_factory=dict)

    async def solve(self, ask: Ask, model: str) -> Any:
        """Cast the task's prompt. Returns a trace of verifiers with the prompt and the answer."""
        import verifiers.v1 as vf
        from verifiers.v1.configs.agent import WireAgentConfig
        from verifiers.v1.state import state_cls
        from verifiers.v1.types import content_text

        said = [(message.role, content_text(message.content)) for message in self.messages]
        system = "\n\n".join(text for role, text in said if role == "system")
        answer = await ask(system, [pair for pair in said if pair[0] != "system"], False)
        messages = [*self.messages, vf.AssistantMessage(content=answer)]
        nodes = [vf.MessageNode(parent=n - 1 if n else None, message=each) for n, each in enumerate(messages)]
        nodes[-1].sampled = True
        return vf.Trace(
            task=vf.TraceTask(type=type(self.task).__name__, data=self.task.data),
            agent=vf.AgentInfo(config=WireAgentConfig(model=model)),
            nodes=nodes,
            root_reply=answer,
            state=state_cls(type(self.task))(),
            is_completed=True,
            ok=True,
        )

    async def score(self, trace: Any) -> tuple[float, str | None]:
        """The task's reward, and its parts. Raises what a reward function raises."""
        await self.task.score(trace)
        parts = [f"{name} {each.value:g}" for name, each in trace.rewards.items() if each is not None]
        if not parts or not math.isfinite(trace.reward):
            raise DefinitionError("the task has no reward")
        return trace.reward, ", ".join(parts)


def samples(taskset_id: str) -> list[VerifiersSample]:
    """The tasks of an installed taskset. Raises `DefinitionError` if it is missing, or needs something that is not available
    here."""
    try:
        from verifiers.v1.utils.loaders import load_taskset, taskset_config_type
    except ImportError:
        raise DefinitionError(
            "this is a taskset of verifiers; to run it: pip install verifiers", where=taskset_id
        ) from None
    try:
        taskset = load_taskset(taskset_config_type(taskset_id)(id=taskset_id))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise DefinitionError(str(error), where=taskset_id) from None
    if not taskset.bounded:
        raise DefinitionError("this taskset has infinitely many tasks; choose one that ends", where=taskset_id)
    if type(taskset).toolsets(taskset.config):
        raise DefinitionError(
            "the taskset has tools of verifiers; here the recipe's gates are the tools", where=taskset_id
        )
    return [_sample(taskset_id, number, task) for number, task in enumerate(taskset, 1)]


def _sample(taskset_id: str, number: int, task: Any) -> VerifiersSample:
    import verifiers.v1 as vf

    data, kind = task.data, type(task)
    name = data.name or data.id or str(number)
    judges = [*task.hooks("reward"), *(judge.score for judge in task.plugged_judges())]
    needs = [each.__name__ for each in judges if _needs_runtime(each)]
    if kind.NEEDS_CONTAINER or kind.toolsets(task.config) or kind.setup is not vf.Task.setup:
        needs.append("its setup")
    if needs or data.prompt is None:
        why = f"a runtime or tools of verifiers ({', '.join(needs)})" if needs else "a user who begins"
        raise DefinitionError(f"the task {name} needs {why}, which is not available here", where=taskset_id)
    prompt = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt)
    system = [] if data.system_prompt is None else [vf.SystemMessage(content=data.system_prompt)]
    reference = getattr(data, "answer", None)
    known = reference if isinstance(reference, str | int | float) else None
    return VerifiersSample(name, data.prompt_text, known, data.model_dump_json(), task, (*system, *prompt))


def _needs_runtime(function: Any) -> bool:
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty
