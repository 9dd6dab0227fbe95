"""`cantrip train`: a real torch model that is sampled over HTTP through the real product, trained from exported token rows.

The model is a very small one with random weights, so that a step takes a second. The test of the package's example needs the
weights of `cantrip models pull smollm2`.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from cantrip_acp import Cantrip
from cantrip_acp.crystals.embedded import weights
from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.types.errors import CantripError, DefinitionError

pytest.importorskip("torch", reason="torch is not installed: pip install 'cantrip-acp[train]'")
pytest.importorskip("peft", reason="peft is not installed: pip install 'cantrip-acp[train]'")

import torch
from safetensors.torch import load_file

from cantrip_acp.loom import rewards
from cantrip_acp.loom.loom import Loom
from cantrip_acp.training.export.selection import Source
from cantrip_acp.training.trainer import supervised
from cantrip_acp.training.trainer.engine import Request
from cantrip_acp.training.trainer.example import Example, Question
from cantrip_acp.training.trainer.history import Step
from cantrip_acp.training.trainer.learner import Learner, TokenRow, relative_rewards
from cantrip_acp.training.trainer.model import Model, _weights
from cantrip_acp.training.trainer.rollouts import compared, roll_out
from cantrip_acp.training.trainer.run import STATE, Run, read_rows
from cantrip_acp.training.trainer.sampler import Sampler
from cantrip_acp.training.trainer.sampling_server import SamplerServer
from tests.support.letters_example import VERIFIER, write_example
from tests.support.processes import CANTRIP

ADAPTER = "adapter_model.safetensors"
pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an example, with a model in it that says random letters."""
    folder = tmp_path_factory.mktemp("letters")
    write_example(folder)
    return folder


def cantrip_of(example: Example, workspace: Path) -> Cantrip:
    return build(load(example.recipe, workspace), workspace=workspace, crystal=ScriptedCrystal([]))


