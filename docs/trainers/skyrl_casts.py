"""SkyRL: casts as the trajectories of its trainer (``pip install skyrl[skyrl-train]``). Return a `CastGenerator` from
``get_generator`` of your experiment:

    class Experiment(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return CastGenerator("larger", inference_engine_client, tokenizer, window=4096)
"""

from __future__ import annotations

from typing import Any

from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput
from skyrl.train.generators.utils import get_rollout_metrics

from cantrip_acp.training.adapters.casts import Casts
from cantrip_acp.training.adapters.token_engine import Answer
from cantrip_acp.training.trainer.engine import Request

__all__ = ["CastGenerator"]


class CastGenerator(Casts, GeneratorInterface):
    """Casts the question of each prompt once. ``window`` is the size of the model's context in tokens.

    ``model`` is the name of the policy at the inference engine, if it has several. ``options`` are those of `Casts`.
    """

    def __init__(
        self, example: str, client: Any, tokenizer: Any, *, window: int, model: str | None = None, **options: Any
    ) -> None:
        super().__init__(example, **options)
        self._client = client
        self._tokenizer = tokenizer
        self._window = window
        self._model = model

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        given = dict(input_batch.get("sampling_params") or {})
        meta = input_batch.get("batch_metadata")

        async def ask(request: Request) -> Answer:
            params = {**given, "temperature": request.temperature, "max_tokens": request.max_tokens, "logprobs": 0}
            if request.stop:
                params["stop"] = [*(given.get("stop") or ()), *request.stop]
            query = {"prompt_token_ids": [request.prompt], "sampling_params": params}
            found = await self._client.generate(query, model=self._model)
            return found["response_ids"][0], found["response_logprobs"][0]

        limits = {"window": self._window, "max_tokens": given.get("max_tokens") or self._window}
        weights = f"step-{meta.global_step}" if meta is not None else "policy"
        asked = [self.question(prompt) for prompt in input_batch["prompts"]]
        async with self.serving(self._tokenizer, ask, **limits, weights=weights) as crystal:
            padding = self._tokenizer.eos_token_id
            temperature = given.get("temperature")
            samples = await self.sample(asked, crystal, temperature=temperature, padding=padding)
        rewards = [each.reward or 0.0 for each in samples]
        return {
            "prompt_token_ids": [each.prompt_ids for each in samples],
            "response_ids": [each.response_ids for each in samples],
            "rewards": rewards,
            "loss_masks": [each.mask for each in samples],
            "stop_reasons": ["stop" if each.ended else "length" for each in samples],
            "rollout_metrics": get_rollout_metrics([each.response_ids for each in samples], rewards),
            "rollout_logprobs": [each.logprobs for each in samples],
            "trajectory_ids": input_batch.get("trajectory_ids"),
        }
