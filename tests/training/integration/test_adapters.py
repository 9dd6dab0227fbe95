"""Adapters for other trainers: what a trainer's own function sampled is what the trainer gets back, token for token.

The tokens come from a function that a test scripts, through the real server, crystal, loom and export. The libraries are large, so
a test runs where its library is installed: trl, verl, skyrl (Python 3.12), agentlightning, verifiers.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from cantrip_acp.loom.loom import Loom
from cantrip_acp.training.adapters.casts import Casts, Sample
from cantrip_acp.training.adapters.token_engine import Answer, batched
from cantrip_acp.training.trainer.engine import Request
from cantrip_acp.types.errors import CantripError, DefinitionError
from tests.support import processes
from tests.support.letters_example import write_example, write_questions
from tests.support.networks import free_port

pytestmark = pytest.mark.timeout(300)

END = 256
MODEL = "Qwen/Qwen2.5-7B-Instruct"
"""The name of the model in the configuration of agent-lightning's server."""
STOP = ["<tool_result"]
"""The text that a model of text calls must not write."""
CALL = '```tool_call\n{"name": "done", "arguments": {"answer": "%s"}}\n```'


class Bytes:
    """A tokenizer of bytes, with what adapters use of transformers' tokenizers."""

    name_or_path = "bytes"
    eos_token_id = pad_token_id = END
    all_special_ids = (END,)

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **_: Any) -> str:
        return "".join(f"<{m['role']}>{m['content']}\0\n" for m in messages) + "<assistant>"

    def __call__(self, text: str, **_: Any) -> Any:
        return SimpleNamespace(input_ids=[END if byte == 0 else byte for byte in text.encode()])

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return bytes(i if i != END else 0 for i in ids if i != END or not skip_special_tokens).decode()


class Model:
    """Answers the first query of a cast without a call, and the second with one: the right one in every other question.
    Keeps what it read and sampled."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], list[int], list[float]]] = []
        self.params: list[dict[str, Any]] = []

    def sample(self, prompt: Sequence[int]) -> Answer:
        text = Bytes().decode(prompt)
        number = int(text.rpartition("please (")[2].partition(")")[0])
        said = CALL % ("aeiou", "bcd")[number % 2] if "Letters?" in text else "Letters?"
        ids = [*said.encode(), END]
        logprobs = [-0.001 * (n + 1) - len(self.asked) for n in range(len(ids))]
        self.asked.append((list(prompt), ids, logprobs))
        return ids, logprobs

    async def __call__(self, request: Request) -> Answer:
        return self.sample(request.prompt)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An example without demonstrations, and without a model."""
    folder = tmp_path / "letters"
    folder.mkdir()
    write_questions(folder)
    (folder / "demonstrations.jsonl").unlink()
    recipe = folder / "letters.cantrip.yaml"
    recipe.write_text(recipe.read_text() + "crystal: {provider: local, model: letters, tools: text}\n")
    (folder / "verifier.py").write_text("def score(thread, reference):\n    return float(thread.result == reference)\n")
    return folder


def check(model: Model, prompts: Any, responses: Any, masks: Any, logprobs: Any) -> None:
    """Each sequence is what the model read and sampled: two answers, and the message between them."""
    assert len(model.asked) == 2 * len(prompts)
    for prompt, response, mask, values in zip(prompts, responses, masks, logprobs, strict=True):
        ((_, said, first),) = [each for each in model.asked if each[0] == list(prompt)]
        ((read, answer, last),) = [each for each in model.asked if each[0] + each[1] == [*prompt, *response]]
        between = len(read) - len(prompt) - len(said)
        assert between > 0
        assert list(mask) == [1] * len(said) + [0] * between + [1] * len(answer)
        assert list(values) == pytest.approx([*first, *([0.0] * between), *last], abs=1e-6)


