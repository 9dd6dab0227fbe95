"""Training: `cantrip train` samples groups of casts of a small model, and updates its LoRA weights from their token rows.

`model` loads the weights, `sampler` decodes many queries at once, `server` offers it by the Chat Completions protocol,
`rollouts` casts through the real product, `learner` computes the update, `run` is the loop that survives a crash.
Only `model`, `sampler` and `learner` import torch, and nothing outside this folder imports them. Start with `run`.
"""

__all__ = ["example", "history", "rollouts", "run", "supervised"]
