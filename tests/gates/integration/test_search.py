"""search: with ripgrep and without it, the same."""

from __future__ import annotations

import json
import os
import random
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.search import ripgrep, search_python
from cantrip_acp.gates.search.search import SEARCH
from cantrip_acp.gates.search.search_types import writable_folders
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.records import Location
from tests.support.fixtures.gates import call_in, context_of

Call = Callable[..., GateReply]
HAVE = ripgrep.find_ripgrep(()) is not None
needs_ripgrep = pytest.mark.skipif(not HAVE, reason="ripgrep (rg) is not installed")


@pytest.fixture(params=[pytest.param("ripgrep", marks=needs_ripgrep), "python"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(ripgrep, "find_ripgrep", lambda *_: None)
    else:

        def never(*_: object) -> None:
            raise AssertionError("ripgrep should have done this alone")

        monkeypatch.setattr(search_python, "hits", never)
    return str(request.param)


@pytest.fixture
def corpus(workspace: Path) -> Path:
    files = {
        "README.md": "# Title\nTODO: write\n",
        "src/app.py": "import os\n\ndef main():\n    return os.getcwd()  # TODO\n",
        "src/deep/util.ts": "export const todo = 1;\nTODO\r\nlast TODO",
        "src/a:b 'c'.txt": "TODO here\n",
        "ignored.log": "TODO\n",
        "build/out.js": "TODO\n",
        "build/keep.js": "TODO\n",
        ".github/ci.yml": "TODO: true\n",
        ".git/config": "TODO\n",
        "sub/.git/config": "TODO\n",
        "sub/nested.log": "TODO\n",
        "data/x.tmp": "TODO\n",
        "empty": "",
        ".gitignore": "*.log\nbuild/\n",
        "data/.ignore": "*.tmp\n",
        "unicode/naïve.txt": "café TODO ✓\n",
    }
    for name, content in files.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_bytes(content.encode())
    (workspace / "binary.bin").write_bytes(b"\0TODO\n")
    (workspace / "wide.txt").write_bytes("first\nTODO wide\n".encode("utf-16"))
    (workspace / "marked.txt").write_bytes(b"\xef\xbb\xbfTODO marked\n")
    (workspace / "latin.txt").write_bytes(b"caf\xe9 TODO\n")
    (workspace / "link").symlink_to("src")
    (workspace / "outlink").symlink_to("../outside")
    return workspace


ALL = [
    ".github/ci.yml:1:TODO: true",
    "README.md:2:TODO: write",
    "latin.txt:1:café TODO",
    "marked.txt:1:TODO marked",
    "src/a:b 'c'.txt:1:TODO here",
    "src/app.py:4:    return os.getcwd()  # TODO",
    "src/deep/util.ts:2:TODO",
    "src/deep/util.ts:3:last TODO",
    "sub/nested.log:1:TODO",
    "unicode/naïve.txt:1:café TODO ✓",
    "wide.txt:2:TODO wide",
]


def test_everything_that_is_not_ignored(engine: str, call: Call, corpus: Path) -> None:
    reply = call(SEARCH, pattern="TODO")
    assert reply.result.splitlines() == ALL
    assert reply.title == "Search 'TODO'"
    assert reply.locations[1] == Location(str(corpus / "README.md"), 2)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """The next descriptor that this process opens has a number above 1024, as in a host with many sessions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("the system allows this process fewer than 2048 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened = list(os.pipe())
    while opened[-1] <= 1024:
        opened.append(os.dup(opened[0]))
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_host_with_more_than_a_thousand_descriptors(
    engine: str, call: Call, corpus: Path, many_descriptors: None
) -> None:
    assert call(SEARCH, pattern="TODO").result.splitlines() == ALL


@pytest.mark.parametrize(
    ("args", "lines"),
    [
        ({"pattern": "^import (os|re)$"}, ["src/app.py:1:import os"]),
        ({"pattern": "TODO$", "path": "src/deep"}, ["src/deep/util.ts:2:TODO", "src/deep/util.ts:3:last TODO"]),
        ({"pattern": "todo", "path": "src/deep/util.ts"}, ["src/deep/util.ts:1:export const todo = 1;"]),
        ({"pattern": "WRITE", "ignore_case": True}, ["README.md:2:TODO: write"]),
        ({"pattern": "TODO", "glob": "*.md"}, ["README.md:2:TODO: write"]),
        ({"pattern": "TODO", "glob": "src/*.{py,md}"}, ["src/app.py:4:    return os.getcwd()  # TODO"]),
        ({"pattern": "TODO", "glob": "!*.{py,ts,txt,yml,log}"}, ["README.md:2:TODO: write"]),
        ({"pattern": "TODO", "glob": "ignored.log"}, ["ignored.log:1:TODO"]),
        ({"pattern": "TODO", "path": "build"}, ["build/keep.js:1:TODO", "build/out.js:1:TODO"]),
        ({"pattern": "TODO", "path": "ignored.log"}, ["ignored.log:1:TODO"]),
        ({"pattern": "TODO", "path": "link/app.py"}, ["src/app.py:4:    return os.getcwd()  # TODO"]),
        ({"pattern": "TODO", "path": ".git"}, [".git/config:1:TODO"]),
        ({"pattern": r"caf\w TODO", "path": "unicode"}, ["unicode/naïve.txt:1:café TODO ✓"]),
        ({"pattern": "-x|--TODO|-e"}, ["no matches in ."]),
        ({"pattern": "nowhere", "path": "src", "glob": "*.py"}, ["no matches in src (files *.py)"]),
        ({"pattern": "TODO", "path": "empty"}, ["no matches in empty"]),
    ],
)
def test_searches(engine: str, call: Call, corpus: Path, args: dict[str, str], lines: list[str]) -> None:
    assert call(SEARCH, **args).result.splitlines() == lines


def test_the_number_of_lines_is_bounded(engine: str, call: Call, corpus: Path) -> None:
    lines = call(SEARCH, pattern="TODO", max_results=3).result.splitlines()
    assert lines[:3] == ALL[:3]
    assert lines[3].startswith("[cut: these are the first 3 matching lines")
    assert len(call(SEARCH, pattern="TODO", max_results=len(ALL)).result.splitlines()) == len(ALL)


def test_the_size_of_a_result_is_bounded(engine: str, call: Call, workspace: Path) -> None:
    (workspace / "f").write_text(("x" * 380 + "\n") * 5000)
    result = call(SEARCH, pattern="x", max_results=5000).result
    assert len(result) < 300_000
    assert "[cut: these are the first" in result


def test_long_lines_are_shown_around_what_was_found(engine: str, call: Call, workspace: Path) -> None:
    (workspace / "min.js").write_text("é" * 20_000 + "NEEDLE" + "ü" * 20_000 + "\nshort NEEDLE\n")
    first, second = call(SEARCH, pattern="NEEDLE").result.splitlines()
    assert first.startswith("min.js:1:…é")
    assert "éNEEDLEü" in first
    assert first.endswith("ü…")
    assert len(first) < 500
    assert "\ufffd" not in first
    assert second == "min.js:2:short NEEDLE"


def test_a_line_of_megabytes_is_passed_over(engine: str, call: Call, workspace: Path) -> None:
    (workspace / "one.txt").write_text("x" * 9_000_000 + "NEEDLE\nNEEDLE after\n" + "y" * 3_000_000)
    assert call(SEARCH, pattern="NEEDLE").result == "one.txt:2:NEEDLE after"


def test_empty_lines_and_last_lines(engine: str, call: Call, workspace: Path) -> None:
    (workspace / "f").write_bytes(b"a\n\nb\r\n\r\nc")
    assert call(SEARCH, pattern="^$").result.splitlines() == ["f:2:", "f:4:"]
    assert call(SEARCH, pattern="[abc]$").result.splitlines() == ["f:1:a", "f:3:b", "f:5:c"]


def test_large_files_in_pieces(engine: str, call: Call, workspace: Path) -> None:
    with (workspace / "big.txt").open("w") as file:
        for n in range(700_000):
            file.write(f"line {n} of many\n")
    assert call(SEARCH, pattern="line 699999 ").result == "big.txt:700000:line 699999 of many"
    assert call(SEARCH, pattern="line 3(0|5)0001 ").result.splitlines() == [
        "big.txt:300002:line 300001 of many",
        "big.txt:350002:line 350001 of many",
    ]


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(", "missing \\), unterminated subpattern"),
        ("[", "unterminated character set"),
        (r"a\nb", "one line at a time"),
    ],
)
@pytest.mark.parametrize("have", [True, False])
def test_patterns_that_are_none(
    call: Call, workspace: Path, pattern: str, says: str, have: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not have:
        monkeypatch.setattr(ripgrep, "find_ripgrep", lambda *_: None)
    with pytest.raises(GateError, match=f"not a regular expression that search can use: .*{says}"):
        call(SEARCH, pattern=pattern)


def test_what_only_one_engine_has(call: Call, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look-around is Python's: ripgrep refuses it, and the search goes on without."""
    assert call(SEARCH, pattern=r"TODO(?=: w)").result == "README.md:2:TODO: write"
    assert call(SEARCH, pattern=r"(\w)\1\w+", path="src/app.py").result == "no matches in src/app.py"
    monkeypatch.setattr(ripgrep, "find_ripgrep", lambda *_: None)
    with pytest.raises(GateError, match=r"bad escape \\p"):
        call(SEARCH, pattern=r"\p{Lu}")
    with pytest.raises(GateError, match="nested set"):
        call(SEARCH, pattern="[[:alpha:]]")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"pattern": ""}, "the pattern is empty"),
        ({"pattern": "a\0b"}, "no line of text can contain"),
        ({"pattern": "\ud800"}, "no line of text can contain"),
        ({"pattern": "a", "path": "gone"}, "no such file or folder: 'gone'"),
        ({"pattern": "a", "glob": "["}, "the glob '\\[' cannot be read: a '\\[' is not closed"),
        ({"pattern": "a", "glob": "a{b"}, "not closed"),
    ],
)
def test_refusals(engine: str, call: Call, corpus: Path, args: dict[str, str], says: str) -> None:
    with pytest.raises(GateError, match=says):
        call(SEARCH, **args)