async def test_samples_are_what_the_function_sampled(folder: Path, tmp_path: Path) -> None:
    casts, model = Casts(folder, looms=tmp_path / "looms"), Model()
    questions = casts.example.train

    async with casts.serving(Bytes(), model, window=10_000, max_tokens=100, weights="step-3") as crystal:
        samples = await casts.sample(questions, crystal, temperature=0.5)

    assert [each.reward for each in samples] == [1.0, 0.0, 1.0, 0.0]
    assert all(each.ended and each.turns == 2 for each in samples)
    fields = ("prompt_ids", "response_ids", "mask", "logprobs")
    check(model, *([getattr(each, name) for each in samples] for name in fields))
    assert {row["weights"] for each in samples for row in each.rows} == {"step-3"}
    (file,) = (tmp_path / "looms").iterdir()
    with Loom.open(file) as loom:
        assert {turn.metadata.request.temperature for turn in loom.turns() if turn.metadata.sampled} == {0.5}


async def test_a_cast_that_fails_is_a_sample_without_tokens(folder: Path) -> None:
    casts, model = Casts(folder), Model()

    async def generate(request: Request) -> Answer:
        if "(1)" in Bytes().decode(request.prompt):
            raise OSError("the engine has stopped")
        return model.sample(request.prompt)

    async with casts.serving(Bytes(), generate, window=10_000, max_tokens=100, weights="") as crystal:
        samples = await casts.sample(casts.example.train, crystal, padding=END)
        with pytest.raises(CantripError, match=r"every cast failed.*OSError: the engine has stopped"):
            await casts.sample(casts.example.train[1:2], crystal)

    failed = samples.pop(1)
    assert failed == Sample([END], [END], [0], [0.0], reward=None, ended=False, turns=0)
    assert [each.reward for each in samples] == [1.0, 1.0, 0.0]


def test_a_prompt_that_is_no_question_is_refused(folder: Path) -> None:
    casts = Casts(folder)

    asked = casts.question([{"role": "system", "content": "Be brief."}, *casts.prompts()[2]["prompt"]])

    assert (asked.intent, asked.reference) == ("Say letters, please (2)", "aeiou")
    with pytest.raises(DefinitionError, match=r"not a question of the example.*train\.jsonl"):
        casts.question("Say numbers")
    with pytest.raises(DefinitionError, match=r"distil: has no questions to train"):
        Casts("distil").prompts()


async def test_queries_that_come_together_are_one_batch() -> None:
    batches: list[int] = []

    def generate(requests: Sequence[Request]) -> list[Answer]:
        batches.append(len(requests))
        if requests[0].prompt == [9]:
            raise OSError("out of memory")
        return [([each.prompt[0] + 1], [-1.0]) for each in requests]

    ask = batched(generate)
    requests = [Request([n], 1, 1.0, lambda: None) for n in range(4)]

    assert await asyncio.gather(*map(ask, requests)) == [([n + 1], [-1.0]) for n in range(4)]
    with pytest.raises(OSError, match="out of memory"):
        await ask(Request([9], 1, 1.0, lambda: None))
    assert await ask(requests[0]) == ([1], [-1.0])
    assert batches == [4, 1, 1]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    monkeypatch.delitem(sys.modules, "cantrip_acp.training.verifiers", raising=False)

    with pytest.raises(ImportError, match="pip install verifiers"):
        importlib.import_module("cantrip_acp.training.verifiers")


def test_what_the_adapters_share_imports_no_torch() -> None:
    code = "import sys, cantrip_acp.training.adapters.trl_rollouts; print([m for m in ('torch', 'trl') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.fixture
