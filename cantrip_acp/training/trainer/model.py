"""The model: loads weights for torch, adds LoRA weights, and computes many sequences that begin with the same tokens.

The queries of a step share most of their prompt (system prompt, tools, demonstrations). Its keys and values are computed
once and used by all sequences, when they are sampled and when they are trained. All models of transformers that take an
attention function of their own work, such as those of the families Llama, Qwen, Mistral and SmolLM.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from cantrip_acp.crystals.embedded import weights
from cantrip_acp.files import paths
from cantrip_acp.types.errors import CantripError

KeysAndValues = list[tuple[Tensor, Tensor]]
"""The keys and values of each layer, each of the shape (sequences, heads, tokens, size)."""

_ATTENTION = "cantrip_shared_prefix"


class ModelError(CantripError):
    """A model cannot be loaded or trained. The text says why and what to do."""


class Recorder:
    """Takes the place of a cache of transformers: records the keys and values of one forward pass."""

    def __init__(self) -> None:
        self.layers: KeysAndValues = []

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.layers.append((keys, values))
        return keys, values


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    shared: KeysAndValues | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of each sequence to its own keys, and to those of ``shared``, which come before them.

    ``attention_mask`` (sequences, 1, queries, keys) is added to the scores of the own keys. Without it and without
    ``shared``, attention is causal.
    """
    rows, heads, length, size = query.shape
    groups: int = getattr(module, "num_key_value_groups", 1)
    scale = size**-0.5 if scaling is None else scaling
    if shared is None:
        keys, values = (each.repeat_interleave(groups, dim=1) for each in (key, value))
        out = torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=attention_mask, is_causal=attention_mask is None and length > 1, scale=scale
        )
        return out.transpose(1, 2), None
    before_keys, before_values = (each[0] for each in shared[module.layer_idx])
    key_heads, before = before_keys.shape[0], before_keys.shape[1]
    grouped = query.reshape(rows, key_heads, groups * length, size)
    # One product for all sequences: the shared keys are read once, not once for each sequence.
    flat = grouped.transpose(0, 1).reshape(key_heads, rows * groups * length, size)
    of_shared = (flat @ before_keys.transpose(1, 2)).view(key_heads, rows, groups * length, before).transpose(0, 1)
    of_own = grouped @ key.transpose(2, 3)
    if attention_mask is not None:
        of_own = (of_own.view(rows, key_heads, groups, length, -1) + attention_mask[:, :, None]).view(of_own.shape)
    scores = torch.cat([of_shared, of_own], dim=-1).float() * scale
    share = scores.softmax(dim=-1).to(query.dtype)
    out = share[..., before:] @ value
    flat = share[..., :before].transpose(0, 1).reshape(key_heads, rows * groups * length, before) @ before_values
    out = out + flat.view(key_heads, rows, groups * length, size).transpose(0, 1)
    return out.reshape(rows, heads, length, size).transpose(1, 2), None


