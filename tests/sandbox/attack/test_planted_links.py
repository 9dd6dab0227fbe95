"""Links that a command, or a repository, puts where the host writes later.

The sandbox makes the link; then the user's own command runs on the host. Nothing outside may change, and the command says
which link it found.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_acp import Loom, Turn
from cantrip_acp.evaluation.run import SAMPLES, ResultFolder
from cantrip_acp.git.project_identity import project_id
from cantrip_acp.sandbox import Sandbox, SandboxOptions
from cantrip_acp.types.errors import DefinitionError
from cantrip_acp.types.records import CantripRecord, CastRecord
from tests.sandbox.attack.attack_scene import Scene
from tests.support.command_line import Done, run

TUPLE = (
    '{"schema":"yool-tuple/v1","lane":"b","payload":[{"yool":"agent.lint.ruff","args":{"intent":"$(touch pwned)"}}]}'
)
RECIPE = """
name: one
crystal: {provider: scripted, responses: [{tool_calls: [{gate: done, args: {answer: x}}]}]}
circle: {gates: [done], wards: [{max_turns: 2}]}
"""


async def plant(scene: Scene, command: str) -> None:
    """Run a command in the sandbox that may write the whole workspace."""
    wards = SandboxOptions(bash_writable_paths=(str(scene.workspace),))
    outcome = await Sandbox(wards, scene.workspace, host=scene.host).run(command)
    assert outcome.exit_code == 0, outcome


def refused(done: Done, *words: str) -> None:
    assert done.status != 0, done
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err, done.err


def outside(scene: Scene) -> dict[str, str]:
    """Everything beside the workspace and the databases that the test made."""
    return {
        path: text for path, text in scene.picture().items() if str(scene.workspace) not in path and ".db" not in path
    }


# The catalog and the log of a project


async def test_a_command_makes_no_catalog(scene: Scene) -> None:
    wards = SandboxOptions(bash_writable_paths=(str(scene.workspace),))
    box = Sandbox(wards, scene.workspace, host=scene.host)
    await box.run(
        "mkdir .catalog; ln -s ../../beside/file .catalog/tuples.jsonl; ln -s ../beside .catalog; mkdir .Catalog;"
        "ln -s ../beside moved; mv moved .catalog; rmdir .catalog; ln -s ../beside .catalog"
    )
    assert not (scene.workspace / ".catalog").is_symlink()
    assert not list((scene.workspace / ".catalog").glob("*"))
    (scene.workspace / ".catalog").mkdir()
    (scene.workspace / ".catalog/policy.yaml").write_text("mine\n")
    outcome = await box.run(
        "echo evil > .catalog/policy.yaml; ln -sf ../../beside/file .catalog/tuples.jsonl; mv .catalog x"
    )
    assert "Read-only" in outcome.stderr or "not permitted" in outcome.stderr or "busy" in outcome.stderr
    assert [each.name for each in (scene.workspace / ".catalog").iterdir()] == ["policy.yaml"]
    assert (scene.workspace / ".catalog/policy.yaml").read_text() == "mine\n"


def _log(scene: Scene) -> Path:
    folder = scene.workspace / ".catalog"
    folder.mkdir()
    return folder


def _linked_log(scene: Scene) -> None:
    (_log(scene) / "tuples.jsonl").symlink_to("../../beside/file")


def _dangling_lock(scene: Scene) -> None:
    (_log(scene) / "tuples.lock").symlink_to("../../beside/new")


def _linked_folder(scene: Scene) -> None:
    (scene.workspace / ".catalog").symlink_to("../beside")


def _linked_receipts(scene: Scene) -> None:
    (_log(scene) / "receipts").symlink_to("../../beside")


def _hard_link(scene: Scene) -> None:
    os.link(scene.beside / "file", _log(scene) / "tuples.jsonl")


def _packed_log(scene: Scene) -> None:
    """A log of yesterday, which is packed: the place of the packed file is a link."""
    log = _log(scene) / "tuples.jsonl"
    log.write_text("{}\n")
    os.utime(log, (1_700_000_000, 1_700_000_000))
    (log.parent / "tuples-2023-11-14.jsonl.gz").symlink_to("../../beside/file")


LOGS: dict[str, Callable[[Scene], None]] = {
    "the log": _linked_log,
    "the lock, dangling": _dangling_lock,
    "the folder": _linked_folder,
    "the receipts": _linked_receipts,
    "a second name of a file outside": _hard_link,
    "the packed log": _packed_log,
}


@pytest.mark.parametrize("words", [("export",), ("sync",)], ids=lambda w: w[0])
@pytest.mark.parametrize("planted", LOGS.values(), ids=LOGS)
def test_the_log_of_a_project_follows_no_link(
    planted: Callable[[Scene], None], words: tuple[str], scene: Scene
) -> None:
    space = scene.base / "s.db"
    run("tuple", "out", "-", "--space", space, cwd=scene.workspace, stdin=TUPLE)
    if planted is _linked_receipts:
        (scene.workspace / "one.cantrip.yaml").write_text(RECIPE)
        (scene.workspace / "i.txt").write_text('"go"\n')
        assert run("cast-batch", "one.cantrip.yaml", "i.txt", "--space", space, cwd=scene.workspace).status == 0
    planted(scene)
    before = outside(scene)
    done = run("tuple", *words, "--space", space, cwd=scene.workspace)
    assert outside(scene) == before
    refused(done, ".catalog", "second name" if planted is _hard_link else "symbolic link")


def test_a_log_that_is_watched_follows_no_link_of_later(scene: Scene) -> None:
    space = scene.base / "s.db"
    words = ("tuple", "export", "--space", space)
    run("tuple", "out", "-", "--space", space, cwd=scene.workspace, stdin=TUPLE)
    assert run(*words, cwd=scene.workspace).status == 0
    log = scene.workspace / ".catalog/tuples.jsonl"
    assert json.loads(log.read_text())["lane"] == "b"
    log.unlink()
    log.symlink_to(scene.beside / "file")
    before = outside(scene)
    refused(run(*words, cwd=scene.workspace), "symbolic link", str(scene.beside / "file"))
    assert outside(scene) == before
    log.unlink()
    assert run(*words, cwd=scene.workspace).status == 0
    assert not log.is_symlink()


@pytest.mark.parametrize("link", [".catalog", ".catalog/capabilities.json"])
def test_the_catalog_follows_no_link(link: str, scene: Scene) -> None:
    place = scene.workspace / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(scene.beside if link == ".catalog" else scene.beside / "file")
    before = outside(scene)
    refused(run("catalog", "build", cwd=scene.workspace), "symbolic link", link)
    assert outside(scene) == before


# Files that a user names for output


def _loom(scene: Scene) -> Path:
    path = scene.base / "a.loom.jsonl"
    with Loom.open(path) as loom:
        loom.append(CantripRecord("c", {"system_prompt": "You greet."}, {}))
        loom.append(Turn("t0", None, "c", "e", None, role="call"))
        loom.append(CastRecord("k", "start", "e", "c", intent="go"))
        loom.append(Turn("t1", "t0", "c", "e", "k", sequence=1, terminated=True, reason="done"))
        loom.append(CastRecord("k", "end", "e", "c", terminated=True, reason="done", result="x"))
    (scene.workspace / "one.cantrip.yaml").write_text(RECIPE)
    (scene.workspace / "i.txt").write_text('"go"\n')
    return path


BATCH = ("cast-batch", "one.cantrip.yaml", "i.txt", "--space", "@S@")
OUTPUTS: dict[str, tuple[str, ...]] = {
    "cast-batch --out": (*BATCH, "--out", "@OUT@"),
    "cast-batch --report": (*BATCH, "--report", "@OUT@"),
    "loom export": ("loom", "export", "@L@", "--format", "openai", "-o", "@OUT@"),
    "loom view": ("loom", "view", "@L@", "--html", "@OUT@"),
    "recipe new": ("recipe", "new", "--force", "@OUT@.cantrip.yaml"),
    "cast --loom": ("cast", "one.cantrip.yaml", "go", "--loom", "@OUT@.loom.jsonl"),
    "cast --loom sqlite": ("cast", "one.cantrip.yaml", "go", "--loom", "sqlite:@OUT@"),
    "--space": ("tuple", "out", "-", "--space", "@OUT@"),
}


@pytest.mark.parametrize("absolute", [False, True], ids=["relative", "absolute"])
@pytest.mark.parametrize("plan", ["ln -s ../beside/file @NAME@", "ln -s ../beside/new @NAME@", "ln -s ../beside sub"],
                         ids=["a file", "dangling", "its folder"])  # fmt: skip
@pytest.mark.parametrize("words", OUTPUTS.values(), ids=OUTPUTS)
async def test_no_output_follows_a_link(words: tuple[str, ...], plan: str, absolute: bool, scene: Scene) -> None:
    loom = _loom(scene)
    name = "sub/out" if "sub" in plan else "out"
    out = str(scene.workspace / name) if absolute else name
    real = [
        word.replace("@OUT@", out).replace("@L@", str(loom)).replace("@S@", str(scene.base / "s.db")) for word in words
    ]
    ending = next(word for word in words if "@OUT@" in word).partition("@OUT@")[2]
    if "sub" in plan:
        (scene.workspace / "sub").rename(scene.workspace / "old")
    await plant(scene, plan.replace("@NAME@", f"out{ending}"))
    before = outside(scene)
    done = run(*real, cwd=scene.workspace, stdin=TUPLE if words[0] == "tuple" else "")
    assert outside(scene) == before
    refused(done, "symbolic link")


async def test_the_folder_of_a_reports_looms_is_no_link(scene: Scene) -> None:
    _loom(scene)
    space = scene.base / "s.db"
    await plant(scene, "mkdir r; ln -s ../../beside r/results-looms")
    # A batch makes this itself, in the folder in which it runs.
    project_id(scene.base)
    words = ["cast-batch", "one.cantrip.yaml", "i.txt", "--space", space, "--loom", scene.base / "b.loom.jsonl"]
    before = outside(scene)
    for cwd, page in ((scene.workspace, "r/results.html"), (scene.base, scene.workspace / "r/results.html")):
        names = [scene.workspace / word if word in ("one.cantrip.yaml", "i.txt") else word for word in words]
        done = run(*names, "--report", page, cwd=cwd)
        refused(done, "results-looms", "symbolic link")
    after = outside(scene)
    assert {path: text for path, text in after.items() if "b.loom.jsonl" not in path} == before


@pytest.mark.parametrize("name", [SAMPLES, "looms", "files", ""])
async def test_the_result_of_an_evaluation_follows_no_link(name: str, scene: Scene) -> None:
    target = "../../beside" if name in ("looms", "files") else "../../beside/file"
    plan = f"mkdir result; : > result/{SAMPLES}; rm -f result/{name}; ln -s {target} result/{name}"
    await plant(scene, plan if name else "ln -s ../beside result")
    before = outside(scene)
    with pytest.raises(DefinitionError, match="symbolic link" if name else "symbolic link|other files"):
        ResultFolder(scene.workspace / "result")
    assert outside(scene) == before


async def test_what_is_no_link_is_written(scene: Scene) -> None:
    """The control: the same commands write plain files, also where a link leads to the workspace itself."""
    loom = _loom(scene)
    way = scene.base / "way"
    way.symlink_to(scene.workspace)
    await plant(scene, "mkdir plain")
    for folder in ("plain", scene.workspace / "plain", way / "plain"):
        page = Path(folder) / "out"
        assert run("loom", "view", loom, "--html", page, cwd=scene.workspace).status == 0
        assert (scene.workspace / "plain/out").stat().st_size > 1000
        (scene.workspace / "plain/out").unlink()
    shown = run("loom", "export", loom, "--format", "openai", "-o", "/dev/stdout", cwd=scene.workspace)
    assert shown.status == 0
    assert shown.out
