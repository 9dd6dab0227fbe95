"""ART format (openpipe-art): one trajectory group per line, as ART's own ``deserialize_trajectory_groups`` reads it.

An utterance that a model sampled is a ``Choice`` and is trained; everything else is a message, also an utterance of a
script or a person. A thread that was folded, or
continues as a fork, has its later windows in ``additional_histories``, with each utterance as a ``Choice`` once. A
choice has log-probabilities where the provider gave them, and token ids as ``token_ids`` and ``prompt_token_ids``. Its
``request`` has the parameters of its query. The policy versions of a trajectory are the numbers at the end of the labels
of the weights (``step-12``: 12); its metadata has the labels themselves.
ART's reader (0.5) ignores ``additional_histories``: for folded threads, build them with ``dict_to_message_or_choice``,
as that reader does.

An utterance that several threads share is a choice in the first of them, in the order in which they ended. In the
others it is a message, so that it is trained once. The query that made a fold's summary is a history of its own, if its
tokens are recorded.

An answer that was rejected (`rejected`) is a trajectory of its own in the group of its thread.

A group has one prompt: forks of a turn, or casts of one intent. A single thread is a group of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cantrip_acp.core.history.replayed_context import Window, WindowUtterance
from cantrip_acp.training.export.export_format import export_format
from cantrip_acp.training.export.rejected import RejectedAnswer, failed_casts, rejected_answers
from cantrip_acp.training.export.rows import Sequences, entries, rendered, request_of, tools, weights_of
from cantrip_acp.training.export.selection import Episode, Source
from cantrip_acp.types.records import Turn
from cantrip_acp.types.usage import NO_USAGE, Usage

_NUMBER = re.compile(r"[0-9]{1,15}\Z")
_FINISHES = {"length": "length", "repetition": "length", "content_filter": "content_filter", "tool_calls": "tool_calls"}


@export_format(
    "art",
    "ART (openpipe-art): trajectory groups with choices, rewards, metrics, log-probabilities",
    marks_truncated=True,
)
def art(source: Source) -> Iterator[dict[str, Any]]:
    """One row per group."""
    grouped: dict[str, list[str]] = {}
    alone: list[str] = []
    owners: dict[str, str] = {}
    """The thread that trains a turn, by the turn."""
    for episode in source.episodes(marked=True):
        for turn_id in source.outline.own_path(episode.leaf):
            owners.setdefault(turn_id, episode.leaf)
        if episode.group is None:
            alone.append(episode.leaf)
        else:
            grouped.setdefault(episode.group, []).append(episode.leaf)
    failed: dict[str | None, list[tuple[str, list[dict[str, Any]]]]] = {}
    for episode, answers in failed_casts(source):
        trajectories = [_rejected(source, each) for each in answers]
        failed.setdefault(episode.group, []).append((episode.intent, trajectories))
    intents = {group.id: group.intent for group in source.groups}
    for group, leaves in grouped.items():
        intent = intents[group] if group in intents else source.episode(leaves[0]).intent
        row = _group(source, leaves, owners, {"group": group, "intent": intent})
        row["trajectories"] += [each for _, trajectories in failed.pop(group, ()) for each in trajectories]
        yield row
    for leaf in alone:
        yield _group(source, [leaf], owners, {"group": None, "intent": source.episode(leaf).intent})
    for intent, trajectories in failed.pop(None, ()):
        yield _row(trajectories, [], {"group": None, "intent": intent})
    for lost, casts in failed.items():
        yield _row([each for _, own in casts for each in own], [], {"group": lost, "intent": casts[0][0]})


def _group(source: Source, leaves: list[str], owners: dict[str, str], metadata: dict[str, Any]) -> dict[str, Any]:
    trajectories, exceptions = [], []
    for leaf in leaves:
        episode = source.episode(leaf)
        trajectories.append(_trajectory(source, episode, owners))
        trajectories += [_rejected(source, each) for each in rejected_answers(source, episode)]
        source.count_exported(leaf)
        if episode.error is not None:
            kind, _, words = episode.error.partition(": ")
            exceptions.append({"type": kind, "message": words, "traceback": ""})
    return _row(trajectories, exceptions, metadata)


def _row(
    trajectories: list[dict[str, Any]], exceptions: list[dict[str, Any]], metadata: dict[str, Any]
) -> dict[str, Any]:
    return {"trajectories": trajectories, "exceptions": exceptions, "metadata": metadata, "metrics": {}, "logs": []}


def _rejected(source: Source, answer: RejectedAnswer) -> dict[str, Any]:
    """A trajectory of a rejected answer: the prompt, and the answer as the only choice."""
    turn = answer.uttered.turn
    weights = weights_of(turn)
    return {
        **_history(source, answer.window, Sequences(source), {answer.uttered.at}),
        "additional_histories": [],
        "reward": answer.episode.reward,
        "initial_policy_version": _version(weights),
        "final_policy_version": _version(weights),
        "metrics": {
            "turns": 1,
            "trained_turns": 1,
            **_usage(turn.metadata.usage),
            "terminated": False,
            "truncated": True,
            "rewarded": True,
        },
        "metadata": {**answer.about(), "initial_weights": weights, "final_weights": weights},
        "logs": [],
    }


def _usage(used: Usage) -> dict[str, Any]:
    figures = {"prompt_tokens": used.prompt_tokens, "completion_tokens": used.completion_tokens, "cost": used.cost}
    # ART's metrics are numbers, so unknown values are left out.
    return {name: value for name, value in {**figures, **used.unknown()}.items() if value is not None}


def _trajectory(source: Source, episode: Episode, owners: dict[str, str]) -> dict[str, Any]:
    if episode.reward is None:
        source.note("a trajectory without a reward: 0 stands for it")
    sequences = Sequences(source)
    labels: list[str | None] = []
    histories: list[dict[str, Any]] = []
    turns, trained, seconds, used = 0, 0, 0.0, NO_USAGE
    for window in episode.queries():
        own = {
            uttered.at
            for uttered in window.uttered
            if owners[uttered.first] == episode.leaf and source.sampled(uttered.turn)
        }
        query = window.begun == "summary"
        histories.append(_history(source, window, Sequences(source) if query else sequences, own))
        trained += len(own)
        for uttered in window.uttered:
            counted = uttered.turn.metadata
            turns += not query
            if uttered.at in own:
                # Other utterances are no actions of this trajectory's policy, such as a demonstration of a script.
                labels.append(weights_of(uttered.turn))
            used = used + counted.usage
            seconds += counted.duration_ms / 1000
    if used.queries_without_usage:
        source.note(
            "usage that no provider reported: the counts of tokens are of the rest, and absent where nothing is known"
        )
    first = histories[0] if histories else {"messages_and_choices": [], "tools": None}
    return {
        **first,
        "additional_histories": histories[1:],
        "reward": episode.reward if episode.reward is not None else 0.0,
        "initial_policy_version": _version(labels[0]) if labels else None,
        "final_policy_version": _version(labels[-1]) if labels else None,
        "metrics": {
            "turns": turns,
            "trained_turns": trained,
            **_usage(used),
            "duration": seconds,
            "terminated": episode.complete,
            "truncated": episode.state == "truncated",
            "rewarded": episode.reward is not None,
        },
        "metadata": {
            **episode.about(),
            "initial_weights": labels[0] if labels else None,
            "final_weights": labels[-1] if labels else None,
        },
        "logs": [],
    }


def _version(label: str | None) -> int | None:
    found = _NUMBER.search(label or "")
    return int(found[0]) if found is not None else None


def _history(source: Source, window: Window, sequences: Sequences, own: set[int]) -> dict[str, Any]:
    said = {uttered.at: uttered for uttered in window.uttered}
    items = []
    for at, message in enumerate(window.messages):
        out = rendered(message, arguments="text", thinking="reasoning_content", note=source.note)
        # Call it for every utterance in order: the prompt of one continues that of the one before.
        choice = _choice(out, said[at], sequences) if at in said else None
        items.append(out if choice is None or at not in own else choice)
    return {"messages_and_choices": items, "tools": tools(window.tools) or None}


def _choice(message: dict[str, Any], uttered: WindowUtterance, sequences: Sequences) -> dict[str, Any]:
    turn = uttered.turn
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": _finish(turn),
        "message": {"refusal": None, **message},
        "logprobs": None,
    }
    if asked := request_of(turn):
        choice["request"] = asked
    sampled, prompt = sequences.of(turn)
    if sampled is not None:
        if sampled.logprobs:
            choice["logprobs"] = {"content": entries(sampled), "refusal": None}
        if sampled.ids:
            choice["token_ids"] = list(sampled.ids)
            if prompt:
                choice["prompt_token_ids"] = prompt
    return choice


def _finish(turn: Turn) -> str:
    stop = turn.metadata.stop_reason
    if isinstance(stop, str) and stop in _FINISHES:
        return _FINISHES[stop]
    return "tool_calls" if turn.utterance.tool_calls else "stop"
