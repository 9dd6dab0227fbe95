"""Tasks of Inspect (`inspect_ai`): their datasets, solvers and scorers, with a recipe in the place of the model.

A solver calls ``generate(state)`` for an answer of the model. Here that is a cast: the last message of the user is the intent, the
system messages are added to the recipe's system prompt, and a second call goes on with the same entity. So solvers such as
`system_message`, `prompt_template`, `chain_of_thought` and `multiple_choice` work as they are. Inspect's tools and sandboxes are
not available, because the entity has the gates and the sandbox of its recipe; a task that needs them is refused.

The file of a task is Python and runs on this machine, outside of the sandbox, as its solvers and scorers do.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cantrip_acp.recipes.build.python_files import Files, run_file
from cantrip_acp.types.errors import DefinitionError

Ask = Callable[[str, Sequence[tuple[str, str]], bool], Awaitable[str]]
"""Casts. Gets the system messages, the other messages (role and text) since the last cast, and whether the earlier ones are
known to the entity, because this goes on with its conversation. Returns the answer."""


@dataclass(frozen=True, slots=True)
class InspectSample:
    """One sample of an Inspect task. ``content`` is the sample as JSON."""

    name: str
    intent: str
    reference: Any
    content: str
    files: Mapping[str, str] = field(default_factory=dict)
    task: Any = field(default=None, repr=False)
    sample: Any = field(default=None, repr=False)

    async def solve(self, ask: Ask, model: str) -> Any:
        """Run the task's solver. Returns Inspect's ``TaskState``. Raises what the solver raises."""
        from inspect_ai.model import ChatMessageUser, ModelName, ModelOutput
        from inspect_ai.scorer import Target
        from inspect_ai.solver import TaskState

        given = self.sample.input
        messages = [ChatMessageUser(content=given)] if isinstance(given, str) else list(given)
        state = TaskState(
            ModelName(f"cantrip/{model}"),
            self.sample.id or self.name,
            1,
            given,
            messages,
            target=Target(self.sample.target),
            choices=self.sample.choices,
            metadata=dict(self.sample.metadata or {}),
        )
        known: list[Any] = []

        async def generate(state: Any, *_: Any, **__: Any) -> Any:
            if state.tools:
                raise DefinitionError(
                    "the task gives the model tools of Inspect; here the recipe's gates are its tools"
                )
            goes_on = bool(known) and [m.id for m in state.messages[: len(known)]] == known
            new = state.messages[len(known) :] if goes_on else state.messages
            system = "\n\n".join(m.text for m in state.messages if m.role == "system")
            answer = await ask(system, [(m.role, m.text) for m in new if m.role != "system"], goes_on)
            state.output = ModelOutput.from_content(str(state.model), answer)
            state.messages.append(state.output.message)
            known[:] = [m.id for m in state.messages]
            return state

        for solver in [self.task.setup, self.task.solver]:
            for each in solver if isinstance(solver, list) else [solver]:
                if each is not None and not state.completed:
                    state = await each(state, generate)
        return state

    async def score(self, state: Any) -> tuple[float, str | None]:
        """The lowest value that the task's scorers give, with its explanation. Raises what a scorer raises."""
        from inspect_ai.scorer import Target, value_to_float

        scorers = self.task.scorer or []
        found: list[tuple[float, str | None]] = []
        for scorer in scorers if isinstance(scorers, list) else [scorers]:
            score = await scorer(state, Target(self.sample.target))
            if score is not None:
                values = score.value.values() if isinstance(score.value, dict) else [score.value]
                found += [(value_to_float()(value), score.explanation) for value in values]
        # Inspect uses NaN for a sample that it could not score.
        found = [pair for pair in found if math.isfinite(pair[0])]
        if not found:
            raise DefinitionError("the task's scorers gave no score")
        return min(found, key=lambda pair: pair[0])


def samples(path: Path, name: str = "") -> list[InspectSample]:
    """The samples of the tasks in a file, or of its task with this name. Runs the file.

    Raises `DefinitionError` if `inspect_ai` is missing, or if a task needs something that is not available here.
    """
    try:
        from inspect_ai.util import registry_info
    except ImportError:
        raise DefinitionError("this is an Inspect task; to run it: pip install inspect_ai", where=str(path)) from None
    with contextlib.chdir(path.resolve().parent):
        sys.path.insert(0, str(path.resolve().parent))
        try:
            module = run_file(path, Files())
            makers = {}
            for value in vars(module).values():
                with contextlib.suppress(ValueError, AttributeError, TypeError):
                    if registry_info(value).type == "task" and getattr(value, "__module__", "") == module.__name__:
                        makers[value.__name__] = value
            if not makers:
                raise DefinitionError("defines no task: write a function with @task", where=str(path))
            if name and name not in makers:
                raise DefinitionError(f"defines no task {name!r} (tasks: {', '.join(makers)})", where=str(path))
            found = []
            for each in [name] if name else makers:
                task = makers[each]()
                found += [
                    _sample(path, each if len(makers) > 1 and not name else "", n, task, s)
                    for n, s in enumerate(task.dataset)
                ]
        finally:
            sys.path.remove(str(path.resolve().parent))
    return found


def _sample(path: Path, task_name: str, number: int, task: Any, sample: Any) -> InspectSample:
    name = str(sample.id if sample.id is not None else number + 1)
    name = f"{task_name}/{name}" if task_name else name
    if sample.sandbox is not None or task.sandbox is not None or sample.setup:
        raise DefinitionError(
            f"the sample {name} needs a sandbox or a setup of Inspect, which is not available here", where=str(path)
        )
    given = sample.input
    intent = given if isinstance(given, str) else next((m.text for m in reversed(given) if m.role == "user"), "")
    files = {}
    for place, text in (sample.files or {}).items():
        files[place] = Path(text).read_text("utf-8") if os.path.isfile(text) else text
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise DefinitionError(f"the sample {name} has a file outside of its folder: {place}", where=str(path))
    return InspectSample(name, intent, sample.target, sample.model_dump_json(), files, task, sample)