def test_a_pattern_that_never_ends(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ripgrep, "find_ripgrep", lambda *_: None)
    (workspace / "a.txt").write_text("found first aab\n")
    (workspace / "b.txt").write_text("a" * 60 + "!\n")
    before, began = set(children()), time.monotonic()
    result = call_in(context_of(workspace, timeout_s=1), SEARCH, pattern="(a+)+b$").result
    assert time.monotonic() - began < 60
    assert result.splitlines()[0] == "a.txt:1:found first aab"
    assert result.splitlines()[1].startswith("[stopped after 1 seconds, so this is not all")
    assert comes_true(lambda: set(children()) <= before, 30), children()


def children() -> list[str]:
    """Processes that this one started and that are still there."""
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += (task / "children").read_text().split()
        except OSError:
            # The thread has ended meanwhile.
            continue
    return found


def comes_true(what: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.01)
    return what()


@pytest.mark.parametrize("pattern", ["(a+)+b$", "x"])
def test_a_cancelled_search_leaves_nothing(
    workspace: Path, pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "b.txt").write_text("a" * 60 + "!\n")
    if pattern == "x":
        # A ripgrep that hangs, whatever it is asked.
        slow = tmp_path / "rg"
        slow.write_text("#!/bin/sh\nexec sleep 1000\n")
        slow.chmod(0o755)
        monkeypatch.setattr(ripgrep, "find_ripgrep", lambda *_: str(slow))
    else:
        monkeypatch.setattr(ripgrep, "find_ripgrep", lambda *_: None)
    before, descriptors = children(), len(os.listdir("/proc/self/fd"))

    async def cancelled() -> float:
        began = time.monotonic()
        with anyio.move_on_after(0.3) as scope:
            await SEARCH.handler({"pattern": pattern}, context_of(workspace))
        assert scope.cancelled_caught
        return time.monotonic() - began

    assert anyio.run(cancelled) < 20
    assert comes_true(lambda: children() == before), "a process is left"
    assert comes_true(lambda: len(os.listdir("/proc/self/fd")) <= descriptors), "a descriptor is left"


