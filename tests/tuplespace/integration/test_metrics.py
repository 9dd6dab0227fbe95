"""A worker's metrics and its health check: what Prometheus and a scheduler read."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cantrip_acp.tuplespace.monitoring.metrics import parse_address
from cantrip_acp.tuplespace.stores import open_store
from tests.support import command_line, postgres_server
from tests.support.waiting import wait_for

RECIPE = """\
name: greeter
crystal:
  provider: scripted
  responses:
    - {when: broken, error: {message: "refused", code: bad}, repeat: true}
    - {when: slow, content: Late., delay_ms: 60000, repeat: true}
    - tool_calls: [{gate: done, args: {answer: Hello.}}]
      usage: {prompt_tokens: 10, completion_tokens: 5, cost: 0.25}
      repeat: true
circle: {medium: conversation, gates: [done], wards: [{max_turns: 3}]}
"""
LABELS = {"lane": "greetings"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "greeter.cantrip.yaml").write_text(RECIPE)
    return tmp_path


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def values(url: str) -> Callable[..., float | None]:
    """The samples of a worker, by name and labels."""
    _, text = get(f"{url}/metrics")
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return lambda name, **labels: found.get((name, tuple(sorted((LABELS | labels).items()))))


@contextmanager
def worker(folder: Path, space: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A worker and the address of its metrics."""
    process = command_line.start(
        "worker", "greeter.cantrip.yaml", "--lane", "greetings", "--space", space, "--metrics", "0", *words, cwd=folder,
        CANTRIP_STATE_DIR=str(folder / "state"),
    )  # fmt: skip
    assert process.stderr is not None
    try:
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "the worker ended"
            found = re.search(r"metrics are at (http://127\.0\.0\.1:\d+)/metrics", line)
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def put(space: str, folder: Path, *intents: str) -> None:
    from cantrip_acp.recipes import load
    from cantrip_acp.tuplespace.batch import Intent, batch_tuples, recipe_digest

    digest = recipe_digest(load(str(folder / "greeter.cantrip.yaml"), folder, state_dir=folder / "state"))
    store = open_store(space)
    terms = {"max_retries": 0}
    store.put(batch_tuples("greeter", digest, [Intent(each) for each in intents], lane="greetings", terms=terms))
    store.close()


def test_metrics_say_what_ended_what_it_cost_and_what_waits(folder: Path) -> None:
    space = f"sqlite:{folder}/space.db"
    with worker(folder, space) as (_, url):
        before = values(url)
        assert before("cantrip_tuples_ended_total", state="done") == 0
        assert before("cantrip_lane_waiting") == 0
        put(space, folder, "one", "two", "broken")
        wait_for(lambda: values(url)("cantrip_tuples_ended_total", state="failed") == 1)
        now = wait_for(lambda: v if (v := values(url))("cantrip_tuples_ended_total", state="done") == 2 else None)
        assert now("cantrip_cost_usd_total") == 0.5
        assert (now("cantrip_tokens_total", direction="input"), now("cantrip_tokens_total", direction="output")) == (
            20,
            10,
        )
        assert now("cantrip_step_duration_seconds_count", yool="agent.cast.greeter") == 3
        assert now("cantrip_step_duration_seconds_bucket", yool="agent.cast.greeter", le="+Inf") == 3
        assert get(f"{url}/healthz") == (200, '{"state": "ready"}')
        assert get(f"{url}/other")[0] == 404


def test_depth_and_age_of_the_lane_are_those_of_the_whole_space(folder: Path) -> None:
    space = f"sqlite:{folder}/space.db"
    put(space, folder, *(f"slow {number}" for number in range(5)))
    with worker(folder, space, "--concurrency", "2") as (process, url):
        now = wait_for(
            lambda: v if (v := values(url))("cantrip_tuples_running") == 2 and v("cantrip_lane_waiting") == 3 else None
        )
        assert (now("cantrip_lane_oldest_waiting_seconds") or 0) > 0
        process.send_signal(signal.SIGTERM)
        _, body = wait_for(lambda: answer if (answer := get(f"{url}/healthz"))[0] == 503 else None)
        assert json.loads(body)["state"] == "draining"
        assert "cantrip_worker_draining 1.0" in get(f"{url}/metrics")[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_store_that_is_gone_is_noticed_and_so_is_its_return(folder: Path) -> None:
    try:
        with postgres_server.running() as server:
            space = server.new_schema()
            with worker(folder, space) as (_, url):
                assert get(f"{url}/healthz")[0] == 200
                server.stop(signal.SIGQUIT)
                _, body = wait_for(lambda: answer if (answer := get(f"{url}/healthz"))[0] == 503 else None)
                assert json.loads(body)["state"] == "unreachable"
                text = get(f"{url}/metrics")[1]
                assert "cantrip_store_reachable 0.0" in text
                assert "cantrip_lane_waiting{" not in text
                server.start()
                wait_for(lambda: get(f"{url}/healthz")[0] == 200)
    except postgres_server.NoServer as why:
        pytest.skip(str(why))


def test_addresses_are_checked_before_anything_else(folder: Path) -> None:
    assert parse_address("9464") == ("127.0.0.1", 9464)
    assert parse_address("0.0.0.0:0") == ("0.0.0.0", 0)
    assert parse_address("[::1]:80") == ("::1", 80)
    for text in ("", "x", "host:", "host:x", "99999", "1:2:x"):
        done = command_line.run("worker", "greeter.cantrip.yaml", "--lane", "a", "--metrics", text, cwd=folder)
        assert (done.status, "is not [HOST:]PORT" in done.err) == (2, True), text
    with worker(folder, f"sqlite:{folder}/space.db") as (_, url):
        port = url.rpartition(":")[2]
        done = command_line.run(
            "worker", "greeter.cantrip.yaml", "--lane", "a", "--metrics", port, "--space", "other.db", cwd=folder
        )
        assert (done.status, done.err.count(f"cannot serve metrics at 127.0.0.1:{port}: ")) == (2, 1)


def test_without_the_library_the_extra_is_named(folder: Path) -> None:
    (folder / "prometheus_client.py").write_text("raise ImportError('not here')\n")
    done = command_line.run("worker", "greeter", "--lane", "a", "--metrics", "0", cwd=folder, PYTHONPATH=str(folder))
    assert (done.status, "pip install 'prometheus-client>=" in done.err) == (2, True)