class Model:
    """A causal language model with LoRA weights, and its tokenizer. Its methods belong to one thread."""

    def __init__(self, source: str, folder: Path, *, rank: int, alpha: float, seed: int) -> None:
        """``source`` is ``embedded:NAME``, ``gguf:FILE`` or a folder in the format of transformers, relative to ``folder``.

        Blocks for seconds. Raises `ModelError`.
        """
        # Standard error belongs to the command.
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        place = _weights(source, folder)
        self.device = _device()
        self.dtype = _fastest_dtype(self.device)
        AttentionInterface.register(_ATTENTION, attention)
        self.causal: Any = AutoModelForCausalLM.from_pretrained(
            place, dtype=self.dtype, attn_implementation=_ATTENTION, local_files_only=True
        ).to(self.device)
        if getattr(self.causal.config, "sliding_window", None) is not None:
            raise ModelError(f"{source}: models with a sliding window cannot be trained here; choose another model")
        self.tokenizer: Any = AutoTokenizer.from_pretrained(place, local_files_only=True)
        if not self.tokenizer.chat_template:
            raise ModelError(f"{source}: its tokenizer has no chat template; choose a model that was tuned for chat")
        self.causal.requires_grad_(False)
        torch.manual_seed(seed)
        # float32, whatever the model's type: a step of training is too small for bfloat16.
        config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules="all-linear", bias="none")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self.lora: Any = get_peft_model(self.causal, config)
        self.causal.eval()
        self._decoder = self.causal.get_decoder()
        self._head = self.causal.get_output_embeddings()
        ends = self.causal.generation_config.eos_token_id
        self.ends = frozenset(ends if isinstance(ends, list) else [ends]) | {self.tokenizer.eos_token_id}

    def trained(self) -> dict[str, Tensor]:
        """The LoRA weights by name, as they are trained."""
        return {name: weight for name, weight in self.causal.named_parameters() if weight.requires_grad}

    def hidden(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        *,
        cache: Any = None,
        shared: KeysAndValues | None = None,
    ) -> Tensor:
        """The last hidden states (sequences, tokens, size) of ``ids`` at ``positions``, both (sequences, tokens)."""
        more = {} if shared is None else {"shared": shared}
        out: Tensor = self._decoder(
            input_ids=ids, position_ids=positions, attention_mask=mask, cache=cache, use_cache=cache is not None, **more
        ).last_hidden_state
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden).float()

    def prefix(self, ids: Sequence[int]) -> KeysAndValues:
        """The keys and values of a common beginning of sequences."""
        recorder = Recorder()
        given = torch.tensor([list(ids)], device=self.device)
        self.hidden(given, torch.arange(len(ids), device=self.device)[None], None, cache=recorder)
        return recorder.layers

    def padded(self, rows: Sequence[Sequence[int]], start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, positions from ``start`` on, and the causal mask of sequences that are padded at their ends."""
        longest = max(map(len, rows))
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
        positions = torch.arange(start, start + longest).expand(len(rows), longest)
        # Padding comes last, so no real token sees it.
        mask = torch.full((longest, longest), float("-inf"), dtype=self.dtype).triu(1)
        return (
            ids.to(self.device),
            positions.to(self.device),
            mask[None, None].expand(len(rows), 1, longest, longest).to(self.device),
        )

    def save(self, folder: Path) -> None:
        """Write the LoRA weights in the format of peft."""
        self.lora.save_pretrained(str(folder))


def common_start(rows: Sequence[Sequence[int]]) -> int:
    """The number of tokens with which all sequences begin."""
    low, high = min(map(tuple, rows)), max(map(tuple, rows))
    most = min(len(low), len(high))
    return next((place for place in range(most) if low[place] != high[place]), most)


def _device() -> torch.device:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found if found is not None else torch.device("cpu")


def _fastest_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where this machine computes it faster than float32; many processors do not."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    times = {}
    for dtype in (torch.float32, torch.bfloat16):
        left, right = (torch.ones(512, 512, dtype=dtype, device=device) for _ in range(2))
        _ = (left @ right).sum().item()
        start = time.perf_counter()
        for _ in range(3):
            _ = (left @ right).sum().item()
        times[dtype] = time.perf_counter() - start
    return min(times, key=lambda dtype: times[dtype])


def _weights(source: str, folder: Path) -> Path:
    """A folder that transformers can load. A GGUF file is converted once, which takes some seconds; the result is cached."""
    provider, colon, name = source.partition(":")
    if not colon or provider not in ("embedded", "gguf"):
        place = folder / Path(source).expanduser()
        if not (place / "config.json").is_file():
            raise ModelError(
                f"no model at {place}: name embedded:smollm2, gguf:FILE, or a folder in the format of transformers"
            )
        return place
    if provider == "embedded" and name not in weights.KNOWN:
        raise ModelError(f"there is no embedded model {name!r}, only: {', '.join(weights.KNOWN)}")
    file = weights.find(provider, name, folder)
    status = file.stat()
    target = paths.cache_dir() / "models" / f"{file.stem}-{status.st_size:x}-{status.st_mtime_ns:x}-torch"
    if not target.is_dir():
        _convert(file, target)
    return target


def _convert(file: Path, target: Path) -> None:
    try:
        model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"{file}: transformers cannot read it: {error}") from None
    # Otherwise they would be saved as if they were still quantized.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    folder = paths.private(target.parent)
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(".convert-*"):
            # Its process was killed: it would hold the lock.
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".convert-", dir=folder) as place:
            new = Path(place) / "model"
            model.save_pretrained(str(new))
            tokenizer.save_pretrained(str(new))
            # Another process may have been faster.
            if not target.is_dir():
                os.rename(new, target)
    finally:
        os.close(lock)
