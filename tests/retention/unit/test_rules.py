"""Ages and sizes as people write them, and the user's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantrip_acp.retention.rules import DAY, Rules, age, read, size
from cantrip_acp.types.errors import DefinitionError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90d", 90 * DAY), ("12h", 43_200), (" 1.5 W ", 10.5 * DAY), ("1y", 365 * DAY), ("30min", 1800), ("0d", 0), ("never", None)],
)  # fmt: skip
def test_ages(text: str, seconds: float | None) -> None:
    assert age(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "d", "-1d", "1 day", "1d2h", "nan d", "1e3d"])
def test_what_is_no_age(text: str) -> None:
    with pytest.raises(ValueError, match="is not an age; write a number and its unit, as in 90d"):
        age(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GB", 2 * 10**9), ("500mb", 5 * 10**8), ("1.5 GiB", 3 << 29), ("4096", 4096), ("1k", 1000), ("0", 0), ("unlimited", None)],
)  # fmt: skip
def test_sizes(text: str, count: int | None) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "2XB", "1 i", "1GBs", "inf"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write a number and its unit, as in 2GB"):
        size(text)


def test_settings(tmp_path: Path) -> None:
    assert read(tmp_path) == Rules()
    file = tmp_path / "settings.toml"
    file.write_text('[gc]\nolder_than = "2w"\n[other]\nx = 1\n')
    assert read(tmp_path) == Rules(14 * DAY, None)
    file.write_text('[gc]\nolder_than = "never"\nmax_size = "1GB"\n')
    assert read(tmp_path) == Rules(None, 10**9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gc = 3", "1:1: gc: must be a table"),
        ("[gc]\nolder = '1d'", "2:1: gc.older: is not known; there are older_than and max_size"),
        ("[gc]\nolder_than = 90", "2:1: gc.older_than: must be a text, as in '90d'"),
        ("[gc]\nmax_size = '2 elephants'", "2:1: gc.max_size: '2 elephants' is not a size"),
        ("[gc", "1:4: this is not TOML"),
        ("\xff", "not TOML"),
    ],
)
def test_settings_that_are_wrong_are_said_with_their_place(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(DefinitionError, match=said) as caught:
        read(tmp_path)
    assert str(caught.value).startswith(f"{file}:")
