"""An example for training, with a real model that says random letters: so small that a step takes a second."""

from __future__ import annotations

import json
from pathlib import Path

SEED = 0
RECIPE = """\
call: {temperature: 1, max_tokens: 12, require_done_tool: true}
circle:
  gates: [done]
  wards: [{max_turns: 2}]
  score: {python: verifier.py, at: cast}
retry: {max_retries: 0}
"""
VERIFIER = """\
def score(thread, reference):
    text = thread.leaf.utterance.content or ""
    return sum(letter in reference for letter in text) / max(1, len(text))
"""
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def write_example(folder: Path) -> None:
    """Write the example and its model into a folder. Needs torch, transformers and tokenizers."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|start|>", "<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([RECIPE, VERIFIER, TEMPLATE], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=TEMPLATE)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = LlamaConfig(
        vocab_size=len(fast),
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=fast.eos_token_id,
        attention_bias=True,
        **sizes,
    )
    # The same random weights in each run.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(config)
    # Its answers end after eight tokens on average, because every state points a little to the end.
    model.model.layers[-1].self_attn.o_proj.bias.data.fill_(1.0)
    model.lm_head.weight.data[fast.eos_token_id] = 4 / 64
    model.save_pretrained(folder / "model")
    fast.save_pretrained(folder / "model")
    write_questions(folder)


def write_questions(folder: Path) -> None:
    """Write the example without its model."""
    (folder / "letters.cantrip.yaml").write_text(RECIPE)
    (folder / "verifier.py").write_text(VERIFIER)
    (folder / "train.toml").write_text(
        'model = "model"\ngroups = 2\nsamples = 4\nsteps = 2\neval_every = 2\nheld_out = 2\nlearning_rate = 0.01\n'
    )
    lines = [{"intent": f"Say letters, please ({n})", "reference": "aeiou"} for n in range(6)]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:4]))
    (folder / "held_out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[4:]))
    shown = {
        "intent": "Say letters, please",
        "responses": [{"tool_calls": [{"gate": "done", "args": {"answer": "aeiou"}}]}],
    }
    (folder / "demonstrations.jsonl").write_text(json.dumps(shown) + "\n")
