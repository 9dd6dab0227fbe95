"""Workers that run the agents of AGENTS.md, names without versions, who may order what, and `tuple out --wait`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.tuplespace.catalog.build import build_catalog, runnable_agents
from cantrip_acp.tuplespace.catalog.capabilities import parse_catalog
from cantrip_acp.tuplespace.errors import TupleError
from tests.support import processes
from tests.support.postgres_server import Server
from tests.support.processes import CANTRIP

AGENTS = """\
# Agents

### lint
- yool_id: agent.lint.py.v1
- lane: build
- authority: [user, ci]
- run: `echo old {path}`

### lint, new
- yool_id: agent.lint.py.v2
- lane: build
- authority: [user, ci]
- run: cat {path} && echo linted >> log
- inputs: [src/**/*.py, "pyproject.toml"]
- env: [LINT_LEVEL]

### deploy
- yool_id: agent.deploy.site
- lane: build
- authority: ci
- run: echo deployed

### bot
- yool_id: agent.bot.sort
- lane: other
- authority: [agent]
- run: echo sorted
- inputs: []

### people
- yool_id: agent.people.talk
- lane: build
- inputs: whatever they say
- Role: talks
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "src").mkdir(parents=True)
    (made / "src" / "a.py").write_text("x = 1\n")
    (made / "AGENTS.md").write_text(AGENTS)
    return made