def trainer_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the adapters that are files of the docs, where Python finds them also in processes."""
    found = str(Path(__file__).parents[3] / "docs" / "trainers")
    monkeypatch.syspath_prepend(found)
    monkeypatch.setenv("PYTHONPATH", found, prepend=os.pathsep)


def adapter(name: str) -> Any:
    """The module of an adapter, if its library is installed."""
    if name == "skyrl_casts" and sys.version_info < (3, 12):
        pytest.skip("skyrl needs Python 3.12")
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{error} (hundreds of megabytes, so not among the test tools)")


@pytest.mark.usefixtures("trainer_files")
async def test_skyrl_gets_trajectories(folder: Path) -> None:
    skyrl, model = adapter("skyrl_casts"), Model()
    from skyrl.train.generators.base import BatchMetadata, TrajectoryID
    from skyrl.train.utils.trainer_utils import validate_generator_output

    class Client:
        """What SkyRL's engines do with one prompt."""

        async def generate(self, batch: dict[str, Any], model_name: str | None = None, **_: Any) -> dict[str, Any]:
            model.params.append(batch["sampling_params"])
            answers = [model.sample(each) for each in batch["prompt_token_ids"]]
            ids, logprobs = zip(*answers, strict=True)
            texts = [Bytes().decode(each, True) for each in ids]
            return {"responses": texts, "response_ids": ids, "stop_reasons": ["stop"], "response_logprobs": logprobs}

    generator = skyrl.CastGenerator(folder, Client(), Bytes(), window=10_000)
    prompts = [row["prompt"] for row in generator.prompts()]
    ids = [TrajectoryID(instance_id=str(n), repetition_id=0) for n in range(4)]
    found = await generator.generate(
        {
            "prompts": prompts,
            "env_classes": ["cantrip"] * 4,
            "env_extras": None,
            "sampling_params": {"temperature": 0.7, "max_tokens": 9, "top_p": 1.0, "logprobs": None, "stop": ["##"]},
            "trajectory_ids": ids,
            "batch_metadata": BatchMetadata(global_step=7, training_phase="train"),
        }
    )

    validate_generator_output(4, found)
    check(model, *(found[key] for key in ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs")))
    assert found["rewards"] == [1.0, 0.0, 1.0, 0.0]
    assert found["stop_reasons"] == ["stop"] * 4
    assert found["trajectory_ids"] == ids
    assert found["rollout_metrics"]["generate/max_num_tokens"] == max(map(len, found["response_ids"]))
    assert model.params[0] == {"temperature": 0.7, "max_tokens": 9, "top_p": 1.0, "logprobs": 0, "stop": ["##", *STOP]}


@pytest.mark.usefixtures("trainer_files")
async def test_verl_gets_an_agent_loop(folder: Path, tmp_path: Path) -> None:
    adapter("verl_casts")
    import hydra
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.workers.rollout.replica import TokenOutput

    model, sessions = Model(), []

    class Client:
        """What verl's `LLMServerClient` does with a prompt."""

        async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
            sessions.append(request_id)
            model.params.append(sampling_params)
            ids, logprobs = model.sample(prompt_ids)
            return TokenOutput(token_ids=ids, log_probs=logprobs, stop_reason="completed")

    # The registration as in the file of `agent_loop_config_path`, and the call as verl's worker makes it.
    target = "verl_casts.CastLoop"
    loops = OmegaConf.create([{"name": "cantrip", "_target_": target, "example": str(folder)}])
    rollout = {"prompt_length": 4000, "response_length": 4000}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})

    def loop() -> Any:
        return hydra.utils.instantiate(
            config=loops[0],
            trainer_config=DictConfigWrap(config=config),
            server_manager=Client(),
            tokenizer=Bytes(),
            processor=None,
            hf_model_type=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
        )

    params = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    prompts = [row["prompt"] for row in Casts(folder).prompts()]
    found: list[AgentLoopOutput] = await asyncio.gather(
        *(
            loop().run(dict(params), raw_prompt=prompt, data_source="letters", index=n)
            for n, prompt in enumerate(prompts)
        )
    )

    fields = ("prompt_ids", "response_ids", "response_mask", "response_logprobs")
    check(model, *([getattr(each, name) for each in found] for name in fields))
    assert [each.reward_score for each in found] == [1.0, 0.0, 1.0, 0.0]
    assert [each.num_turns for each in found] == [4] * 4
    # The queries of one cast go to one server.
    assert sorted(sessions.count(each) for each in set(sessions)) == [2] * 4
    assert model.params[0] == {**params, "max_tokens": 12, "stop": STOP}
    tensors = found[0].as_dict()
    assert tensors["rm_scores"][-1] == 1.0
    assert tensors["rollout_log_probs"].shape == tensors["responses"].shape == tensors["response_mask"].shape