async def test_tokens_are_equal_from_the_server_to_the_learner(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Example.load(str(example))
    settings = msgspec.structs.replace(found.settings, steps=1)
    asked: list[Request] = []
    submit = Sampler.submit
    monkeypatch.setattr(Sampler, "submit", lambda self, request: (asked.append(request), submit(self, request)))
    run = Run(found, settings, cantrip_of(found, tmp_path), tmp_path / "run")

    history = await run.train(lambda _: None)

    lines = tmp_path / "run" / "steps" / "0001" / "tokens.jsonl"
    rows = read_rows(lines)
    step = history[-1]
    # A cast fails if an answer is empty. That answer has a row of its own.
    assert len({row.thread for row in rows}) >= 8 - step.failed
    served = {(tuple(each.prompt), tuple(each.ids)): each.logprobs for each in asked}
    turns = [json.loads(line)["turns"] for line in lines.read_text().splitlines()]
    for row, said in zip(rows, turns, strict=True):
        sampled = []
        for turn in said:
            start, end = turn["start"], turn["end"]
            prompt = row.prompt_ids + row.response_ids[:start]
            assert list(row.logprobs[start:end]) == pytest.approx(served[prompt, row.response_ids[start:end]], abs=1e-6)
            sampled += range(start, end)
        assert [place for place, on in enumerate(row.mask) if on] == sampled
        assert row.reward is None or 0 <= row.reward <= 1
    assert sum(row.reward is not None for row in rows) >= 8 - step.failed
    assert len({row.group for row in rows}) == 2
    assert {json.loads(line)["weights"] for line in lines.read_text().splitlines()} == {"step-0"}
    # An answer without a call is followed by a message and a second answer, in the same row.
    assert max(map(len, turns)) == 2
    # The learner computes them again with the weights of the beginning.
    model = Model(settings.model, found.folder, rank=settings.rank, alpha=settings.alpha, seed=settings.seed)
    again = Learner(model, learning_rate=0.01, clip=0.2).logprobs(rows)
    # bfloat16 has 8 bits; float32 leaves the order of its sums.
    tolerance = 5e-3 if str(model.dtype) == "torch.float32" else 0.05
    for row, logprobs in zip(rows, again, strict=True):
        recorded = [logprob for logprob, on in zip(row.logprobs, row.mask, strict=True) if on]
        assert logprobs == pytest.approx(recorded, abs=tolerance)
    assert step.update["rows"] > 0
    assert step.update["difference"] < tolerance
    assert step.update["gradient"] > 0


def test_sharing_the_beginning_gives_the_gradient_of_each_row_alone(example: Path) -> None:
    model = Model("model", example, rank=4, alpha=8, seed=1)
    for name, weight in model.trained().items():
        if "lora_B" in name:
            weight.data.normal_(std=0.05)
    start = tuple(range(5, 45))
    rows = [
        TokenRow((*start, *more), said, mask, (-5.0,) * len(said), reward, "g")
        for more, said, mask, reward in (
            ((7, 8), (50, 51, 52), (1, 1, 1), 1.0),
            ((9,), (60, 61, 62, 63, 64), (1, 0, 0, 1, 1), 0.0),
        )
    ]

    def gradients(parts: list[list[TokenRow]]) -> list[Any]:
        for weight in model.trained().values():
            weight.grad = None
        learner = Learner(model, learning_rate=0.0, clip=0.2)
        for part in parts:
            learner._train(part, lambda _, logprobs, __: logprobs.sum())
        return [weight.grad.clone() for weight in model.trained().values()]

    # bfloat16 has 8 bits.
    tolerance = 1e-4 if str(model.dtype) == "torch.float32" else 1e-2
    for together, alone in zip(gradients([rows]), gradients([[rows[0]], [rows[1]]]), strict=True):
        assert together.flatten().tolist() == pytest.approx(alone.flatten().tolist(), abs=tolerance, rel=tolerance)


def test_equal_rewards_teach_nothing_and_an_entropy_bonus_changes_the_weights_all_the_same(example: Path) -> None:
    rows = [TokenRow((5, 6), (50 + n,), (1,), (-5.0,), 0.3, "g") for n in range(2)]

    def update(entropy: float) -> tuple[int, int, bool]:
        model = Model("model", example, rank=4, alpha=8, seed=1)
        before = [weight.clone() for weight in model.trained().values()]
        learner = Learner(model, learning_rate=0.01, clip=0.2, entropy=entropy)
        done = learner.update(rows)
        changed = any(not torch.equal(*each) for each in zip(before, model.trained().values(), strict=True))
        return done.rows, done.taught, changed

    assert update(0.0) == (0, 0, False)
    assert update(0.1) == (2, 0, True)


def test_rewards_count_by_their_difference_in_the_group() -> None:
    def row(reward: float | None, group: str, thread: str = "") -> TokenRow:
        return TokenRow((1,), (2,), (1,), (-1.0,), reward, group, thread)

    found = relative_rewards([row(1.0, "a"), row(0.0, "a"), row(0.7, "b"), row(0.7, "b"), row(None, "a")])
    assert found == pytest.approx([1.0, -1.0, 0.0, 0.0, 0.0], abs=1e-3)

    # A thread in two rows counts once.
    found = relative_rewards([row(1.0, "a", "t"), row(1.0, "a", "t"), row(0.0, "a", "u")])
    assert found == pytest.approx([1.0, 1.0, -1.0], abs=1e-3)


async def test_a_habit_is_compared_over_the_questions_of_a_pair(tmp_path: Path) -> None:
    """A model that always says "1" gets equal rewards in each question, and different ones in the pair."""
    always = [{"tool_calls": [{"gate": "done", "args": {"answer": "1"}}], "repeat": True}]
    folder = tmp_path / "ones"
    folder.mkdir()
    (folder / "verifier.py").write_text(
        "def score(thread, reference):\n    return float(str(thread.result) == str(reference))\n"
    )
    (folder / "ones.cantrip.yaml").write_text(
        "crystal: {provider: scripted, responses: []}\ncall: {system_prompt: Say it.}\n"
        "circle: {gates: [done], wards: [{max_turns: 2}], score: {python: verifier.py, at: cast}}\n"
    )
    questions = [Question("1 or 2?", 1, "p"), Question("2 or 1?", 2, "p"), Question("Alone?", 1)]
    cantrip = build(load(folder / "ones.cantrip.yaml", tmp_path), workspace=tmp_path, crystal=ScriptedCrystal([]))
    with Loom.open(tmp_path / "a.loom.jsonl") as loom:
        await roll_out(cantrip, ScriptedCrystal(always), loom, questions, [], samples=2)
        source = Source(loom)
        rows = [
            TokenRow((1,), (2,), (1,), (-1.0,), each.reward, each.group or each.leaf, each.leaf, each.cast_id)
            for each in source.episodes(marked=True)
        ]
        assert relative_rewards(rows, scaled=False) == [0.0] * 6
        found = compared(rows, loom, questions)
        by_intent = {
            source.episode(row.thread).intent: value
            for row, value in zip(found, relative_rewards(found, scaled=False), strict=True)
        }
    assert by_intent == {"1 or 2?": 0.5, "2 or 1?": -0.5, "Alone?": 0.0}


async def test_sft_learns_from_the_prompts_that_the_model_will_get(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, work = tmp_path / "distil", tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    for name in ("letters.cantrip.yaml", "verifier.py"):
        shutil.copy(example / name, folder)
    call = '```tool_call\n{"name": "done", "arguments": {"answer": "aeiou"}}\n```'
    shown = {"intent": "Say letters, please", "responses": [{"content": call}]}
    worse = {**shown, "reference": "aeiou", "responses": [{"content": "xyz"}, {"content": "xyz"}]}
    lines = [{**shown, "reference": "aeiou"}, worse]
    (folder / "demonstrations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "held_out.jsonl").write_text(json.dumps({"intent": shown["intent"], "reference": "aeiou"}) + "\n")
    (folder / "train.toml").write_text(
        f'method = "sft"\nmodel = "{example / "model"}"\nleast_reward = 0.2\nsteps = 20\neval_every = 30\n'
        "learning_rate = 0.02\n"
    )
    found = Example.load(str(folder))
    asked: list[Request] = []
    learned: list[list[TokenRow]] = []
    submit, imitate = Sampler.submit, Learner.imitate
    monkeypatch.setattr(Sampler, "submit", lambda self, request: (asked.append(request), submit(self, request)))
    monkeypatch.setattr(Learner, "imitate", lambda self, rows: (learned.append(rows), imitate(self, rows))[1])

    history = await Run(found, found.settings, cantrip_of(found, work), tmp_path / "run").train(lambda _: None)

    # The worse one is not learned.
    [row] = learned[0]
    assert list(row.prompt_ids) == asked[0].prompt
    model = Model(found.settings.model, folder, rank=16, alpha=32, seed=0)
    said = model.tokenizer.decode([token for token, on in zip(row.response_ids, row.mask, strict=True) if on])
    assert said == call + "<|end|>"
    losses = [step.update["loss"] for step in history[1:]]
    assert losses[-1] < losses[0] - 0.3
    settings = msgspec.structs.replace(found.settings, least_reward=2.0)
    run = Run(found, settings, cantrip_of(found, work), tmp_path / "none")
    with pytest.raises(ExceptionGroup) as caught:
        await run.train(lambda _: None)
    assert "no thread has a reward of at least 2" in str(caught.value.exceptions[0])


async def test_sft_learns_each_turn_of_a_program_in_the_sandbox(example: Path, tmp_path: Path) -> None:
    store = Example.load("store")
    model = Model("model", example, rank=4, alpha=8, seed=1)
    work = tmp_path / "work"
    work.mkdir()
    with Loom.open(tmp_path / "loom.jsonl") as loom:
        await supervised.play(cantrip_of(store, work), loom, store.demonstrations)
        rows = list(supervised.rows_of(loom, model, least_reward=1.0))

    assert len(rows) == len(store.demonstrations)
    for row, shown in zip(rows, store.demonstrations, strict=True):
        said = model.tokenizer.decode([token for token, on in zip(row.response_ids, row.mask, strict=True) if on])
        assert said == "".join(each["content"] + "<|end|>" for each in shown.responses)
        between = model.tokenizer.decode(
            [token for token, on in zip(row.response_ids, row.mask, strict=True) if not on]
        )
        # The gate's answer is read, and not learned.
        assert str(shown.reference) in between


async def test_the_store_rewards_only_what_the_cast_itself_asked(tmp_path: Path) -> None:
    store = Example.load("store")
    work = tmp_path / "work"
    work.mkdir()
    first = store.demonstrations[0]
    responses = [each for shown in store.demonstrations for each in shown.responses]
    guessed = {"content": f"```bash\ncantrip_done {first.reference}\n```"}
    other = {"content": "```bash\nstock ladders\n```"}
    script = ScriptedCrystal([*responses, guessed, other, guessed], tools="text")
    found = []
    with Loom.open(tmp_path / "loom.jsonl") as loom:
        async with cantrip_of(store, work).replace(crystal=script, loom=loom).invoke() as entity:
            for intent, reference in [(each.intent, each.reference) for each in store.demonstrations] + [
                (first.intent, first.reference)
            ] * 2:
                await entity.cast(intent, reference=reference)
                assert entity.last_turn is not None
                found.append(rewards.of_turn(loom, entity.last_turn))

    assert found == [1.0, 1.0, 0.0, 0.2]


async def test_a_query_that_fails_at_its_beginning_gets_the_reason(example: Path) -> None:
    sampler = Sampler(lambda: Model("model", example, rank=4, alpha=8, seed=1))
    try:
        told = threading.Event()
        request = Request([10**9], 8, 1.0, told.set)
        sampler.submit(request)
        assert await anyio.to_thread.run_sync(told.wait, 60)
        assert request.error is not None
    finally:
        sampler.close()


@pytest.mark.slow
async def test_a_killed_run_continues(example: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "cantrip_acp.cli.main", "train", str(example), "--out", str(out), "--json"]
    with subprocess.Popen([*command, "--steps", "500"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ended = [json.loads(process.stdout.readline())["number"] for _ in range(3)]
        found = Example.load(str(example))
        second = Run(found, msgspec.structs.replace(found.settings, steps=500), cantrip_of(found, tmp_path), out)
        with pytest.raises(CantripError, match="another process trains"):
            await second.train(lambda _: None)
        process.send_signal(signal.SIGKILL)
    assert ended == [0, 1, 2]
    # Between the line of a step and the signal, more steps may have ended.
    begun = Run(found, msgspec.structs.replace(found.settings, steps=500), cantrip_of(found, tmp_path), out).history
    last = begun[-1].number + 2
    run = Run(found, msgspec.structs.replace(found.settings, steps=last), cantrip_of(found, tmp_path), out)
    told: list[int] = []

    history = await run.train(lambda step: told.append(step.number))

    assert told == [last - 1, last]
    assert [step.number for step in history] == list(range(last + 1))
    assert history[: len(begun)] == begun
    trained = sum(step.update.get("rows", 0) > 0 for step in history)
    updates = {int(value) for name, value in load_file(out / STATE).items() if name.startswith("step/")}
    assert updates == {trained}
    assert sorted(each.name for each in (out / "steps").iterdir()) == [f"{n:04}" for n in range(1, last + 1)]
    assert "<polyline" in (out / "curve.html").read_text()
    assert (out / "adapter" / ADAPTER).is_file()
    with pytest.raises(DefinitionError, match="a run with another seed"):
        Run(found, msgspec.structs.replace(found.settings, seed=9), cantrip_of(found, tmp_path), out)


async def test_a_run_that_ends_in_its_last_save_saves_the_adapter_again(example: Path, tmp_path: Path) -> None:
    out, found = tmp_path / "run", Example.load(str(example))
    adapter = out / "adapter" / ADAPTER

    async def train(steps: int) -> list[Step]:
        settings = msgspec.structs.replace(found.settings, steps=steps)
        return await Run(found, settings, cantrip_of(found, tmp_path), out).train(lambda _: None)

    await train(1)
    # Nothing can be written in its place.
    adapter.unlink()
    adapter.mkdir()
    with pytest.raises(Exception, match=ADAPTER + "|TaskGroup"):
        await train(2)
    adapter.rmdir()
    assert [step.number for step in await train(2)] == [0, 1, 2]
    assert adapter.is_file()


def test_a_changed_verifier_and_a_model_of_this_folder_are_seen(tmp_path: Path) -> None:
    write_example(tmp_path / "one")
    (tmp_path / "one" / "verifier.py").write_text('print("loaded")\n' + VERIFIER)
    (tmp_path / "one" / "model").rename(tmp_path / "weights")

    def train(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*CANTRIP, "train", "one", "--model", "weights", "--out", "run", "--json", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done

    done = train("--steps", "1")
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["step", "step", "result"]
    assert "have changed" not in train("--steps", "1").stderr
    (tmp_path / "one" / "verifier.py").write_text(VERIFIER)
    again = train("--steps", "2")
    assert "since step 1, these files of the example have changed: verifier.py" in again.stderr


@pytest.mark.slow
def test_an_accelerator_trains_the_same(example: Path, tmp_path: Path) -> None:
    """On a simulated accelerator, which refuses tensors of two devices (tests/support/simulated_accelerator.py)."""
    found: dict[str, list[Any]] = {}
    for name, module in (("simulated", "tests.support.simulated_accelerator"), ("cpu", "cantrip_acp.cli.main")):
        updates = []
        for steps in (1, 3):  # The second command continues the run of the first.
            command = [sys.executable, "-m", module, "train", str(example), "--out", str(tmp_path / name), "--json"]
            done = subprocess.run(
                [*command, "--steps", str(steps), "--threads", "1"], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            assert f"the model runs on {name}, " in done.stderr
            *lines, end = [json.loads(line) for line in done.stdout.splitlines()]
            assert end["device"].partition(",")[0] == name
            updates += [line["update"] for line in lines if line["number"]]
        assert len(updates) == 3
        # Random letters can have equal rewards in one step.
        assert max(each["gradient"] for each in updates) > 0
        # The learner computed what the sampler recorded.
        tolerance = 1e-3 if "float32" in end["device"] else 0.05
        assert max(each["difference"] for each in updates) < tolerance
        found[name] = [each.shape for _, each in sorted(load_file(tmp_path / name / "adapter" / ADAPTER).items())]
        trained = load_file(tmp_path / name / STATE)
        assert all(value.abs().sum() > 0 for key, value in trained.items() if key.startswith("weight/"))
    assert found["simulated"] == found["cpu"]


@pytest.fixture
async def server(example: Path) -> Any:
    sampler = Sampler(lambda: Model("model", example, rank=4, alpha=8, seed=1))
    await sampler.run(lambda model: None)
    made = SamplerServer(sampler, "letters")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.serve)
        yield made
        made.stop()
    sampler.close()


async def test_the_server_continues_a_conversation_with_the_tokens_that_it_sampled(server: SamplerServer) -> None:
    server.forget("step-3")
    messages = [{"role": "user", "content": "Letters?"}]
    first = await ask(server, {"messages": messages, "max_tokens": 6, "seed": 5})
    choice = first["choices"][0]
    assert first["metadata"] == {"weight_version": "step-3"}
    assert 0 < len(choice["token_ids"]) == first["usage"]["completion_tokens"] <= 6

    messages += [choice["message"], {"role": "user", "content": "More."}]
    second = await ask(server, {"messages": messages, "max_tokens": 1})

    before = first["prompt_token_ids"] + choice["token_ids"]
    assert second["prompt_token_ids"][: len(before)] == before
    # The same seed gives the same answer.
    again = await ask(server, {"messages": messages[:1], "max_tokens": 6, "seed": 5})
    assert again["choices"][0]["token_ids"] == choice["token_ids"]


async def test_the_server_refuses_what_it_does_not_do(server: SamplerServer) -> None:
    messages = [{"role": "user", "content": "Letters?"}]
    for more, why in (
        ({"top_p": 0.5}, "top_p"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"messages": [{"role": "user", "content": "a " * 5000}]}, "maximum context length"),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            await ask(server, {"messages": messages, **more})
        assert refused.value.code == 400
        assert why in refused.value.read().decode()
    with pytest.raises(urllib.error.HTTPError) as stranger:
        await ask(server, {"messages": messages}, key="guessed")
    assert stranger.value.code == 401


async def ask(server: SamplerServer, body: dict[str, Any], key: str = "") -> Any:
    request = urllib.request.Request(
        f"{server.url}/chat/completions",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {key or server._token}", "content-type": "application/json"},
    )

    def send() -> Any:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    return await anyio.to_thread.run_sync(send)


@pytest.mark.slow
async def test_the_example_larger_trains_real_weights(tmp_path: Path) -> None:
    if not weights.KNOWN["smollm2"].pulled:
        pytest.skip("the weights are not here: cantrip models pull smollm2")
    pytest.importorskip("gguf")
    found = Example.load("larger")
    settings = msgspec.structs.replace(found.settings, steps=1, groups=2, samples=4, held_out=1)
    run = Run(found, settings, cantrip_of(found, tmp_path), tmp_path / "run")

    history = await run.train(lambda _: None)

    rows = read_rows(tmp_path / "run" / "steps" / "0001" / "tokens.jsonl")
    # With the demonstrations before them, some of the samples call `done`. Without, none would.
    assert any((row.reward or 0) > 0 for row in rows)
    assert history[-1].update["difference"] < 0.05


@pytest.mark.slow
def test_weights_are_converted_once_and_what_a_killed_process_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = weights.KNOWN["smollm2"]
    if not known.pulled:
        pytest.skip("the weights are not here: cantrip models pull smollm2")
    pytest.importorskip("gguf")
    source = f"gguf:{known.path}"
    monkeypatch.setenv("CANTRIP_CACHE_DIR", str(tmp_path))
    (tmp_path / "models" / ".convert-killed" / "model").mkdir(parents=True)

    found = _weights(source, tmp_path)

    assert list((tmp_path / "models").iterdir()) == [found]
    made = found.stat().st_mtime_ns
    assert (_weights(source, tmp_path), found.stat().st_mtime_ns) == (found, made)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Other tests run beside these; two threads that wait for each other would be slow."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
