"""The tests of `tests/gates/unit/test_ignore.py` that start processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cantrip_acp.files.ignore_files import level_of
from cantrip_acp.gates.confinement import Root


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


@settings(max_examples=120, deadline=None)
@given(top=LINES, inner=LINES)
@example(top=["*", "!*/", "!*.x"], inner=[])
@example(top=["/*", "!/a"], inner=["!b"])
@example(top=[], inner=["**/*/**"])
def test_trees_of_rules_mean_what_git_means(tmp_path: Path, top: list[str], inner: list[str]) -> None:
    names = {path.rstrip("/") for path in FILES}
    files = sorted(n for n in names if not any(o.startswith(n + "/") for o in names))
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".gitignore").write_text("\n".join(top) + "\n")
    (tmp_path / "a" / ".gitignore").write_text("\n".join(inner) + "\n")
    assert {name for name in files if ours(tmp_path, name)} == gits(tmp_path, files)
