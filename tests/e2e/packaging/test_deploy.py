"""What `deploy/` holds: each file is accepted by its own tool, if that is installed, and its commands do what they say."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from cantrip_acp.cli.commands.cast_batch import cast_batch
from cantrip_acp.cli.commands.worker import worker
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.tuples import Pattern, new_tuple
from tests.support import command_line, postgres_server
from tests.support.waiting import wait_for

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
UNIT = DEPLOY / "systemd/cantrip-worker@.service"
SCRIPT = DEPLOY / "slurm/cantrip-workers.sbatch"
pytestmark = pytest.mark.skipif(not DEPLOY.is_dir(), reason="deploy/ is not in this package")


def run(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=60, env={**os.environ, **env})


def need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def compose() -> dict[str, Any]:
    return YAML(typ="safe").load(re.sub(r"\$\{(\w+):-([^}]*)\}", r"\2", (DEPLOY / "compose.yaml").read_text()))


def manifest(kind: str) -> dict[str, Any]:
    documents = YAML(typ="safe").load_all((DEPLOY / "kubernetes/worker.yaml").read_text())
    return next(each for each in documents if each["kind"] == kind)


def settings(unit: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in unit.splitlines() if re.match(r"[A-Z]\w*=", line))


def unit_command() -> list[str]:
    """The command of the unit, with the variables of its example file."""
    values = dict(
        line.split("=", 1)
        for line in (DEPLOY / "systemd/cantrip-worker.env").read_text().splitlines()
        if line[0] != "#"
    )
    text = settings(UNIT.read_text())["ExecStart"].replace("%i", "review")
    return shlex.split(re.sub(r"\$(\w+)", lambda name: values[name[1]], text))[1:]


def commands() -> Iterator[tuple[str, list[str]]]:
    yield "compose worker", compose()["services"]["worker"]["command"]
    yield "compose batch", compose()["services"]["batch"]["command"]
    yield "kubernetes", manifest("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    yield "systemd", unit_command()


@pytest.mark.parametrize(
    ("where", "words"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_command_lines_are_right(where: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DEPLOY / "example")
    command: click.Command = {"worker": worker, "cast-batch": cast_batch}[words[0]]
    context = command.make_context(words[0], list(words[1:]))
    assert context.params["lane"] in ("greetings", "review")


@pytest.mark.parametrize("tool", ["docker compose", "docker-compose", "podman-compose"])
def test_compose_accepts_the_compose_file(tool: str) -> None:
    words = [need(tool.split()[0]), *tool.split()[1:]]
    if run(*words, "version").returncode != 0:
        pytest.skip(f"{tool} does not work here")
    file = DEPLOY / "compose.yaml"
    done = run(*words, "-f", file, "config", POSTGRES_PASSWORD="x")
    assert done.returncode == 0, done.stderr
    assert "choose a password" in run(*words, "-f", file, "config").stderr


def test_kubernetes_accepts_the_manifest() -> None:
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed")
    program = Path(sys.executable).with_name("kubernetes-validate")
    for version in ("1.33", "1.37"):
        done = run(program, "-k", version, "--strict", DEPLOY / "kubernetes/worker.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(" passed ") + done.stderr.count(" passed ") == 4


def test_the_parts_of_the_manifest_fit_together() -> None:
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    secret, recipes = manifest("Secret"), manifest("ConfigMap")["data"]
    container = pod["containers"][0]
    assert {each["valueFrom"]["secretKeyRef"]["key"] for each in container["env"]} == set(secret["stringData"])
    given = YAML(typ="safe").load((DEPLOY / "example/greeter.cantrip.yaml").read_text())
    assert YAML(typ="safe").load(recipes["greeter.cantrip.yaml"]) == given
    scaled = manifest("ScaledObject")["spec"]
    assert scaled["scaleTargetRef"]["name"] == manifest("Deployment")["metadata"]["name"]
    [trigger] = scaled["triggers"]
    # KEDA refuses anything but texts here.
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    authentication = manifest("TriggerAuthentication")
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    [reference] = authentication["spec"]["secretTargetRef"]
    assert (reference["name"], reference["key"] in secret["stringData"]) == (secret["metadata"]["name"], True)
    assert f"--concurrency={trigger['metadata']['targetQueryValue']}" in container["args"]


def test_the_query_of_the_scaler_is_the_depth_of_the_lane() -> None:
    import psycopg

    query = manifest("ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]
    try:
        with postgres_server.running() as server:
            address = server.new_schema()
            store = open_store(address)
            steps = [{"yool": "a.b"}]
            store.put([new_tuple("greetings", steps, map_pos={"n": number}) for number in range(5)])
            store.put([new_tuple("other", steps)])
            store.claim(Pattern({"lane": "greetings"}), "w", lease_s=60, count=2)
            store.take(Pattern({"lane": "greetings"}))
            with psycopg.connect(address) as connection:
                assert connection.execute(query.encode()).fetchall() == [(4,)]
            store.close()
    except postgres_server.NoServer as why:
        pytest.skip(str(why))


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    verify = need("systemd-analyze")
    # The tool looks for the program and for the user, and a template needs the name of an instance.
    text = UNIT.read_text().replace("/opt/cantrip/bin/cantrip", sys.executable).replace("User=cantrip", "User=root")
    unit = tmp_path / "cantrip-worker@review.service"
    unit.write_text(text)
    done = run(verify, "verify", "--man=no", unit)
    if "Failed to" in done.stderr and "bus" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, "")
    wrong = tmp_path / "wrong@review.service"
    wrong.write_text(text.replace("KillMode=mixed", "KillMode=mixd"))
    assert "mixd" in run(verify, "verify", "--man=no", wrong).stderr


def test_the_slurm_script_is_a_right_script() -> None:
    assert run("bash", "-n", SCRIPT).returncode == 0
    done = run(need("shellcheck"), SCRIPT)
    assert done.returncode == 0, done.stdout


def test_slurm_accepts_the_script() -> None:
    sbatch = need("sbatch")
    if run(need("scontrol"), "ping").returncode != 0:
        pytest.skip("no Slurm controller runs here")
    done = run(sbatch, "--test-only", "--array=1-10", SCRIPT, "r.cantrip.yaml", "--lane", "a")
    assert done.returncode == 0, done.stderr


def in_slurm(tmp_path: Path, *words: str, script: Path = SCRIPT) -> subprocess.Popen[str]:
    """The script as Slurm starts it on a node."""
    return subprocess.Popen(
        ["bash", script, *words], cwd=tmp_path, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={
            **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TMPDIR": str(tmp_path),
            "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "2", "CANTRIP_TUPLE_SPACE": str(tmp_path / "space.db"),
        },
    )  # fmt: skip


def test_the_slurm_script_empties_its_lane_and_ends_with_the_first_signal(tmp_path: Path) -> None:
    for file in (DEPLOY / "example").iterdir():
        shutil.copy(file, tmp_path)
    batch = command_line.start(
        "cast-batch", "greeter.cantrip.yaml", "intents.jsonl", "--samples", "3", "--lane", "greetings", "--space", "space.db",
        cwd=tmp_path, CANTRIP_STATE_DIR=str(tmp_path / "state"),
    )  # fmt: skip
    store = open_store(tmp_path / "space.db")
    wait_for(lambda: store.waiting("greetings")[0] == 6)
    job = in_slurm(tmp_path, "greeter.cantrip.yaml", "--lane", "greetings")
    out, err = job.communicate(timeout=60)
    assert (job.returncode, out.count("done ")) == (0, 6), err
    batch.communicate(timeout=60)
    assert batch.returncode == 0
    # Now it has nothing to do. Slurm's signal goes to the process of the script, which is the worker.
    stays_there = tmp_path / "stay.sbatch"
    stays_there.write_text(SCRIPT.read_text().replace(" --until-empty", ""))
    stays = in_slurm(tmp_path, "greeter.cantrip.yaml", "--lane", "greetings", script=stays_there)
    assert stays.stderr is not None
    while "takes the tuples" not in (line := stays.stderr.readline()):
        assert line
    stays.send_signal(signal.SIGTERM)
    stays.communicate(timeout=60)
    assert stays.returncode == 0
    store.close()