class WholeAnswers(BaseHTTPRequestHandler):
    """A server of Chat Completions that reports token ids, as vLLM does, and streams nothing."""

    model: Model

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert asked["return_token_ids"]
        assert asked["temperature"] == 0.9
        prompt = Bytes()(Bytes().apply_chat_template(asked["messages"])).input_ids
        ids, logprobs = self.model.sample(prompt)
        entries = [{"token": f"token_id:{i}", "logprob": p} for i, p in zip(ids, logprobs, strict=True)]
        choice = {
            "index": 0, "finish_reason": "stop", "token_ids": ids, "logprobs": {"content": entries},
            "message": {"role": "assistant", "content": Bytes().decode(ids, True)},
        }  # fmt: skip
        answer = {"id": "c", "object": "chat.completion", "model": "letters", "prompt_token_ids": prompt}
        body = json.dumps({**answer, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.mark.usefixtures("trainer_files")
async def test_agent_lightning_runs_casts(folder: Path, tmp_path: Path) -> None:
    adapter("agent_lightning_casts")
    import httpx
    from agentlightning.client import AgentLightningAsyncClient

    model, key = Model(), "s3cret"
    port = free_port()
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (WholeAnswers,), {"model": model}))
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    hydra = [f"hydra.run.dir={tmp_path}/hydra"]
    gateway = [f"port={port}", f"key={key}", "host=127.0.0.1", "default_proxy.train.temperature=0.9", *hydra]
    runner = ["runner_type=local", f"agl_server.url=http://127.0.0.1:{port}", f"agl_server.key={key}", *hydra]
    started = [
        processes.Popen([sys.executable, "-m", f"agentlightning.{name}", *words], cwd=tmp_path)
        for name, words in (("server", gateway), ("controller", [*runner, "local_runner.poll_interval=0.1"]))
    ]
    local = {
        "agent_class": "agent_lightning_casts:CastAgent",
        "env_map": {"CANTRIP_EXAMPLE": str(folder), "CANTRIP_PROMPT": "input.prompt"},
    }
    tasks = [*Casts(folder).prompts()[:2], {"prompt": "Say numbers"}]
    try:
        async with AgentLightningAsyncClient(key=key, base_url=f"http://127.0.0.1:{port}") as client:
            while True:
                with suppress(httpx.TransportError):
                    await client.get("/healthz")
                    break
                await anyio.sleep(0.1)
            host, at = upstream.server_address[:2]
            await client.post("/api/models", json=[{"model": MODEL, "endpoint": f"http://{host!s}:{at}/v1"}])
            put = [{"input": task, "config": {"local": local}} for task in tasks]
            rollouts = [each["rollout_id"] for each in (await client.post("/api/rollouts", json=put)).json()]
            while True:
                found = [(await client.get(f"/api/rollouts/{each}")).json()["rollout"]["status"] for each in rollouts]
                if all(each["state"] in ("succeeded", "failed") for each in found):
                    break
                await anyio.sleep(0.2)
            events = [(await client.get(f"/api/rollouts/{each}/events?format=triplet")).json() for each in rollouts]
    finally:
        for process in started:
            process.terminate()
            process.wait(60)
        upstream.shutdown()
        upstream.server_close()

    # A prompt that is no question of the example fails its rollout.
    assert [each["state"] for each in found] == ["succeeded", "succeeded", "failed"]
    assert events.pop() == []
    assert [each[-1]["data"]["value"] for each in events] == [1.0, 0.0]
    queries = [each["data"] for own in events for each in own if each["event_type"] == "model_request"]
    queries = [each for each in queries if each["http_status"] == 200]
    assert len(queries) == len(model.asked) == 4
    for prompt, ids, logprobs in model.asked:
        (query,) = [each for each in queries if each["prompt_token_ids"] == prompt]
        assert query["response_token_ids"] == ids
        assert query["response_log_probs"] == pytest.approx(logprobs, abs=1e-6)


