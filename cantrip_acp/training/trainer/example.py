"""An example: what a model is trained on. A folder with a recipe, questions, demonstrations and settings."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.files.toml_file import TomlFile
from cantrip_acp.text.codecs import convert, json_decoder
from cantrip_acp.types.checked_values import nearest
from cantrip_acp.types.errors import DefinitionError

_T = TypeVar("_T")
EXAMPLES = Path(__file__).parent.parent / "examples"
"""The examples of the package, a folder each."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a run, in ``train.toml`` of an example.

    A step has ``groups`` questions with ``samples`` casts each. After every ``eval_every`` steps, ``held_out`` questions
    that are never trained are cast once. ``rank`` and ``alpha`` are those of the LoRA weights, ``clip`` bounds the ratio
    of probabilities in the update. ``entropy`` is the weight of a bonus for answers that stay various; without it, a model
    may settle on one answer to each question, and then no group teaches anything. ``scale_rewards`` divides the differences
    of a group by their standard deviation; without it, a small difference counts less than a large one. ``learning_rate``
    and ``entropy`` fall towards 0 in the second half of the steps.

    The method ``sft`` has no rollouts: each step trains ``groups`` times ``samples`` threads of other looms, those with a
    reward of at least ``least_reward``. ``looms`` are patterns of files in the example's folder; without any, the
    demonstrations are played and learned.
    """

    method: Literal["grpo", "sft"] = "grpo"
    looms: tuple[str, ...] = ()
    least_reward: float = 1.0
    model: str = "embedded:smollm2"
    groups: int = 4
    samples: int = 8
    steps: int = 40
    learning_rate: float = 1e-4
    rank: int = 16
    alpha: float = 32.0
    clip: float = 0.2
    entropy: float = 0.0
    scale_rewards: bool = True
    eval_every: int = 10
    held_out: int = 48
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("groups", "steps", "rank", "eval_every", "held_out"):
            if getattr(self, name) < 1:
                raise DefinitionError(f"must be at least 1, not {getattr(self, name)}", where=name)
        if self.samples < 2:
            why = "because a reward counts by its difference in the group"
            raise DefinitionError(f"must be at least 2, not {self.samples}, {why}", where="samples")
        for name in ("learning_rate", "alpha", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise DefinitionError(f"must be a number above 0, not {getattr(self, name)}", where=name)
        if not 0 <= self.entropy < math.inf:
            raise DefinitionError(f"must be a number of at least 0, not {self.entropy}", where="entropy")


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a dataset: the intent, and the expected answer, which only the verifier gets.

    Questions with the same ``pair`` are trained in the same step, and their casts are compared with each other. If one is
    the other with its choices swapped, a habit such as "always the first" is right in one and wrong in the other.
    """

    intent: str
    reference: Any = None
    pair: str | None = None

    def __post_init__(self) -> None:
        if not self.intent.strip():
            raise ValueError("the intent is empty")


class Demonstration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the demonstrations: an intent, the responses of a scripted crystal to it, and the expected answer."""

    intent: str
    responses: list[dict[str, Any]]
    reference: Any = None

    def __post_init__(self) -> None:
        if not self.intent.strip() or not self.responses:
            raise ValueError(f"the {'responses are' if self.intent.strip() else 'intent is'} empty")
        # Raises `DefinitionError` for a wrong response.
        ScriptedCrystal(self.responses)


@dataclass(frozen=True, slots=True)
class Example:
    """What a model is trained on: a folder with a recipe, ``train.jsonl`` (not for the method ``sft``), ``held_out.jsonl``,
    and, if it has them, ``demonstrations.jsonl`` and ``train.toml``."""

    folder: Path
    recipe: Path
    settings: Settings
    train: list[Question]
    held_out: list[Question]
    demonstrations: list[Demonstration]

    def draw(self, count: int, chance: random.Random) -> list[Question]:
        """Up to ``count`` random training questions. Those of a pair stay together, but the last pair may be cut."""
        pairs: dict[str, list[Question]] = {}
        for number, question in enumerate(self.train):
            pairs.setdefault(str(number) if question.pair is None else f"pair {question.pair}", []).append(question)
        names = list(pairs)
        chance.shuffle(names)
        return [question for name in names for question in pairs[name]][:count]

    @classmethod
    def load(cls, name: str) -> Example:
        """The example in a folder, or the package's example with this name. Raises `DefinitionError`."""
        folder = Path(name).expanduser()
        if not folder.is_dir():
            known = sorted(each.name for each in EXAMPLES.iterdir() if (each / "held_out.jsonl").is_file())
            if name not in known:
                raise DefinitionError(f"{name} is neither a folder nor an example of the package: {', '.join(known)}")
            folder = EXAMPLES / name
        recipes = sorted(folder.glob("*.cantrip.yaml"))
        if len(recipes) != 1:
            raise DefinitionError(f"must contain one recipe (*.cantrip.yaml), not {len(recipes)}", where=str(folder))
        demonstrations = folder / "demonstrations.jsonl"
        return cls(
            folder,
            recipes[0],
            (settings := _settings(folder / "train.toml")),
            _lines(folder / "train.jsonl", Question) if settings.method == "grpo" else [],
            _lines(folder / "held_out.jsonl", Question),
            _lines(demonstrations, Demonstration) if demonstrations.is_file() else [],
        )


def _settings(path: Path) -> Settings:
    """The settings in a file, or the defaults if there is none. Raises `DefinitionError` with the line of the mistake."""
    if not path.is_file():
        return Settings()
    file, known = TomlFile.read(path), Settings.__struct_fields__
    for key in file.data:
        if key not in known:
            raise file.error(f"unknown setting {key!r}{nearest(key, known)}", key)
    try:
        return convert(file.data, Settings)
    except msgspec.ValidationError as error:
        reason, _, key = str(error).partition(" - at `$.")
        raise file.error(reason, re.split(r"[.\[`]", key)[0]) from None
    except DefinitionError as error:
        raise file.error(error.reason, error.where or "") from None


def _lines(file: Path, kind: type[_T]) -> list[_T]:
    """The lines of a file, one JSON object each. Raises `DefinitionError` with the line."""
    out: list[_T] = []
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"cannot be read: {error}", where=str(file)) from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                out.append(json_decoder(kind).decode(line))
            except (msgspec.DecodeError, DefinitionError) as error:
                raise DefinitionError(str(error), where=f"{file}:{number}") from None
    if not out:
        raise DefinitionError("is empty", where=str(file))
    return out
