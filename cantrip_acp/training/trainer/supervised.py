"""Supervised fine-tuning (SFT): the model learns the answers in looms of another crystal, as if it had written them.

The looms are those that the settings name. Without any, a script plays the demonstrations, each as a cast of its own, with
the example's recipe. Only threads with enough reward teach. Their messages are put into the form in which the trained
model gets them, so it learns from the prompts that it will see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.core.exports import ThreadSelection
from cantrip_acp.core.history.replayed_context import Window
from cantrip_acp.crystals.openai.chat_messages import LOCAL
from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.loom.loom import Loom
from cantrip_acp.training.export.rows import rendered
from cantrip_acp.training.export.selection import Episode, Source
from cantrip_acp.training.export.sent_messages import Form, windows_as_sent
from cantrip_acp.training.trainer.example import Demonstration, Example
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.training.trainer.learner import TokenRow
    from cantrip_acp.training.trainer.model import Model

_FORM: Form = (LOCAL.family, "text", "nine")
"""The form in which `sampling_server.SamplerServer` gets messages."""


async def play(cantrip: Cantrip, loom: Loom, demonstrations: Sequence[Demonstration]) -> None:
    """Cast each demonstration's intent, with its responses as the crystal."""
    for each in demonstrations:
        script = ScriptedCrystal(list(each.responses), tools="text")
        await cantrip.replace(crystal=script, loom=loom).cast(each.intent, reference=each.reference)


def looms(example: Example) -> list[Path]:
    """The files that the settings name. Raises `DefinitionError` if one of the patterns names none."""
    found: list[Path] = []
    for pattern in example.settings.looms:
        try:
            files = sorted(example.folder.glob(pattern))
        except (ValueError, NotImplementedError) as error:
            raise DefinitionError(f"looms: {pattern!r}: {error}", where=str(example.folder)) from None
        if not files:
            raise DefinitionError(f"looms: no file {pattern!r}", where=str(example.folder))
        found += files
    return found


def rows_of(loom: Loom, model: Model, *, least_reward: float) -> Iterator[TokenRow]:
    """The token rows of a loom's threads. A thread has a second row where its messages do not continue the earlier ones."""
    for episode in Source(loom, ThreadSelection()).episodes(marked=True):
        if episode.reward is None or episode.reward >= least_reward:
            yield from _rows(episode, loom, model)


def _rows(episode: Episode, loom: Loom, model: Model) -> Iterator[TokenRow]:
    text, row = "", _Row()
    for window in episode.seen.windows(episode.leaf):
        for sent in windows_as_sent(window, loom, _FORM):
            for uttered in sent.uttered:
                asked = _text(model, sent, uttered.at, asks=True)
                answered = _text(model, sent, uttered.at + 1, asks=False)
                if not (text and asked.startswith(text)):
                    if row.answers:
                        yield row.done(episode)
                    text, row = "", _Row()
                row.add(model, asked[len(text) :], answered[len(asked) :])
                text = answered
    if row.answers:
        yield row.done(episode)


def _text(model: Model, window: Window, end: int, *, asks: bool) -> str:
    messages = [rendered(each, arguments="text", thinking=None, note=_unused) for each in window.messages[:end]]
    plain = [{"role": each["role"], "content": each["content"]} for each in messages]
    text: str = model.tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=asks)
    return text


def _unused(_: str) -> None:
    """Ignore notes: the model reads only text."""


class _Row:
    """A token row while answers are added to it."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.answers: list[range] = []

    def add(self, model: Model, asked: str, answered: str) -> None:
        self.ids += model.tokenizer(asked, add_special_tokens=False).input_ids
        said: list[int] = model.tokenizer(answered, add_special_tokens=False).input_ids
        # The template may write more after the token that ends the answer.
        ends = [place for place, token in enumerate(said) if token in model.ends]
        length = ends[0] + 1 if ends else len(said)
        self.answers.append(range(len(self.ids), len(self.ids) + length))
        self.ids += said

    def done(self, episode: Episode) -> TokenRow:
        from cantrip_acp.training.trainer.learner import TokenRow

        start, end = self.answers[0].start, self.answers[-1].stop
        trained = {place for each in self.answers for place in each}
        mask = tuple(int(place in trained) for place in range(start, end))
        return TokenRow(
            tuple(self.ids[:start]),
            tuple(self.ids[start:end]),
            mask,
            (0.0,) * (end - start),
            episode.reward,
            thread=episode.leaf,
        )
