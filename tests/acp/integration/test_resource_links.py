"""The tests of `tests/acp/unit/test_resource_links.py` that start processes."""

import subprocess
from pathlib import Path

from tests.acp.unit.test_resource_links import END, pinned
from tests.support.fixtures.acp import Start


def test_a_difference_is_pinned(start: Start, folder: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)

    (folder / "a.py").write_text("old\n")
    git("init", "-b", "main")
    git("add", ".")
    git("commit", "-m", "first")
    (folder / "a.py").write_text("new\n")
    agent = start([END])
    blocks = [
        {"type": "resource_link", "name": "Branch", "uri": "zed:///agent/git-diff?base=main"},
        {"type": "resource_link", "name": "Branch", "uri": "zed:///agent/git-diff?base=absent"},
    ]
    good, bad = pinned(agent, agent.session(folder), *blocks)
    assert good["title"] == "Branch: what differs from main"
    assert "-old\n+new" in good["text"]
    assert bad["text"].startswith("[")
