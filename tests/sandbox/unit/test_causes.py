"""Why a machine has no sandbox, from the recorded facts of such machines. The same commands are in docs/sandbox.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cantrip_acp.sandbox.launch import causes
from cantrip_acp.sandbox.launch.causes import Facts, explain
from cantrip_acp.types.errors import SandboxMissing

ROOT = Path(__file__).parents[3]
ENVIRONMENTS: list[dict[str, Any]] = YAML(typ="safe").load(Path(__file__).with_name("environments.yaml"))


def facts(environment: dict[str, Any]) -> Facts:
    files = environment["files"]
    return Facts(files.get, environment.get("environ", {}))


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda e: e["environment"].replace(" ", "-"))
def test_each_environment_gets_its_cause_and_its_command(environment: dict[str, Any]) -> None:
    found = explain(environment["words"], facts(environment))
    assert found.name == environment["cause"], found
    assert f"`{environment['mend']}`" in found.mend
    error = found.error()
    assert isinstance(error, SandboxMissing)
    assert error.mend == found.mend


def test_the_page_has_each_cause_with_its_command() -> None:
    rows: dict[str, str] = {}
    for line in (ROOT / "docs/sandbox.md").read_text("utf-8").splitlines():
        row = re.fullmatch(r"\| `([a-z0-9-]+)` \| (?:[^|\\]|\\.)* \| (.*) \|", line)
        if row:
            rows[row[1]] = row[2].replace("\\|", "|")
    missing = {e["cause"] for e in ENVIRONMENTS} | {causes.MISSING.name, causes.NOT_LINUX.name}
    assert sorted(missing - rows.keys()) == []
    for environment in ENVIRONMENTS:
        command = environment["mend"]
        if environment["cause"].startswith(("container-", "nested")):
            # The options depend on what the container limits. The page has all of them.
            for word in re.findall(
                r"[a-z]+=unconfined|label=disable|unmask=ALL|\"\w+\":\{?\"\w+\"(?::\"\w+\")?", command
            ):
                assert word in rows[environment["cause"]], (environment["environment"], word)
        else:
            assert command in rows[environment["cause"]], environment["environment"]


def test_an_error_that_no_environment_explains_is_that_of_one_command() -> None:
    found = explain("bwrap: Can't find source path /x: No such file or directory", Facts(lambda path: None, {}))
    assert found.name == "bubblewrap-failed"
    assert "Can't find source path /x" in found.text
    assert not isinstance(found.error(), SandboxMissing)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ("gVisor", "a docker container in gVisor"),
        ("Docker in WSL 2", "a docker container in WSL 2, with a system call filter, with parts of /proc covered"),
        ("Ubuntu 24.04", "no container, no outer sandbox"),
        (
            "Ubuntu 24.04 with the strict snap of an editor",
            "no container, with the security profile snap.editor.editor (enforce)",
        ),
    ],
)
def test_what_limits_programs_in_words(environment: str, words: str) -> None:
    assert facts(next(e for e in ENVIRONMENTS if e["environment"] == environment)).describe() == words
