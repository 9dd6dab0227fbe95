"""verl: casts as an agent loop (``pip install verl``). Name a file with these lines in ``agent.agent_loop_config_path`` of the
rollout, and set ``agent.default_agent_loop=cantrip``:

    - name: cantrip
      _target_: verl_casts.CastLoop
      example: larger
"""

from __future__ import annotations

import time
import uuid
from functools import cache
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from cantrip_acp.training.adapters.casts import Casts
from cantrip_acp.training.adapters.token_engine import Answer
from cantrip_acp.training.trainer.engine import Request

__all__ = ["CastLoop"]


@cache
def _casts(example: str, looms: str | None) -> Casts:
    # verl makes a loop for each sample.
    return Casts(example, looms=None if looms is None else Path(looms))


class CastLoop(AgentLoopBase):
    """Casts the question of a prompt. ``looms`` is a folder that keeps a loom of each cast."""

    def __init__(self, *args: Any, example: str, looms: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._casts = _casts(example, looms)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        start, session = time.monotonic(), uuid.uuid4().hex
        config, generated = self.rollout_config, 0.0

        async def ask(request: Request) -> Answer:
            nonlocal generated
            begun = time.monotonic()
            params = {**sampling_params, "max_tokens": request.max_tokens, "logprobs": True}
            if request.stop:
                params["stop"] = list(request.stop)
            found = await self.server_manager.generate(session, prompt_ids=request.prompt, sampling_params=params)
            generated += time.monotonic() - begun
            return found.token_ids, found.log_probs

        limits = {"window": config.prompt_length + config.response_length, "max_tokens": config.response_length}
        async with self._casts.serving(self.tokenizer, ask, **limits, weights="policy") as crystal:
            (sample,) = await self._casts.sample(
                [self._casts.question(list(kwargs["raw_prompt"]))],
                crystal,
                temperature=sampling_params.get("temperature"),
                padding=self.tokenizer.eos_token_id,
            )
        most = config.response_length
        return AgentLoopOutput(
            prompt_ids=self._cap_text_prompt_length(sample.prompt_ids),
            response_ids=sample.response_ids[:most],
            response_mask=sample.mask[:most],
            response_logprobs=sample.logprobs[:most],
            reward_score=sample.reward or 0.0,
            num_turns=2 * sample.turns,
            metrics={"generate_sequences": generated, "tool_calls": time.monotonic() - start - generated},
            extra_fields={"turn_scores": [], "tool_rewards": []},
        )
