"""Ignore rules, held against git and ripgrep themselves."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from cantrip_acp.files.ignore_files import Globs, Rules, level_of
from cantrip_acp.gates.confinement import Root
from cantrip_acp.types.errors import GateError


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
    assert Globs(glob).selects(path, False) is wanted


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
    began = time.process_time()
    assert not rules.ignores(path, False)
    assert time.process_time() - began < 5


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