@pytest.fixture
def cantrip(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("CANTRIP_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("CANTRIP_TUPLE_SPACE", f"sqlite:{tmp_path}/space.db")

    def run(*words: str, cwd: Path = project) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cantrip_acp", *words]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)

    return run


def write(project: Path, *steps: str, n: int = 1, **more: Any) -> str:
    payload = [{"yool": each, **({"args": {"path": "src/a.py"}} if "lint" in each else {})} for each in steps]
    document = {"schema": "yool-tuple/v1", "lane": "build", "payload": payload, "map_pos": {"n": n}} | more
    (project.parent / "work.json").write_text(json.dumps(document))
    return str(project.parent / "work.json")


def rows(ran: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_a_worker_without_recipes_runs_the_agents_of_its_lane(cantrip: Run, project: Path) -> None:
    file = write(project, "agent.lint.py")
    assert cantrip("tuple", "out", file).returncode == 0
    ran = cantrip("worker", "--lane", "build", "--until-empty", "--json")
    assert ran.returncode == 0, ran.stderr
    [row] = rows(ran)
    assert row["receipt"]["yool"] == "agent.lint.py.v2", "the newest version, by its full name"
    assert row["receipt"]["result"]["stdout"] == "x = 1\n"
    # The same work under the full name reuses it, in words and as data.
    file = write(project, "agent.lint.py.v2", n=2)
    assert cantrip("tuple", "out", file).returncode == 0
    assert "reused" in cantrip("worker", "--lane", "build", "--until-empty").stdout
    assert (project / "log").read_text() == "linted\n"
    waited = cantrip("tuple", "out", file, "--wait")
    assert waited.returncode == 0
    assert waited.stdout.splitlines()[1].split()[:2] == ["agent.lint.py.v2", "reused"]
    old = write(project, "agent.lint.py.v1", n=3)
    assert cantrip("tuple", "out", old).returncode == 0
    [row] = rows(cantrip("worker", "--lane", "build", "--until-empty", "--json"))
    assert row["receipt"]["result"]["stdout"] == "old src/a.py\n"


def test_wait_prints_each_step_and_its_status_says_whether_all_went_well(cantrip: Run, project: Path) -> None:
    (project / "src" / "a.py").unlink()
    file = write(project, "agent.lint.py.v1", "agent.lint.py", "agent.lint.py.v1")
    with subprocess.Popen(
        [sys.executable, "-m", "cantrip_acp", "tuple", "out", file, "--wait"],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as waiting:
        assert waiting.stdout is not None
        assert "put into lane build" in waiting.stdout.readline()
        assert cantrip("worker", "--lane", "build", "--until-empty").returncode == 1
        said, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    first, second = (line.split(maxsplit=2) for line in said.splitlines())
    assert first[:2] == ["agent.lint.py.v1", "ran"]
    assert second[:2] == ["agent.lint.py.v2", "failed"]
    assert "No such file" in second[2]
    assert "failed: step 2" in errors


def test_who_may_order_it_is_asked_when_a_tuple_is_put(
    cantrip: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy = write(project, "agent.deploy.site")
    refused = cantrip("tuple", "out", deploy)
    assert refused.returncode == 2
    assert (
        "agent.deploy.site may be ordered by ci only (authority in the catalog), and user ordered it" in refused.stderr
    )
    assert cantrip("tuple", "out", write(project, "agent.deploy.site", authority={"agent": "a"})).returncode == 2
    assert cantrip("tuple", "status", "--json").stdout.count('"build"') == 0
    identity = rows_of_out(cantrip, deploy, monkeypatch, ci="true")
    assert cantrip("worker", "--lane", "build", "--until-empty").returncode == 0
    # Who puts it is no part of the work.
    assert rows_of_out(cantrip, deploy, monkeypatch, ci="1") == identity


def test_one_agent_may_be_named_and_no_agent_can_call_itself_a_user(cantrip: Run, project: Path) -> None:
    text = AGENTS.replace("- authority: ci", "- authority: [user, release-bot]")
    (project / "AGENTS.md").write_text(text)
    for name in ("other-bot", "user", "ci"):
        refused = cantrip("tuple", "out", write(project, "agent.deploy.site", authority={"agent": name}))
        assert (refused.returncode, "may be ordered by user or release-bot only" in refused.stderr) == (2, True)
    assert "the agent other-bot ordered it" in " ".join(
        cantrip("tuple", "out", write(project, "agent.deploy.site", authority={"agent": "other-bot"})).stderr.split()
    )
    put = cantrip("tuple", "out", write(project, "agent.deploy.site", authority={"agent": "release-bot"}))
    assert put.returncode == 0, put.stderr
    ran = cantrip("worker", "--lane", "build", "--until-empty", "--json")
    assert [row["state"] for row in rows(ran)] == ["done"]


def rows_of_out(cantrip: Run, file: str, monkeypatch: pytest.MonkeyPatch, ci: str) -> str:
    monkeypatch.setenv("CI", ci)
    Path(file).write_text(
        json.dumps({"schema": "yool-tuple/v1", "lane": "build", "payload": [{"yool": "agent.deploy.site"}]})
    )
    [row] = rows(cantrip("tuple", "out", file, "--json"))
    return str(row["tuple_id"])


def test_a_worker_asks_again_who_ordered_a_tuple(cantrip: Run, project: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert cantrip("tuple", "out", write(project, "agent.deploy.site"), cwd=elsewhere).returncode == 0
    ran = cantrip("worker", "--lane", "build", "--until-empty", "--json")
    assert ran.returncode == 1
    [row] = rows(ran)
    assert row["receipt"]["exit"] == 77
    assert "may be ordered by ci only" in row["receipt"]["error"]
    # A command of the command line with the name of an agent does not go round it.
    file = write(project, "agent.deploy.site", n=2)
    assert cantrip("tuple", "out", file, cwd=elsewhere).returncode == 0
    ran = cantrip("worker", "--lane", "build", "--until-empty", "--json", "--yool", "agent.deploy.site=echo hi")
    assert rows(ran)[0]["receipt"]["exit"] == 77


def test_the_catalog_has_what_runs_and_the_same_text_for_the_same_files(project: Path) -> None:
    catalog = build_catalog(project)
    lint = catalog.lookup("agent.lint.py")
    assert (lint.run, lint.inputs, lint.env) == (
        "cat {path} && echo linted >> log",
        ("src/**/*.py", "pyproject.toml"),
        ("LINT_LEVEL",),
    )
    assert lint.input_schema is not None
    assert lint.input_schema["required"] == ["path"]
    assert catalog.lookup("agent.bot.sort").inputs == ()
    assert catalog.lookup("agent.people.talk").inputs is None
    text = catalog.to_json()
    assert parse_catalog(text, "x").to_json() == text
    assert text == build_catalog(project).to_json()
    assert [each.name for each in runnable_agents(project, "build")] == [
        "agent.lint.py.v1",
        "agent.lint.py.v2",
        "agent.deploy.site",
    ]


@pytest.mark.parametrize(
    ("bullets", "line", "why"),
    [
        ("- run: echo '{path}'", 4, "between quotes"),
        ("- run: echo a\n- env: [API_TOKEN]", 5, "no secret enters a sandbox"),
        ("- run: echo a\n- recipe: review", 5, "it has run and recipe"),
        ("- run: echo a\n- network: [http://x/]", 5, "network"),
        ("- run:", 4, "run is empty"),
        ("- run: a\n- run: b", 5, "given twice"),
    ],
)
def test_a_mistake_has_its_file_and_line(project: Path, bullets: str, line: int, why: str) -> None:
    (project / "AGENTS.md").write_text(f"# Agent\n- yool_id: agent.a.b\n- lane: build\n{bullets}\n")
    with pytest.raises(TupleError, match=why) as caught:
        build_catalog(project)
    assert f"AGENTS.md:{line}" in str(caught.value)


def test_a_host_in_agents_md_needs_the_users_consent(cantrip: Run, project: Path) -> None:
    (project / "AGENTS.md").write_text(
        "# Agent\n- yool_id: agent.a.b\n- lane: build\n- run: echo a\n- network: [example.org]\n"
    )
    refused = cantrip("worker", "--lane", "build", "--until-empty")
    assert refused.returncode == 2
    assert "--allow-host example.org" in refused.stderr
    assert cantrip("worker", "--lane", "build", "--until-empty", "--allow-host", "example.org").returncode == 0


@pytest.mark.parametrize("named", ["review", "./other/review.cantrip.yaml"])
def test_an_agent_may_cast_a_recipe_that_may_run_here(cantrip: Run, project: Path, named: str) -> None:
    text = (
        "name: review\ncrystal:\n  provider: scripted\n  responses:\n"
        "    - {tool_calls: [{gate: done, args: {answer: Good.}}], repeat: true}\n"
        "circle:\n  medium: conversation\n  gates: [done]\n  wards: [{max_turns: 3}]\n"
    )
    path = project / ".cantrip" / "review.cantrip.yaml" if named == "review" else project / named
    path.parent.mkdir()
    path.write_text(text)
    (project / "AGENTS.md").write_text(
        f"# Reviewer\n- yool_id: agent.review.text.v3\n- lane: build\n- recipe: {named}\n"
    )
    step = {"yool": "agent.review.text", "args": {"intent": "Review it."}}
    assert cantrip("tuple", "out", write(project, payload=[step])).returncode == 0
    # The project names it, and not the user: so it needs trust, also by its path.
    path.write_text(text.replace("gates: [done]", "gates: [done, fetch]"))
    refused = cantrip("worker", "--lane", "build", "--until-empty")
    assert refused.returncode == 2
    assert "not trusted" in refused.stderr
    path.write_text(text)
    ran = cantrip("worker", "--lane", "build", "--until-empty", "--json")
    assert ran.returncode == 0, ran.stderr
    [row] = rows(ran)
    assert row["receipt"]["yool"] == "agent.review.text.v3"
    assert row["receipt"]["result"]["result"] == "Good."


def test_a_file_without_tuples_is_told(cantrip: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    put = cantrip("tuple", "out", str(tmp_path / "empty.jsonl"))
    assert (put.returncode, "empty.jsonl: there are no tuples" in put.stderr) == (2, True)


def files_of_the_page() -> dict[str, str]:
    """The files of the example at the beginning of docs/tuples.md."""
    page = (Path(__file__).parents[3] / "docs" / "tuples.md").read_text().partition("\n## A batch")[0]
    return dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", page, re.DOTALL))


def test_what_one_machine_has_tested_another_reuses(postgres: Server, tmp_path: Path) -> None:
    """The example of the documentation on two machines: two clones, two state folders, one PostgreSQL."""
    first, space = tmp_path / "one" / "prices", postgres.new_schema()
    for name, text in files_of_the_page().items():
        (first / name).parent.mkdir(parents=True, exist_ok=True)
        (first / name).write_text(text)
    author = ["-c", "user.name=Me", "-c", "user.email=me@example.org"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "Prices"]):
        subprocess.run(["git", *words], cwd=first, check=True)
    subprocess.run(["git", "remote", "add", "origin", "https://example.org/prices.git"], cwd=first, check=True)
    second = tmp_path / "two" / "elsewhere"
    subprocess.run(["git", "clone", "-q", str(first), str(second)], check=True)
    subprocess.run(["git", "remote", "set-url", "origin", "git@example.org:prices"], cwd=second, check=True)
    (second / "search.json").write_text((second / "login.json").read_text().replace("login", "search"))

    def run(folder: Path, *words: str) -> str:
        environment = {
            **os.environ,
            "CANTRIP_STATE_DIR": str(folder.parent / "state"),
            "CANTRIP_TUPLE_SPACE": space,
        }
        done = processes.run(
            [*CANTRIP, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def said(folder: Path, file: str) -> list[list[str]]:
        run(folder, "tuple", "out", file)
        run(folder, "worker", "--lane", "build", "--until-empty")
        return [line.split()[:2] for line in run(folder, "tuple", "out", file, "--wait").splitlines()[1:4]]

    lint, test, patch = "agent.lint.python.v1", "agent.test.python.v1", "agent.pr.patch.v1"
    assert said(first, "login.json") == [[lint, "ran"], [test, "ran"], [patch, "ran"]]
    assert said(second, "search.json") == [[lint, "reused"], [test, "reused"], [patch, "ran"]]
    assert (second / "search.patch").exists()
    # A change there is new work.
    (second / "src" / "prices.py").write_text("def total(prices):\n    return sum(prices) + 0\n")
    (second / "third.json").write_text((second / "login.json").read_text().replace("login", "third"))
    assert said(second, "third.json") == [[lint, "ran"], [test, "ran"], [patch, "ran"]]