async def test_verifiers_runs_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vf = pytest.importorskip("verifiers.v1", reason="verifiers is not installed: pip install verifiers (570 MB)")
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    casts, model = Casts(folder), Model()
    taskset = {"id": "cantrip_verifiers", "example": str(folder), "split": "train"}
    env = load_environment(resolve_env_config({"taskset": taskset}))
    tasks = list(env.taskset)
    async with casts.serving(Bytes(), model, window=10_000, max_tokens=100, weights="") as crystal:
        endpoint = crystal.endpoint
        monkeypatch.setenv("LETTERS_KEY", endpoint.api_key.reveal())
        client = vf.EvalClientConfig(base_url=endpoint.base_url, api_key_var="LETTERS_KEY")
        async with env.serving():
            episodes = [await env.run_episode(task, vf.ModelContext("letters", client)) for task in tasks]

    assert [(trace.ok, trace.errors) for episode in episodes for trace in episode.traces] == [(True, [])] * 4
    traces = [trace for episode in episodes for trace in episode.traces]
    assert [trace.reward for trace in traces] == [1.0, 0.0, 1.0, 0.0]
    assert [trace.task.data.reference for trace in traces] == ["aeiou"] * 4
    # Both queries of a cast are in one branch of its trace. The expected answer is in none.
    assert [(len(trace.calls), len(trace.branches)) for trace in traces] == [(2, 1)] * 4
    assert traces[1].branches[0].messages[-1].content == CALL % "bcd"
    assert len(model.asked) == 8
    assert not any("aeiou" in Bytes().decode(prompt) for prompt, _, _ in model.asked)


@pytest.mark.model
async def test_trl_takes_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    for name in ("torch", "trl"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install {name} (hundreds of megabytes)")
    import torch
    from trl import GRPOConfig, GRPOTrainer

    from cantrip_acp.training.adapters.trl_rollouts import Rollouts, cast_reward

    torch.set_num_threads(1)
    torch.manual_seed(1)
    write_example(tmp_path)
    rollouts = Rollouts(tmp_path)
    seen: list[dict[str, list[Any]]] = []
    differences: list[float] = []

    def roll_out(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        found = rollouts(prompts, trainer)
        seen.append(found)
        # The weights of the step have not changed yet: they give the recorded log-probabilities.
        for prompt, completion, mask, logprobs in zip(
            *(found[key] for key in ("prompt_ids", "completion_ids", "env_mask", "logprobs")), strict=True
        ):
            ids = torch.tensor([prompt + completion])
            with torch.no_grad():
                values = trainer.model(ids).logits[0, len(prompt) - 1 : -1].float() / 1.25
            values = values.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()
            differences.extend(abs(a - b) for a, b, on in zip(values, logprobs, mask, strict=True) if on)
        return found

    arguments = GRPOConfig(
        output_dir=str(tmp_path / "out"), use_cpu=True, bf16=False, max_steps=1, num_generations=4, temperature=1.25,
        per_device_train_batch_size=16, max_completion_length=10, logging_steps=1, report_to=[], save_strategy="no",
    )  # fmt: skip
    trainer = GRPOTrainer(
        str(tmp_path / "model"), cast_reward, arguments, train_dataset=rollouts.dataset(), rollout_func=roll_out
    )
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()

    (found,) = seen
    lengths = {key: [len(each) for each in found[key]] for key in ("completion_ids", "env_mask", "logprobs")}
    assert lengths["completion_ids"] == lengths["env_mask"] == lengths["logprobs"]
    assert len(found["reward"]) == 16
    assert max(differences) < 1e-3
    # Some cast had a second answer, after the message between them. No answer is longer than the trainer's limit.
    assert any(0 in mask for mask in found["env_mask"])
    assert all(len(part) <= 10 for mask in found["env_mask"] for part in "".join(map(str, mask)).split("0"))
    # The reward that the recipe's scoring function gave is what the trainer learned from.
    log = trainer.state.log_history[0]
    assert log["rewards/cast_reward/mean"] == pytest.approx(sum(found["reward"]) / 16, abs=1e-5)
    assert log["grad_norm"] > 0
    assert any(not torch.equal(weight, before[name]) for name, weight in trainer.model.named_parameters())
