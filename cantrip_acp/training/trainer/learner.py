"""The learner: a GRPO update of the LoRA weights from token rows alone.

Source of the objective: DeepSeekMath (arXiv 2402.03300) with the mean over all tokens of the step instead of over each
answer (DAPO, arXiv 2503.14476), and without a penalty for the distance to the first weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor

from cantrip_acp.training.trainer.model import Model, common_start

_MOST_TOKENS = 768
"""Tokens, with padding, of one forward pass: what fits into the memory of a small machine."""

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""The names in the state of the optimizer AdamW."""


class TokenRow(msgspec.Struct, frozen=True):
    """A line of ``cantrip loom export --format tokens``, as far as the learner reads it (docs/training.md)."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    reward: float | None = None
    group: str | None = None
    thread: str = ""
    cast: str | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.response_ids

    def trained(self) -> list[int]:
        """The indices in ``ids`` of the tokens to train."""
        return [len(self.prompt_ids) + place for place, on in enumerate(self.mask) if on]


@dataclass(frozen=True, slots=True)
class Update:
    """The figures of one update. ``difference`` is the mean absolute difference between recorded log-probabilities and the
    learner's; ``clipped`` is the share of tokens whose gradient was cut off; ``taught`` is the number of rows whose reward
    differs from the mean of their group."""

    rows: int
    tokens: int
    loss: float
    difference: float
    clipped: float
    gradient: float
    taught: int


class Learner:
    """Holds the optimizer. Its methods belong to the model's thread."""

    def __init__(
        self, model: Model, *, learning_rate: float, clip: float, entropy: float = 0.0, scale_rewards: bool = True
    ) -> None:
        self._model = model
        self._clip = clip
        self._entropy = entropy
        self._scale_rewards = scale_rewards
        self._learning_rate = learning_rate
        self._scale = 1.0
        self.optimizer = torch.optim.AdamW(
            list(model.trained().values()), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )

    def begin(self, step: int, steps: int) -> None:
        """Set the learning rate and the entropy bonus of a step: in the second half of the steps they fall towards 0, so
        that the last steps do not undo what the others learned."""
        self._scale = min(1.0, 2 * (1 - (step - 1) / steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate * self._scale

    def update(self, rows: Sequence[TokenRow]) -> Update:
        """Train the rows once. Rows whose group has no differences in its rewards teach nothing and are left out, unless there
        is an entropy bonus: a model that settled on one answer to each question gets nothing else that could change it."""
        advantages = relative_rewards(rows, scaled=self._scale_rewards)
        every = self._entropy * self._scale > 0
        chosen = [(row, each) for row, each in zip(rows, advantages, strict=True) if (each or every) and any(row.mask)]
        if not chosen:
            return Update(0, 0, 0.0, 0.0, 0.0, 0.0, 0)
        total = sum(sum(row.mask) for row, _ in chosen)
        sums = {"loss": 0.0, "difference": 0.0, "clipped": 0.0}

        def objective(number: int, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
            row, advantage = chosen[number]
            recorded = torch.tensor([p for p, on in zip(row.logprobs, row.mask, strict=True) if on])
            recorded = recorded.to(logprobs.device)
            ratio = (logprobs - recorded).exp()
            bounded = ratio.clamp(1 - self._clip, 1 + self._clip)
            gain = torch.minimum(ratio * advantage, bounded * advantage)
            sums["difference"] += (logprobs - recorded).abs().sum().item()
            sums["clipped"] += (gain < ratio * advantage).sum().item()
            wanted = gain.sum() if entropy is None else gain.sum() + self._entropy * self._scale * entropy.sum()
            return -wanted / total

        sums["loss"] = self._train([row for row, _ in chosen], objective, entropy=self._entropy > 0)
        gradient = self._step()
        taught = sum(1 for _, advantage in chosen if advantage)
        difference, clipped = sums["difference"] / total, sums["clipped"] / total
        return Update(len(chosen), total, sums["loss"], difference, clipped, gradient, taught)

    def imitate(self, rows: Sequence[TokenRow]) -> Update:
        """Train the rows once as they are: the mean loss over all tokens. Rewards and recorded log-probabilities do not count."""
        total = sum(sum(row.mask) for row in rows)
        loss = self._train(rows, lambda _, logprobs, __: -logprobs.sum() / total)
        return Update(len(rows), total, loss, 0.0, 0.0, self._step(), len(rows))

    def logprobs(self, rows: Sequence[TokenRow]) -> list[list[float]]:
        """The log-probability of each token to train, by the present weights."""
        out: list[list[float]] = [[] for _ in rows]

        def keep(number: int, logprobs: Tensor, _: Tensor | None) -> Tensor:
            out[number] = logprobs.tolist()
            return logprobs.sum()

        with torch.no_grad():
            self._train(rows, keep, backward=False)
        return out

    def tensors(self) -> dict[str, Tensor]:
        """The LoRA weights and the optimizer's state by name, for a file without pickle."""
        found: dict[str, Tensor] = {}
        for name, weight in self._model.trained().items():
            found[f"weight/{name}"] = weight.detach()
            for key, value in self.optimizer.state.get(weight, {}).items():
                found[f"{key}/{name}"] = value
        return {name: tensor.cpu().contiguous() for name, tensor in found.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of `tensors`."""
        for name, weight in self._model.trained().items():
            with torch.no_grad():
                weight.copy_(tensors[f"weight/{name}"])
            state = {kind: tensors[f"{kind}/{name}"] for kind in _MOMENTS if f"{kind}/{name}" in tensors}
            if state:
                # The number of steps stays on the processor, whatever the device.
                self.optimizer.state[weight] = {
                    kind: value.clone() if kind == "step" else value.to(weight.device, copy=True)
                    for kind, value in state.items()
                }

    def _step(self) -> float:
        gradient = torch.nn.utils.clip_grad_norm_(list(self._model.trained().values()), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(gradient)

    def _train(
        self, rows: Sequence[TokenRow], objective: Any, *, backward: bool = True, entropy: bool = False
    ) -> float:
        """Add up the gradients of ``objective(number of the row, log-probabilities of its tokens, entropies)``. Returns the
        sum. The entropies (in nats, of the distribution that each token was drawn from) are None unless ``entropy`` is set.

        The beginning that all rows share is computed once. Its gradient is that of all rows together.
        """
        model = self._model
        shared = min(common_start([row.ids for row in rows]), *(row.trained()[0] - 1 for row in rows))
        shared = max(0, shared)
        prefix = model.prefix(rows[0].ids[:shared]) if shared else []
        cut = [(keys.detach().requires_grad_(), values.detach().requires_grad_()) for keys, values in prefix]
        value = 0.0
        for batch in _batches([len(row.ids) - shared for row in rows]):
            ids, positions, mask = model.padded([rows[number].ids[shared:] for number in batch], shared)
            hidden = model.hidden(ids, positions, mask, shared=(cut if backward else prefix) or None)
            places = [(at, place - shared) for at, number in enumerate(batch) for place in rows[number].trained()]
            at, place = (torch.tensor(each, device=model.device) for each in zip(*places, strict=True))
            # The state before a token predicts it.
            every = model.logits(hidden[at, place - 1]).log_softmax(dim=-1)
            counts = [sum(rows[number].mask) for number in batch]
            parts = every.gather(1, ids[at, place][:, None])[:, 0].split(counts)
            spread = (-(every.exp() * every).sum(dim=-1)).split(counts) if entropy else [None] * len(batch)
            loss = torch.stack([objective(*each) for each in zip(batch, parts, spread, strict=True)]).sum()
            if backward:
                loss.backward()
            value += loss.item()
        if backward and prefix:
            flat = [tensor for pair in prefix for tensor in pair]
            gradients = [tensor.grad for pair in cut for tensor in pair]
            torch.autograd.backward(flat, gradients)
        return value


def relative_rewards(rows: Sequence[TokenRow], *, scaled: bool = True) -> list[float]:
    """The advantage of each row in its group: the difference from the mean, ``scaled`` in standard deviations of the group.
    0 without a reward."""
    groups: dict[str | None, dict[str, float]] = {}
    for number, row in enumerate(rows):
        if row.reward is not None:
            # A thread whose token sequence breaks has several rows, and one reward.
            groups.setdefault(row.group, {})[row.thread or str(number)] = row.reward
    scales: dict[str | None, tuple[float, float]] = {}
    for name, threads in groups.items():
        values = list(threads.values())
        mean = sum(values) / len(values)
        scales[name] = mean, math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return [
        0.0
        if row.reward is None
        else (row.reward - scales[row.group][0]) / (scales[row.group][1] + 1e-4 if scaled else 1.0)
        for row in rows
    ]


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Group the numbers of rows into batches of similar length, because each row is padded to the longest."""
    out: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda n: lengths[n]):
        if out and (len(out[-1]) + 1) * lengths[number] <= _MOST_TOKENS:
            out[-1].append(number)
        else:
            out.append([number])
    return out
