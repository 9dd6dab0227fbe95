"""Ignore rules, held against git and ripgrep themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from cantrip_acp.core.errors import GateError
from cantrip_acp.gates.confinement import Root
from cantrip_acp.gates.search.ignore_files import Globs, Rules, level_of


@pytest.mark.parametrize(
    ("pattern", "path", "ignored"),
    [
        ("*.log", "a.log", True),
        ("*.log", "sub/a.log", True),
        ("/a.log", "sub/a.log", False),
        ("sub/a.log", "sub/a.log", True),
        ("a.log", "sub/deep/a.log", True),
        ("sub/*.log", "sub/deep/a.log", False),
        ("sub/**/a.log", "sub/a.log", True),
        ("sub/**/a.log", "sub/x/y/a.log", True),
        ("**/a.log", "a.log", True),
        ("**/deep/**", "sub/deep/x", True),
        ("sub/**", "sub/x/y", True),
        ("foo/", "foo", False),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("[a-c]x", "bx", True),
        ("[!a-c]x", "bx", False),
        ("[^a-c]x", "dx", True),
        ("[]x]", "]", True),
        ("a[b", "a[b", False),
        (r"\#x", "#x", True),
        (r"\!x", "!x", True),
        ("#x", "#x", False),
        (r"a\ ", "a ", True),
        ("a   ", "a", True),
        (r"a\*", "a*", True),
        (r"a\*", "ab", False),
        ("[[:digit:]]x", "7x", True),
        ("[![:digit:]]x", "7x", False),
        ("[a[:upper:]]x", "Bx", True),
        ("é*", "été", True),
        ("a**b", "axxb", True),
        ("a**b", "a/b", False),
        ("", "x", False),
        ("/", "x", False),
    ],
)
def test_patterns_mean_what_git_means(tmp_path: Path, pattern: str, path: str, ignored: bool) -> None:
    (tmp_path / ".gitignore").write_text(pattern + "\n")
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("")
    assert ours(tmp_path, path) is ignored
    assert gits(tmp_path, [path]) == ({path} if ignored else set())


def ours(root: Path, path: str) -> bool:
    """Whether a file is ignored, or a folder on the way to it."""
    parts = path.split("/")
    level, _ = level_of(Root(str(root)), ())
    for depth, name in enumerate(parts[:-1], 1):
        if level.ignores(name, True):
            return True
        folder = os.open(root / "/".join(parts[:depth]), os.O_RDONLY)
        level = level.enter(name, folder)
        os.close(folder)
    return level.ignores(parts[-1], (root / path).is_dir())


def gits(root: Path, paths: list[str]) -> set[str]:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    if not (root / ".git").exists():
        subprocess.run(["git", "init", "-q", root], check=True, env=env, capture_output=True)
    done = subprocess.run(
        ["git", "-c", "core.excludesFile=/dev/null", "check-ignore", "--no-index", "-z", "--stdin"],
        input="\0".join(paths).encode(),
        capture_output=True,
        cwd=root,
        env=env,
    )
    return {os.fsdecode(p) for p in done.stdout.split(b"\0") if p}


LINES = st.lists(
    st.builds(
        lambda bang, slash, body, end: f"{bang}{slash}{body}{end}",
        st.sampled_from(["", "", "!"]),
        st.sampled_from(["", "", "/"]),
        st.lists(st.sampled_from(["a", "b", "c", "*", "?", "**", "*.x", "[ab]"]), min_size=1, max_size=3).map("/".join),
        st.sampled_from(["", "", "/"]),
    ),
    max_size=4,
)
FILES = [
    f"{one}{two}{three}" for one in ("a/", "b/", "") for two in ("b/", "a/", "c.x/", "") for three in ("a", "b", "x.x")
]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(top=LINES, inner=LINES)
@example(top=["*", "!*/", "!*.x"], inner=[])
@example(top=["/*", "!/a"], inner=["!b"])
def test_trees_of_rules_mean_what_git_means(tmp_path: Path, top: list[str], inner: list[str]) -> None:
    names = {path.rstrip("/") for path in FILES}
    files = sorted(n for n in names if not any(o.startswith(n + "/") for o in names))
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".gitignore").write_text("\n".join(top) + "\n")
    (tmp_path / "a" / ".gitignore").write_text("\n".join(inner) + "\n")
    assert {name for name in files if ours(tmp_path, name)} == gits(tmp_path, files)


def test_kinds_of_files_and_repositories(tmp_path: Path) -> None:
    (tmp_path / "in" / "repo" / "sub").mkdir(parents=True)
    (tmp_path / "in" / ".gitignore").write_text("*.log\n")
    (tmp_path / "in" / ".ignore").write_text("*.tmp\n")
    (tmp_path / "in" / "repo" / ".git").mkdir()
    (tmp_path / "in" / "repo" / ".gitignore").write_text("*.txt\n!keep.tmp\n")
    (tmp_path / "in" / "repo" / ".ignore").write_text("!keep.txt\n")
    (tmp_path / "in" / "repo" / ".rgignore").write_text("keep.txt\n")
    level, ignored = level_of(Root(str(tmp_path / "in")), ("repo", "sub"))
    assert not ignored
    judged = {name: level.ignores(name, False) for name in ("a.log", "a.tmp", "keep.tmp", "a.txt", "keep.txt")}
    # A .gitignore above the repository says nothing in it, an .ignore does; and .rgignore outranks them all.
    assert judged == {"a.log": False, "a.tmp": True, "keep.tmp": True, "a.txt": True, "keep.txt": True}


def test_a_rule_file_that_is_a_link_or_a_pipe_is_none(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("*\n")
    (tmp_path / ".gitignore").symlink_to("rules")
    os.mkfifo(tmp_path / ".ignore")
    level, _ = level_of(Root(str(tmp_path)), ())
    assert not level.ignores("x", False)


@pytest.mark.parametrize(
    ("glob", "path", "wanted"),
    [
        ("*.py", "a.py", True),
        ("*.py", "src/a.py", True),
        ("*.py", "a.txt", False),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/deep/a.py", False),
        ("src/**/*.py", "src/deep/a.py", True),
        ("*.{ts,tsx}", "x.tsx", True),
        ("{a,b}/*.md", "b/x.md", True),
        ("*.{t{s,sx},js}", "x.tsx", True),
        ("*.{t{s,sx},js}", "x.t", False),
        ("{,a}b", "b", True),
        ("[{]a", "{a", True),
        ("\\{a", "{a", True),
        ("!*.md", "x.md", False),
        ("!*.md", "x.py", None),
        ("/a.py", "src/a.py", False),
    ],
)
def test_globs(glob: str, path: str, wanted: bool | None) -> None:
    assert Globs(glob).wants(path, False) is wanted


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 60 + "b", "a" * 250),
        ("**/a/" * 40 + "b", "a/" * 200 + "c"),
        ("**/*a*a*a*a*b/" * 20 + "x", "/".join(["a" * 40] * 100)),
        ("[!b]*" * 50 + "b", "a" * 250),
    ],
)
def test_no_pattern_takes_long(tmp_path: Path, pattern: str, path: str) -> None:
    """Ignore files are written by whoever works in a folder, and matching holds up everybody."""
    rules = Rules([pattern])
    began = time.monotonic()
    assert not rules.ignores(path, False)
    assert time.monotonic() - began < 0.5


@settings(max_examples=300, deadline=None)
@given(
    line=st.lists(st.sampled_from(["a", "b", "*", "?", "**", "/", "[ab]"]), min_size=1, max_size=9).map("".join),
    path=st.lists(st.sampled_from(["a", "b", "ab", "ba", "aab", "bab"]), min_size=1, max_size=5).map("/".join),
)
@example(line="**/a*b/**/*a*b*b/**", path="aab/b/bab/aabb/a")
def test_no_backtracking_finds_what_pathspec_finds(line: str, path: str) -> None:
    if line.endswith("/"):
        line += "a"
    found = GitIgnoreSpecPattern(line).match_file(path)
    # pathspec also matches what is below a matching folder; a walk never gets there.
    expected = found is not None and found.match.groupdict().get("ps_d") is None
    assert bool(Rules([line]).ignores(path, False)) is expected


@pytest.mark.parametrize("glob", ["[", "a{b", "!", "x\\", "/", "{a,b}" * 20])
def test_globs_that_are_none(glob: str) -> None:
    with pytest.raises(GateError, match="glob"):
        Globs(glob)
