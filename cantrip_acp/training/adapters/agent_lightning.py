"""agent-lightning: casts as an agent, and as spans (``pip install agentlightning``).

trainer = agl.Trainer(algorithm=…, …)
trainer.fit(CastAgent("larger"), train_dataset=CastAgent("larger").prompts())
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from cantrip_acp.training.adapters.casts import Casts, not_installed

try:
    import agentlightning as agl
    from agentlightning.types import SpanCoreFields, TraceStatus
except ImportError as error:
    raise not_installed("agentlightning", error) from error

__all__ = ["CastAgent", "spans"]

_QUERY = "openai.chat.completion"
"""The name of a query's span, for which `agl.TracerTraceToTriplet` looks."""


def spans(rows: Iterable[dict[str, Any]], reward: float | None = None) -> list[SpanCoreFields]:
    """Token rows (of `Sample.rows`, or of ``cantrip loom export --format tokens``) as spans: one for each utterance, with
    the ids of its prompt, its own ids and their log-probabilities. ``reward`` is a span behind them."""
    found: list[SpanCoreFields] = []
    now = time.time()
    for row in rows:
        for turn in row["turns"]:
            start, end = turn["start"], turn["end"]
            values = zip(row["response_ids"][start:end], row["logprobs"][start:end], strict=True)
            attributes = {
                "gen_ai.request.model": row["model"] or "",
                "gen_ai.response.id": turn["turn"],
                "prompt_token_ids": row["prompt_ids"] + row["response_ids"][:start],
                "response_token_ids": row["response_ids"][start:end],
                "logprobs.content": json.dumps([{"token": f"token_id:{i}", "logprob": p} for i, p in values]),
            }
            status = TraceStatus(status_code="OK")
            at = now + len(found) * 1e-6
            found.append(SpanCoreFields(name=_QUERY, status=status, attributes=attributes, start_time=at, end_time=at))
    if reward is not None:
        later = now + len(found) * 1e-6
        made = agl.emit_reward(reward, propagate=False)
        found.append(made.model_copy(update={"start_time": later, "end_time": later}))
    return found


class CastAgent(Casts, agl.LitAgent[dict[str, Any]]):  # type: ignore[misc]
    """Casts the question of a task: a row of `prompts`. The model is the `agl.LLM` of the resources.

    Its arguments are those of `Casts`. Behind a proxy (`agl.ProxyLLM`), which records the queries itself, only the reward
    is reported; otherwise the spans of the cast are.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Casts.__init__(self, *args, **kwargs)
        agl.LitAgent.__init__(self)

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> list[SpanCoreFields] | float:
        llm = next(each for each in resources.values() if isinstance(each, agl.LLM))
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        crystal = self.crystal_at(url, llm.model, llm.api_key or "none")
        temperature = llm.sampling_parameters.get("temperature")
        (sample,) = await self.sample([self.question(task["prompt"])], crystal, temperature=temperature)
        if isinstance(llm, agl.ProxyLLM):
            return sample.reward or 0.0
        return spans(sample.rows, sample.reward or 0.0)
