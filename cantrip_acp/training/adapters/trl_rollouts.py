"""TRL: casts as the rollouts of its `GRPOTrainer` (``pip install trl``). The trainer makes the tokens, itself or with vLLM.

rollouts = Rollouts("larger")
trainer = GRPOTrainer(model, cast_reward, GRPOConfig(…), train_dataset=rollouts.dataset(), rollout_func=rollouts)
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from anyio.from_thread import start_blocking_portal

from cantrip_acp.training.adapters.casts import Casts, Sample, not_installed
from cantrip_acp.training.adapters.token_engine import Answer, batched
from cantrip_acp.training.trainer.engine import Request
from cantrip_acp.types.errors import DefinitionError

__all__ = ["Rollouts", "cast_reward"]


def cast_reward(reward: list[float | None], **_: Any) -> list[float | None]:
    """A reward function for the trainer: the rewards that the recipe's scoring function gave the casts."""
    return reward


class Rollouts(Casts):
    """A ``rollout_func``. Its arguments are those of `Casts`."""

    def dataset(self, questions: Any = None) -> Any:
        """The questions of the example (its training questions) as a data set."""
        try:
            from datasets import Dataset
        except ImportError as error:
            raise not_installed("trl", error) from error

        return Dataset.from_list(self.prompts(questions))

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Cast the question of each prompt once: the trainer repeats a prompt for each wanted sample."""
        # In a thread of its own, because a notebook has an event loop already.
        with start_blocking_portal() as portal:
            samples = portal.call(self._roll_out, prompts, trainer)
        names = {"prompt_ids": "prompt_ids", "completion_ids": "response_ids", "logprobs": "logprobs"}
        names |= {"env_mask": "mask", "reward": "reward"}
        return {key: [getattr(each, name) for each in samples] for key, name in names.items()}

    async def _roll_out(self, prompts: list[Any], trainer: Any) -> list[Sample]:
        if trainer.use_vllm and trainer.vllm_mode == "server" and trainer.accelerator.num_processes > 1:
            raise DefinitionError(
                "casts of several processes cannot share vLLM's server mode: use vllm_mode='colocate'"
            )
        tokenizer = trainer.processing_class
        generate = batched(partial(_with_vllm if trainer.use_vllm else _with_transformers, trainer))
        window = getattr(trainer.model.config, "max_position_embeddings", None) or tokenizer.model_max_length
        limits = {"window": window, "max_tokens": trainer.max_completion_length}
        async with self.serving(tokenizer, generate, **limits, weights=f"step-{trainer.state.global_step}") as crystal:
            asked = [self.question(prompt) for prompt in prompts]
            return await self.sample(asked, crystal, temperature=trainer.temperature, padding=tokenizer.pad_token_id)


def _with_vllm(trainer: Any, requests: Sequence[Request]) -> list[Answer]:
    prompts = [request.prompt for request in requests]
    _, ids, values, _ = trainer.vllm_generation.generate(prompts, images=None, num_generations=1)
    limits = [request.max_tokens for request in requests]
    return [(ids[n][:most], [each[0] for each in values[n][:most]]) for n, most in enumerate(limits)]


def _with_transformers(trainer: Any, requests: Sequence[Request]) -> list[Answer]:
    import torch
    from trl.models import unwrap_model_for_generation

    prompts = [{"input_ids": request.prompt} for request in requests]
    inputs = trainer.processing_class.pad(prompts, padding_side="left", return_tensors="pt")
    config = deepcopy(trainer.generation_config)
    config.max_new_tokens = max(request.max_tokens for request in requests)
    columns: list[list[float]] = []
    before: list[Any] = []

    def keep(ids: Any) -> None:
        if before:
            columns.append(before.pop().gather(1, ids[:, -1:])[:, 0].tolist())

    def watch(ids: Any, scores: Any) -> Any:
        # These are the scores of a token that is known at the next call.
        keep(ids)
        before.append((scores.float() / trainer.temperature).log_softmax(dim=-1))
        return scores

    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model, torch.no_grad():
        given = inputs.to(trainer.accelerator.device)
        made = model.generate(**given, generation_config=config, logits_processor=[watch])
    keep(made)
    answers = []
    for row, request in enumerate(requests):
        ids = made[row, inputs.input_ids.shape[1] :].tolist()
        ends = [at + 1 for at, token in enumerate(ids) if token in trainer.eos_token_ids]
        length = min([*ends[:1], request.max_tokens, len(ids)])
        answers.append((ids[:length], [column[row] for column in columns[:length]]))
    return answers
