"""`cantrip catalog`: the real command, and gates, mediums and providers of an installed package."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from cantrip_acp.tuplespace.catalog.build import build_catalog
from cantrip_acp.tuplespace.catalog.capabilities import Catalog
from tests.support.command_line import GREETER, run

FILE = Path(".catalog", "capabilities.json")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".cantrip").mkdir()
    (tmp_path / ".cantrip" / "greeter.cantrip.yaml").write_text(GREETER)
    return tmp_path


def test_build_writes_once_and_check_only_looks(project: Path) -> None:
    stale = run("catalog", "build", "--check", cwd=project)
    assert (stale.status, (project / FILE).exists()) == (1, False)
    assert "run cantrip catalog build" in stale.out
    built = run("catalog", "build", cwd=project)
    assert (built.status, built.err) == (0, "")
    before = (project / FILE).stat()
    assert run("catalog", "build", "--check", cwd=project).status == 0
    assert run("catalog", "build", cwd=project).out.endswith("is up to date\n")
    assert (project / FILE).stat().st_ino == before.st_ino

    (project / ".cantrip" / "greeter.cantrip.yaml").write_text(GREETER.replace("max_turns: 3", "max_turns: 4"))
    (project / ".cantrip" / "new.cantrip.yaml").write_text(GREETER.replace("greeter", "new"))
    stale = run("catalog", "build", "--check", "--json", cwd=project)
    (data,) = stale.lines
    assert stale.status == 1
    assert (data["up_to_date"], data["written"]) == (False, False)
    assert data["changes"]["added"] == ["agent.cast.new"]
    assert data["changes"]["changed"] == [{"name": "agent.cast.greeter", "fields": ["version", "input_schema"]}]
    assert (project / FILE).stat().st_mtime_ns == before.st_mtime_ns

    os.rename(project / FILE, project / "old.json")
    assert run("catalog", "build", cwd=project).status == 0
    assert json.loads((project / FILE).read_text())["catalog_id"] == data["catalog_id"]
    differs = run("catalog", "diff", "old.json", FILE, cwd=project)
    assert (differs.status, differs.out.splitlines()[:2]) == (
        0,
        [
            f"+ agent.cast.new ({_version(project, 'agent.cast.new')[:14]})",
            "* agent.cast.greeter: version, input_schema",
        ],
    )
    (same,) = run("catalog", "diff", FILE, FILE, "--json", cwd=project).lines
    assert (same["added"], same["removed"], same["changed"], same["nodes_read"]) == ([], [], [], 0)


def test_after_an_upgrade_of_a_package_check_fails_only_for_what_has_changed(project: Path) -> None:
    built = build_catalog(project)
    older = [replace(each, version="0.0.1") if each.kind in ("gate", "medium") else each for each in built]
    (project / FILE.parent).mkdir()
    (project / FILE).write_bytes(Catalog(older).to_json())
    checked = run("catalog", "build", "--check", cwd=project)
    assert (checked.status, "except for" in checked.out) == (0, True)
    (data,) = run("catalog", "build", "--check", "--json", cwd=project).lines
    assert (data["up_to_date"], data["written"]) == (True, False)

    described = [replace(each, description="Another") if each.name == "gate.done" else each for each in older]
    (project / FILE).write_bytes(Catalog(described).to_json())
    checked = run("catalog", "build", "--check", cwd=project)
    assert checked.status == 1
    assert "* gate.done: version, description" in checked.out

    # A recipe's version is its text, and no package's.
    recipes = [replace(each, version="sha256:0") if each.kind == "recipe" else each for each in built]
    (project / FILE).write_bytes(Catalog(recipes).to_json())
    assert run("catalog", "build", "--check", cwd=project).status == 1
    assert run("catalog", "build", cwd=project).status == 0
    assert (project / FILE).read_bytes() == built.to_json()


def _version(project: Path, name: str) -> str:
    (found,) = run("catalog", "lookup", name, "--json", cwd=project).lines
    return str(found["version"])


def test_lookup_and_list_read_the_file_or_else_the_project(project: Path) -> None:
    found = run("catalog", "list", "--lane", "greeter", "--json", cwd=project)
    assert [each["name"] for each in found.lines] == ["agent.cast.greeter"]
    assert run("catalog", "build", cwd=project).status == 0
    os.unlink(project / ".cantrip" / "greeter.cantrip.yaml")
    assert run("catalog", "lookup", "agent.cast.greeter", cwd=project).status == 0
    assert "gate.read_file" in run("catalog", "list", "--kind", "gate", cwd=project).out
    assert run("catalog", "list", "--lane", "none", cwd=project).out == ""
    unknown = run("catalog", "lookup", "agent.cast.greter", cwd=project)
    assert unknown.status == 2
    assert "did you mean 'agent.cast.greeter'" in unknown.err


def test_a_damaged_file_is_refused_and_built_again(project: Path) -> None:
    assert run("catalog", "build", cwd=project).status == 0
    text = (project / FILE).read_text()
    (project / FILE).write_text(text.replace('"lane": "greeter"', '"lane": "other"'))
    for command in (["list"], ["lookup", "gate.done"], ["diff", str(FILE), str(FILE)]):
        refused = run("catalog", *command, cwd=project)
        assert refused.status == 2
        assert "edited or merged by hand" in refused.err
    assert run("catalog", "build", "--check", cwd=project).status == 1
    assert run("catalog", "build", cwd=project).status == 0
    assert (project / FILE).read_text() == text


@pytest.mark.parametrize("link", [FILE, FILE.parent])
def test_a_link_is_never_written_through(project: Path, link: Path) -> None:
    target = project / "precious"
    if link == FILE:
        target.write_text("precious")
        (project / FILE.parent).mkdir()
    else:
        target.mkdir()
    (project / link).symlink_to(target)
    refused = run("catalog", "build", cwd=project)
    assert refused.status == 2
    assert "symbolic link" in refused.err
    assert target.read_text() == "precious" if link == FILE else not list(target.iterdir())


def test_what_other_packages_add_is_listed_with_their_version(tmp_path: Path) -> None:
    packages, project = tmp_path / "packages", tmp_path / "project"
    info = packages / "weather-1.7.dist-info"
    info.mkdir(parents=True)
    project.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weather\nVersion: 1.7\n")
    (info / "entry_points.txt").write_text(
        "[cantrip_acp.gates]\nforecast = weather:FORECAST\n"
        "[cantrip_acp.mediums]\nsky = weather:Sky\n[cantrip_acp.crystals]\ncloud = weather:cloud\n"
    )
    (packages / "weather.py").write_text(
        "from cantrip_acp import Gate\n"
        "def forecast(city: str, days: int = 1) -> str:\n    'Say the weather.'\n    return 'rain'\n"
        "FORECAST = Gate.of(forecast)\n"
    )
    listed = run("catalog", "list", "--json", cwd=project, PYTHONPATH=str(packages))
    ours = {each["name"]: each for each in listed.lines if each["source"] == "weather"}
    assert {each["version"] for each in ours.values()} == {"1.7"}
    assert sorted(ours) == ["gate.forecast", "medium.sky", "provider.cloud"]
    assert ours["gate.forecast"]["description"] == "Say the weather."
    assert [*ours["gate.forecast"]["input_schema"]["properties"]] == ["city", "days"]

    (packages / "weather.py").write_text("raise RuntimeError('no')")
    broken = run("catalog", "build", cwd=project, PYTHONPATH=str(packages))
    assert broken.status == 2
    assert "'forecast' cannot be loaded" in broken.err
