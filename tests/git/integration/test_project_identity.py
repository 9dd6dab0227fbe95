"""The id of a project: by its git remote, or stored in its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cantrip_acp.git.project_identity import normal_address, project_id
from tests.support import processes


@pytest.fixture(autouse=True)
def _unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANTRIP_PROJECT", raising=False)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://github.com/o/n.git", "github.com/o/n"),
        ("https://user:pass@GitHub.com:443/o/n/", "github.com/o/n"),
        ("git@github.com:o/n.git", "github.com/o/n"),
        ("github.com:o/n", "github.com/o/n"),
        ("ssh://git@github.com:22/o/n.git", "github.com/o/n"),
        ("ssh://git@host:2222/o/n.git", "host:2222/o/n"),
        ("https://[2001:db8::1]:8443/o/n", "2001:db8::1:8443/o/n"),
        ("https://[2001:db8::1]/o/n", "2001:db8::1/o/n"),
        ("file:///srv/git/n.git", "/srv/git/n"),
        ("/srv/git/n.git", "/srv/git/n"),
        ("../n", "/base/n"),
        ("https://host/o/N", "host/o/N"),
    ],
)
def test_an_address_is_without_what_differs_between_users(url: str, address: str) -> None:
    assert normal_address(url, "/base/repository") == address


def git(*words: str) -> None:
    processes.run(["git", *words], check=True)


def test_the_path_inside_the_repository_counts(tmp_path: Path) -> None:
    top, inner = tmp_path / "x", tmp_path / "x/apps/web"
    inner.mkdir(parents=True)
    git("init", "-q", str(top))
    git("-C", str(top), "remote", "add", "mirror", "https://host/z")
    git("-C", str(top), "remote", "add", "origin", "https://host/o/n")
    assert (project_id(top), project_id(inner)) == ("git:host/o/n", "git:host/o/n//apps/web")
    assert not (top / ".cantrip").exists()


def test_a_folder_without_a_remote_has_a_stored_id_that_moves_with_it(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    git("init", "-q", str(two))
    made = project_id(one)
    assert made.startswith("id:")
    assert project_id(two) not in (made, project_id(tmp_path))
    one.rename(tmp_path / "moved")
    assert project_id(tmp_path / "moved") == made


def test_an_id_that_was_not_written_to_the_end_is_made_again(tmp_path: Path) -> None:
    (tmp_path / ".cantrip").mkdir()
    (tmp_path / ".cantrip/project-id").write_text("")
    made = project_id(tmp_path)
    assert made.startswith("id:")
    assert project_id(tmp_path) == made


def test_no_id_is_written_through_a_link(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    (folder / ".cantrip").symlink_to(outside)
    made = project_id(folder)
    assert made.startswith("folder:")
    assert project_id(folder) == made
    assert os.listdir(outside) == []


def test_a_project_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTRIP_PROJECT", "shop")
    assert project_id(tmp_path) == "named:shop"
    assert os.listdir(tmp_path) == []
