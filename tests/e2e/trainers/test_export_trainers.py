"""Exports read by the trainers' own libraries. They are hundreds of megabytes each: a test runs where its library is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Loom
from cantrip_acp.core import exports
from cantrip_acp.core.exports import ThreadSelection
from cantrip_acp.loom import rewards
from cantrip_acp.training.export.rows import write
from cantrip_acp.training.export.selection import Source
from cantrip_acp.training.importing.import_file import import_file
from tests.support.export_looms import forked, lived
from tests.support.letters_example import write_example
from tests.training.unit.test_export_formats import _sampled

pytestmark = pytest.mark.anyio


def _library(name: str) -> Any:
    return pytest.importorskip(
        name, reason=f"{name} is not installed (hundreds of megabytes, so not among the test tools)"
    )


async def looms() -> list[Loom]:
    long, _ = await lived()
    group = await forked()
    group.append(_sampled(group))
    return [long, group]


async def exported(name: str, folder: Path, **wanted: Any) -> list[Path]:
    found = []
    for number, loom in enumerate(await looms()):
        path = folder / f"{number}.jsonl"
        with path.open("wb") as file:
            write(exports.find(name), Source(loom, ThreadSelection(**wanted)), file)
        found.append(path)
    return found


async def test_verifiers_reads_traces_and_writes_the_same(tmp_path: Path) -> None:
    _library("verifiers")
    from verifiers.v1.trace import WireTrace
    from verifiers.v1.utils.trace_store import read_episodes

    for path in await exported("verifiers", tmp_path):
        (path.parent / "traces.jsonl").write_bytes(path.read_bytes())
        episodes = read_episodes(path.parent, WireTrace)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(episodes) == len(lines) > 0
        for episode, line in zip(episodes, lines, strict=True):
            (trace,) = episode.traces
            assert trace.num_turns == len(line["traces"][0]["calls"])
            assert trace.reward == (line["traces"][0]["rewards"] or {"reward": {"score": 0}})["reward"]["score"]
            for branch in trace.branches:
                assert branch.messages
                assert len(branch.token_ids) == len(branch.sampled_mask)
            again = [node.message.model_dump(mode="json", exclude_none=True) for node in trace.nodes]
            assert again == [node["message"] for node in line["traces"][0]["nodes"]]


async def test_what_verifiers_wrote_itself_is_imported(tmp_path: Path) -> None:
    _library("verifiers")
    from verifiers.v1.trace import WireTrace
    from verifiers.v1.utils.trace_store import read_episodes, write_episode

    for number, path in enumerate(await exported("verifiers", tmp_path)):
        (tmp_path / "traces.jsonl").write_bytes(path.read_bytes())
        own = tmp_path / f"own{number}"
        own.mkdir()
        for episode in read_episodes(tmp_path, WireTrace):
            write_episode(own, episode)
        into, again = Loom.memory(), Loom.memory()
        first = import_file(str(own / "traces.jsonl"), into)
        assert first.turns == import_file(str(path), again).turns > 0
        assert [t.utterance for t in into.turns()] == [t.utterance for t in again.turns()]
        assert not first.notes


async def test_art_reads_groups(tmp_path: Path) -> None:
    _library("art")
    from art.trajectories import History
    from art.utils.trajectory_migration import deserialize_trajectory_groups, dict_to_message_or_choice
    from openai.types.chat.chat_completion import Choice

    for path in await exported("art", tmp_path):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        groups = deserialize_trajectory_groups(path.read_text())
        assert len(groups) == len(lines) > 0
        for group, line in zip(groups, lines, strict=True):
            for trajectory, given in zip(group.trajectories, line["trajectories"], strict=True):
                assert trajectory.reward == given["reward"]
                assert [m["role"] for m in trajectory.messages()][-1] == "assistant"
                more = [
                    History(
                        messages_and_choices=[dict_to_message_or_choice(m) for m in h["messages_and_choices"]],
                        tools=h["tools"],
                    )
                    for h in given["additional_histories"]
                ]
                histories = [trajectory, *more]
                choices = [m for h in histories for m in h.messages_and_choices if isinstance(m, Choice)]
                assert len(choices) == given["metrics"]["trained_turns"]
    told = [c for g in groups for t in g.trajectories for c in t.messages_and_choices if isinstance(c, Choice)]
    (sampled,) = [c for c in told if c.logprobs is not None]
    assert [t.token for t in sampled.logprobs.content] == ["token_id:4", "token_id:5"]


async def test_harbor_reads_trajectories_and_writes_the_same(tmp_path: Path) -> None:
    models = _library("harbor.models.trajectories")
    for path in await exported("atif", tmp_path):
        for line in map(json.loads, path.read_text().splitlines()):
            assert models.Trajectory.model_validate(line).to_json_dict() == line


async def test_inspect_reads_logs_and_what_it_writes_is_imported(tmp_path: Path) -> None:
    log = _library("inspect_ai.log")
    for path in await exported("inspect", tmp_path):
        own = path.with_suffix(".eval")
        path.rename(own)
        found = log.read_eval_log(str(own))
        assert (found.status, len(found.samples)) == ("success", len(log.read_eval_log_sample_summaries(str(own))))
        again = own.with_name("again.json")
        log.write_eval_log(found, str(again))
        one, two = import_file(str(own), Loom.memory()), import_file(str(again), Loom.memory())
        assert one.record() == two.record()
        assert one.turns > 0


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is string else m.content | tojson }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}\n{% endfor %}"
)


async def test_trl_reads_both_kinds_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = _library("datasets")
    _library("trl")
    from transformers import PreTrainedTokenizerFast
    from trl.data_utils import apply_chat_template, is_conversational

    tokenizers = _library("tokenizers")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), chat_template=TEMPLATE
    )
    for name, keys in (("trl-sft", {"prompt", "completion"}), ("trl-preference", {"prompt", "chosen", "rejected"})):
        folder = tmp_path / name
        folder.mkdir()
        for path in await exported(name, folder):
            if not path.stat().st_size:
                assert name == "trl-preference"
                continue
            data = datasets.load_dataset("json", data_files=str(path), cache_dir=str(folder / "cache"))["train"]
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for row, line in zip(data, lines, strict=True):
                assert is_conversational(row)
                assert {k: row[k] for k in keys} == {k: line[k] for k in keys}
                tools = json.loads(row["tools"])
                told = apply_chat_template({k: row[k] for k in keys}, tokenizer, tools=tools)
                assert all(told.values())
                assert "[echo {" in "".join(told.values())


@pytest.mark.model
@pytest.mark.parametrize("name", ["trl-prompts", "trl-kto", "trl-stepwise"])
async def test_trl_trains_a_step(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = _library("datasets")
    torch, trl = _library("torch"), _library("trl")
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    torch.set_num_threads(1)
    write_example(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.chat_template = f"{TEMPLATE}{{% if add_generation_prompt %}}<assistant>{{% endif %}}"
    tokenizer.pad_token = tokenizer.eos_token
    file = tmp_path / "rows.jsonl"
    long, _ = await lived()
    with file.open("wb") as out:
        for loom in (long, await forked((0.9, 0.5, 0.3, 0.1))):
            for turn in list(loom.turns()):
                if turn.role == "crystal" and rewards.of_turn(loom, turn.id) is None:
                    loom.annotate_reward(turn.id, 0.4)
            write(exports.find(name), Source(loom), out)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    data = datasets.load_dataset("json", data_files=str(file), cache_dir=str(tmp_path / "cache"))["train"]
    settings = {
        "use_cpu": True,
        "bf16": False,
        "max_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
    }
    settings |= {"output_dir": str(tmp_path / "out"), "per_device_train_batch_size": 4}
    given: dict[str, Any] = {"processing_class": tokenizer, "train_dataset": data}
    model = str(tmp_path / "model")

    if name == "trl-prompts":
        seen: list[tuple[Any, Any]] = []

        def length(completions: Any, reference: Any, intent: Any, **_: Any) -> list[float]:
            seen.extend(zip(intent, reference, strict=True))
            return [float(len(each[0]["content"])) for each in completions]

        config = trl.GRPOConfig(num_generations=2, max_completion_length=8, **settings)
        trainer = trl.GRPOTrainer(model, length, config, **given)
    elif name == "trl-kto":
        trainer = trl.KTOTrainer(model, args=trl.KTOConfig(max_length=2048, **settings), **given)
    else:
        # TRL had this trainer until 1.13.
        prm = _library("trl.experimental.prm")
        judge = AutoModelForTokenClassification.from_pretrained(model, num_labels=2)
        trainer = prm.PRMTrainer(judge, args=prm.PRMConfig(max_length=2048, **settings), **given)
    trainer.train()

    assert trainer.state.log_history[0]["grad_norm"] > 0
    if name == "trl-prompts":
        asked = {(row["intent"], row["reference"]) for row in rows}
        assert len(seen) == 4
        assert set(seen) <= asked
    if name == "trl-kto":
        assert [row["label"] for row in trainer.train_dataset] == [row["label"] for row in rows]
    if name == "trl-stepwise":
        labels = [[label for label in row["labels"] if label != -100] for row in trainer.train_dataset]
        assert labels == [[int(label) for label in row["labels"]] for row in rows]
