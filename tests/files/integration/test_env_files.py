"""Environment files with masked values: what other programs read of them, and that nothing tells a value."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.files.env_files import MASKED, is_env_file, masked_file, masked_text

TEXT = "# old: hunter2\nA=1\nexport B=\"x y\" # note\n\nC='z'\r\nURL=https://u:p@h?x=1#y\nD=\nE = a b # c\n"


def test_names_quotes_and_lines_stay() -> None:
    assert masked_text(TEXT) == TEXT.replace("# old: hunter2", "#").replace('"x y" # note', f'"{MASKED}"').replace(
        "A=1", f"A={MASKED}"
    ).replace("'z'", f"'{MASKED}'").replace("https://u:p@h?x=1#y", MASKED).replace("D=", f"D={MASKED}").replace(
        "E = a b # c", f"E={MASKED}"
    )


def test_a_shell_and_node_read_it(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text(masked_text(TEXT.replace("E = a b # c\n", "").replace("\r", "")) or "")
    ran = subprocess.run(["sh", "-c", f'. {file}; echo "$A|$B|$C|$URL|$D"'], capture_output=True, text=True, check=True)
    assert ran.stdout == "|".join([MASKED] * 5) + "\n"
    node = shutil.which("node")
    if node is not None:
        script = "console.log(process.env.A, process.env.B, process.env.D)"
        env = {"PATH": os.environ["PATH"]}
        ran = subprocess.run(
            [node, f"--env-file={file}", "-e", script], capture_output=True, text=True, check=False, env=env
        )
        if "bad option" not in ran.stderr:
            assert ran.stdout.split() == [MASKED] * 3


@pytest.mark.parametrize(
    "text",
    [
        'A="x\ny"', "JBSWY3DPEHPK3PXP====", "c2VjcmV0cGFzc3dvcmQ=", "JBSWY3DPEHPK3PXP=", '{"a": 1}', "A=`x`", "A=a\\\nb", 'A=x"y',
        "-----BEGIN PRIVATE KEY-----", "word", "a: b", 'A="x" rest', "A==x", "https://u:p@h/?a=b", "A='x'y", "A=x\nsecret",
    ],
)  # fmt: skip
def test_what_is_not_plainly_of_the_form_is_not_shown(text: str) -> None:
    assert masked_text(text) is None


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\r"), min_size=1, max_size=40))
def test_no_value_makes_a_difference(value: str) -> None:
    for text in (f"A={value}", f'A="{value}"', f"A='{value}'", f"#{value}\nA=1"):
        assert masked_text(text) in (None, f"A={MASKED}", f'A="{MASKED}"', f"A='{MASKED}'", f"#\nA={MASKED}")


def test_names_kinds_and_sizes(tmp_path: Path) -> None:
    assert [n for n in (".env", ".ENV", ".env.local", ".envrc", "prod.env", ".environment") if is_env_file(n)] == [
        ".env", ".ENV", ".env.local",
    ]  # fmt: skip
    (tmp_path / "real").write_text("A=1\n")
    (tmp_path / ".env").symlink_to("real")
    (tmp_path / ".env.large").write_text("A=1\n" * 100_000)
    (tmp_path / ".env.bytes").write_bytes(b"A=\xff\n")
    os.mkfifo(tmp_path / ".env.pipe")
    for name in (".env", ".env.large", ".env.bytes", ".env.pipe", "real", ".env.missing"):
        assert masked_file(str(tmp_path / name)) is None
