"""`cantrip loom view` as a command."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from cantrip_acp.files.descriptors import is_ready
from tests.support.command_line import run, start


def address(process: subprocess.Popen[str]) -> str:
    """The first line that it prints."""
    assert process.stdout is not None
    assert is_ready(process.stdout, 60), "it printed nothing"
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end(sample: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = start("loom", "view", sample, "--no-browser", "--turn", "t_forked", cwd=tmp_path)
    try:
        url = address(process)
        assert url.startswith("http://127.0.0.1:")
        assert url.endswith("&turn=t_forked")
        page, _, fragment = url.partition("#")
        token = fragment.partition("token=")[2].partition("&")[0]
        request = urllib.request.Request(f"{page}api/loom", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert b'"turns":14' in answer.read()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert err.strip() == "press Ctrl-C to end the server"
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_a_page_in_a_file_opens_at_the_turn_too(sample: Path, tmp_path: Path) -> None:
    done = run("loom", "view", sample, "--html", "page.html", "--turn", "t_forked", cwd=tmp_path)
    assert done.out.splitlines()[1] == f"open it in a browser: file://{tmp_path}/page.html#turn=t_forked"


def test_it_opens_the_browser(sample: Path, tmp_path: Path) -> None:
    told = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {told}.part && mv {told}.part {told}\n')
    browser.chmod(0o755)
    process = start("loom", "view", sample, cwd=tmp_path, BROWSER=str(browser), DISPLAY=os.environ.get("DISPLAY", ":9"))
    try:
        url = address(process)
        assert process.stderr is not None
        assert is_ready(process.stderr, 60)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert told.read_text().strip() == url
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.jsonl"], "no such file"),
        (["text.txt"], "this is not a loom"),
        (["text.txt", "--html", "x.html"], "this is not a loom"),
        (["sample.loom.jsonl", "--turn", "t_0"], "write more of the id"),
        (["sample.loom.jsonl", "--port", "99999"], "--port"),
    ],
)
def test_what_it_cannot_do(sample: Path, tmp_path: Path, arguments: list[str], says: str) -> None:
    (tmp_path / "text.txt").write_text("a: b\nc: d\n")
    done = run("loom", "view", "--no-browser", *arguments, cwd=tmp_path)
    assert done.status == 2
    assert says in done.err
    assert not (tmp_path / "x.html").exists()