def test_a_hanging_ripgrep_is_ended_by_the_time_limit(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "rg"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setattr(ripgrep, "find_ripgrep", lambda *_: str(slow))
    began = time.monotonic()
    assert "[stopped after 0.5 seconds" in call_in(context_of(workspace, timeout_s=0.5), SEARCH, pattern="x").result
    assert time.monotonic() - began < 60


@needs_ripgrep
def test_ripgrep_is_not_believed(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it says it read elsewhere, or that is not there, is not shown."""
    outside = workspace.parent / "outside" / "secret.txt"
    (workspace / "a.txt").write_text("one\ntwo\n")
    (workspace / "link").symlink_to(outside)
    (workspace / ".env").write_text("secret\n")

    def message(path: object, line: str, number: int, offset: int) -> str:
        data = {"path": {"text": str(path)}, "lines": {"text": line + "\n"}, "line_number": number}
        data |= {"absolute_offset": offset, "submatches": []}
        return json.dumps({"type": "match", "data": data}, separators=(",", ":"))

    lies = [
        message(outside, "the outside secret", 1, 0),
        message("./../outside/secret.txt", "the outside secret", 1, 0),
        message("./link", "the outside secret", 1, 0),
        message("./.env", "secret", 1, 0),
        message("./a.txt", "the outside secret", 1, 0),
        message("./a.txt", "two", 2, -4),
        message("./gone.txt", "two", 2, 4),
        '{"type":"match","data":{}}',
        '{"type":"match"',
        message("./a.txt", "two", 2, 4),
    ]
    fake = tmp_path / "rg"
    fake.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lies) + "\nEND\n")
    fake.chmod(0o755)
    monkeypatch.setattr(ripgrep, "find_ripgrep", lambda *_: str(fake))
    assert call_in(context_of(workspace), SEARCH, pattern="x").result == "a.txt:2:two"


def test_no_ripgrep_from_where_the_entity_writes(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = workspace / ".venv" / "bin"
    planted.mkdir(parents=True)
    shared = tmp_path / "shared"
    shared.mkdir()
    good = tmp_path / "good"
    good.mkdir()
    for folder in (planted, shared, good):
        (folder / "rg").write_text("#!/bin/sh\n")
        (folder / "rg").chmod(0o755)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "rg").symlink_to(planted / "rg")
    context = context_of(workspace, [{"bash_writable_paths": [str(shared)]}])

    def found(*folders: object) -> str | None:
        monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))
        return ripgrep.find_ripgrep(writable_folders(context, str(workspace)))

    assert found(planted, shared, tmp_path / "linked", ".", "", "bin", good) == str(good / "rg")
    assert found(planted, shared, tmp_path / "linked", ".venv/bin") is None
    (good / "rg").chmod(0o757)
    assert found(good) is None
    (good / "rg").chmod(0o644)
    assert found(good) is None


@needs_ripgrep
def test_ripgreps_own_configuration_is_not_read(call: Call, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = corpus.parent / "ripgreprc"
    config.write_text("--no-ignore\n--files\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(config))
    assert call(SEARCH, pattern="TODO").result.splitlines() == ALL


WORDS = ["alpha", "beta", "TODO", "fixme", "naïve", "x" * 30, "", "  indented", "tab\there", "trailing  "]
PATTERNS = [
    r"\balpha\b",
    "^$",
    r"TODO|fixme",
    r"\s+$",
    "na.ve",
    r"^\s+\S",
    "x{5,}",
    "[ab]lp",
    r"(?i)ALPHA",
    "é|ï|a$",
    r"\d",
]


@needs_ripgrep
@pytest.mark.parametrize("seed", range(6))
def test_both_engines_find_the_same(seed: int, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a tree of files, ignore files and encodings made at random."""
    rng = random.Random(seed)
    names = ["a", "b.py", "c.log", "d.txt", "E.md", ".hid", "f g", "ünï"]
    for _ in range(60):
        path = workspace.joinpath(
            *rng.choices(["src", "lib", "build", ".cfg", "deep"], k=rng.randint(0, 3)), rng.choice(names)
        )
        if path.is_dir() or any(p.is_file() for p in path.parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        newline = rng.choice(["\n", "\n", "\r\n"])
        content = newline.join(rng.choices(WORDS, k=rng.randint(0, 30))) + rng.choice(["", newline])
        path.write_bytes(content.encode(rng.choice(["utf-8", "utf-8", "utf-16", "utf-8-sig"])))
    folders = [workspace, *(p for p in workspace.rglob("*") if p.is_dir())]
    rules = ["*.log", "build/", "!b.py", "/src/deep", "lib/**/a", "*.py", "!deep/", "d.*", "**/E.md", "[a-c]"]
    for folder in rng.sample(folders, min(4, len(folders))):
        for name in rng.sample([".gitignore", ".ignore", ".rgignore"], 1):
            (folder / name).write_text("\n".join(rng.sample(rules, 3)) + "\n")
    if rng.random() < 0.5:
        (rng.choice(folders) / ".git").mkdir(exist_ok=True)
    context = context_of(workspace)
    real = ripgrep.find_ripgrep
    for pattern in PATTERNS:
        for more in (
            {},
            {"glob": "*.py"},
            {"glob": "!*.txt"},
            {"path": rng.choice(folders).relative_to(workspace).as_posix()},
        ):
            args = {"pattern": pattern, "max_results": 5000, **more}
            monkeypatch.setattr(ripgrep, "find_ripgrep", real)
            one = call_in(context, SEARCH, **args).result
            monkeypatch.setattr(ripgrep, "find_ripgrep", lambda *_: None)
            two = call_in(context, SEARCH, **args).result
            assert one == two, args


def test_search_is_confined_by_its_root(engine: str, corpus: Path) -> None:
    context = context_of(corpus, root="src")
    assert call_in(context, SEARCH, pattern="TODO").result.splitlines() == [
        "a:b 'c'.txt:1:TODO here",
        "app.py:4:    return os.getcwd()  # TODO",
        "deep/util.ts:2:TODO",
        "deep/util.ts:3:last TODO",
    ]


def test_previews(corpus: Path) -> None:
    assert SEARCH.preview is not None
    reply = SEARCH.preview({"pattern": "TODO", "path": "src", "glob": "*.py"}, context_of(corpus))
    assert reply.title == "Search 'TODO' in src (*.py)"
    assert reply.locations == (Location(str(corpus / "src")),)


def test_the_matching_process_has_nothing_of_ours(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that the entity wrote into the workspace is not imported by it."""
    monkeypatch.setattr(ripgrep, "find_ripgrep", lambda *_: None)
    (workspace / "re.py").write_text("raise SystemExit\n")
    monkeypatch.setenv("PYTHONPATH", str(workspace))
    monkeypatch.chdir(workspace)
    assert call_in(context_of(workspace), SEARCH, pattern="raise").result == "re.py:1:raise SystemExit"
    monkeypatch.setattr(search_python, "_PYTHON", str(workspace / ".venv" / "bin" / "python"))
    with pytest.raises(GateError, match="in a folder in which commands may write"):
        call_in(context_of(workspace), SEARCH, pattern="raise")
