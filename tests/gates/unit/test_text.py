"""Text in any encoding comes back to the same bytes."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cantrip_acp.gates.files import file_content as text
from cantrip_acp.gates.files.edit_file import EDIT_FILE
from cantrip_acp.gates.files.read_file import READ_FILE
from cantrip_acp.gates.files.write_file import WRITE_FILE
from cantrip_acp.types.errors import GateError
from tests.support.fixtures.gates import call_in, context_of

MARKS = [b"", codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE]


@settings(max_examples=500)
@given(mark=st.sampled_from(MARKS), data=st.binary(max_size=200))
@example(mark=codecs.BOM_UTF8, data=codecs.BOM_UTF8)
@example(mark=codecs.BOM_UTF16_LE, data=codecs.BOM_UTF16_LE)
@example(mark=codecs.BOM_UTF16_LE, data=b"\x00\xd8\x00\xdc\x00\xd8")
@example(mark=b"", data=b"\xc3\xa9\xc3\xa9\xff")
@example(mark=b"", data=b"caf\xe9 \x93quoted\x94 \x81")
def test_what_counts_as_text_encodes_to_the_same_bytes(mark: bytes, data: bytes) -> None:
    decoded = text.decode(mark + data)
    if decoded is None:
        assert mark or text.binary_kind(data)
        return
    content, encoding = decoded
    assert encoding.encode(content) == mark + data
    text.valid_unicode(content).encode("utf-8")


@pytest.mark.parametrize(
    ("data", "content", "label"),
    [
        ("h\u00e9llo €".encode(), "h\u00e9llo €", "UTF-8"),
        (codecs.BOM_UTF8 + b"hi", "hi", "UTF-8 with a byte order mark"),
        ("hé".encode("utf-16"), "hé", "UTF-16"),
        (codecs.BOM_UTF16_BE + "hé".encode("utf-16-be"), "hé", "UTF-16"),
        ("hé".encode("utf-32"), "hé", "UTF-32"),
        ("h\u00e9 \u2013 x".encode("cp1252"), "h\u00e9 \u2013 x", "Windows-1252"),
        (b"h\xe9\x81", "h\u00e9\x81", "Latin-1"),
        (b"", "", "UTF-8"),
    ],
)
def test_recognised(data: bytes, content: str, label: str) -> None:
    decoded = text.decode(data)
    assert decoded is not None
    assert decoded[0] == content
    assert decoded[1].label == label


ENCODINGS = [
    ("utf-8", b""),
    ("utf-8", codecs.BOM_UTF8),
    ("utf-16-le", codecs.BOM_UTF16_LE),
    ("utf-16-be", codecs.BOM_UTF16_BE),
    ("cp1252", b""),
    ("latin-1", b""),
]


@settings(max_examples=150, deadline=None)
@given(
    encoding=st.sampled_from(ENCODINGS),
    before=st.text(st.sampled_from("abé ü\r\n\t¿"), max_size=60),
    after=st.text(st.sampled_from("abé ü\r\n\t¿"), max_size=60),
)
def test_an_edit_changes_nothing_but_its_piece(
    tmp_path: Path, encoding: tuple[str, bytes], before: str, after: str
) -> None:
    codec, mark = encoding
    # A letter that UTF-8 would write in other bytes, so that the encoding shows.
    before = "ñè" + before
    path = tmp_path / "file.txt"
    path.write_bytes(mark + (before + "NEEDLE" + after).encode(codec))
    # Where the encoding is a guess, letters that are not in the file are refused.
    new = "Fünd" if mark or codec == "utf-8" else "Found"
    call_in(context_of(tmp_path), EDIT_FILE, path="file.txt", old_text="NEEDLE", new_text=new)
    assert path.read_bytes() == mark + (before + new + after).encode(codec)


LEGACY = {
    "gb18030": "x = 1\n# 中文注释\n",
    "shift_jis": "x = 1\n# 日本語のコメント\n",
    "euc_jp": "x = 1\n# 日本語のコメント\n",
    "big5": "# 繁體中文註解說明\n",
    "euc_kr": "# 한국어 주석입니다\n",
    "koi8_r": "x = 1\n# Привет, мир, это комментарий\n",
    "cp1251": "x = 1\n# Привет, мир, это комментарий\n",
    "cp1252": "x = 1\n# “café” €\n",
    "latin-1": "x = 1\n# déjà créé\n",
}


@pytest.mark.parametrize("codec", LEGACY)
def test_a_guess_is_called_a_guess_and_writes_no_wrong_letters(tmp_path: Path, codec: str) -> None:
    path, text, context = tmp_path / "f.txt", LEGACY[codec], context_of(tmp_path)
    path.write_bytes(text.encode(codec))
    seen = call_in(context, READ_FILE, path="f.txt").result
    assert seen.startswith(text)
    assert "which is a guess]" in seen
    for gate, args in ((EDIT_FILE, {"old_text": "#", "new_text": "# ß"}), (WRITE_FILE, {"content": f"{text}ß"})):
        with pytest.raises(GateError, match="that is a guess") as refused:
            call_in(context, gate, path="f.txt", **args)
        assert "write_file" not in str(refused.value)
    assert path.read_bytes() == text.encode(codec)
    call_in(context, EDIT_FILE, path="f.txt", old_text="#", new_text="#" + text[-2])
    assert path.read_bytes() == text.replace("#", "#" + text[-2]).encode(codec)
    call_in(context, WRITE_FILE, path="f.txt", content=text + text)
    assert path.read_bytes() == (text + text).encode(codec)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (".gitattributes", "*.txt working-tree-encoding={codec}\n"),
        ("sub/.gitattributes", "# x\nf.txt text working-tree-encoding={codec} eol=lf\n"),
        (".editorconfig", "root = true\n[*]\ncharset = latin1\n"),
    ],
)
def test_what_the_project_declares_counts(tmp_path: Path, file: str, says: str) -> None:
    codec = "latin-1" if file == ".editorconfig" else "Shift_JIS"
    old, new = ("é", "ß") if codec == "latin-1" else ("日", "本")
    (tmp_path / "sub").mkdir()
    (tmp_path / file).write_text(says.format(codec=codec))
    path, context = tmp_path / "sub" / "f.txt", context_of(tmp_path)
    path.write_bytes(f"x {old}\n".encode(codec))
    assert call_in(context, READ_FILE, path="sub/f.txt").result == f"x {old}\n"
    call_in(context, EDIT_FILE, path="sub/f.txt", old_text="x", new_text=new)
    assert path.read_bytes() == f"{new} {old}\n".encode(codec)
    for gate, args in ((EDIT_FILE, {"old_text": old, "new_text": "한"}), (WRITE_FILE, {"content": "한"})):
        with pytest.raises(GateError, match="does not have the character '한'"):
            call_in(context, gate, path="sub/f.txt", **args)
    # New files, and files that have only ASCII until now.
    (tmp_path / "sub" / "f.txt").write_text("ascii\n")
    call_in(context, EDIT_FILE, path="sub/f.txt", old_text="ascii", new_text=new)
    assert path.read_bytes() == f"{new}\n".encode(codec)
    path.unlink()
    call_in(context, WRITE_FILE, path="sub/f.txt", content=new)
    assert path.read_bytes() == new.encode(codec)
    # A file that is UTF-8 all the same stays so.
    path.write_text("中文 ω\n")
    call_in(context, EDIT_FILE, path="sub/f.txt", old_text="中文", new_text="α")
    assert path.read_text() == "α ω\n"


@pytest.mark.parametrize("name", ["hex", "zlib", "unicode_escape", "punycode", "nothing", "../x", "utf-7", "\x00"])
def test_a_name_that_is_no_encoding_of_files_is_not_used(tmp_path: Path, name: str) -> None:
    (tmp_path / ".gitattributes").write_text(f"* working-tree-encoding={name}\n")
    call_in(context_of(tmp_path), WRITE_FILE, path="f.txt", content="é\\n")
    assert (tmp_path / "f.txt").read_text() == "é\\n"


@settings(max_examples=150, deadline=None)
@given(content=st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_what_is_written_is_what_is_read(tmp_path: Path, content: str) -> None:
    context = context_of(tmp_path)
    (tmp_path / "file.txt").unlink(missing_ok=True)
    call_in(context, WRITE_FILE, path="file.txt", content=content)
    assert (tmp_path / "file.txt").read_bytes() == content.encode()
    if "\0" not in content:
        assert call_in(context, READ_FILE, path="file.txt").result == content.removeprefix("\ufeff")


@settings(max_examples=150, deadline=None)
@given(before=st.binary(max_size=40).filter(lambda b: b"\0" not in b), after=st.binary(max_size=40))
def test_broken_bytes_around_an_edit_stay(tmp_path: Path, before: bytes, after: bytes) -> None:
    after = after.replace(b"\0", b"")
    # Mostly UTF-8, so that the broken places are broken places.
    data = "ééééééé日本語日本語日本語日本語日本語".encode() * 4 + before + b"NEEDLE" + after
    (tmp_path / "file.txt").write_bytes(data)
    if data.count(b"NEEDLE") != 1:
        return
    call_in(context_of(tmp_path), EDIT_FILE, path="file.txt", old_text="NEEDLE", new_text="X")
    assert (tmp_path / "file.txt").read_bytes() == data.replace(b"NEEDLE", b"X")


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"BM" + b"\0" * 20, "BMP image"),
        (b"%PDF-1.7 text only", "PDF document"),
        (b"PK\x03\x04abc", "ZIP archive"),
        (b"\x7fELF\x02\x01\x01\0", "ELF"),
        (b"SQLite format 3\0", "SQLite"),
        (b"ab\0cd", "binary data"),
    ],
)
@pytest.mark.parametrize("gate", [READ_FILE, EDIT_FILE])
def test_binary_files_are_told_apart(tmp_path: Path, head: bytes, kind: str, gate: object) -> None:
    (tmp_path / "file").write_bytes(head)
    args = {} if gate is READ_FILE else {"old_text": "a", "new_text": "b"}
    with pytest.raises(GateError, match=rf"binary file \({kind}.*{len(head)} bytes\), not text"):
        call_in(context_of(tmp_path), gate, path="file", **args)  # type: ignore[arg-type]


def test_damaged_utf16_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(codecs.BOM_UTF16_LE + b"a\0b")
    with pytest.raises(GateError, match="damaged UTF-16"):
        call_in(context_of(tmp_path), EDIT_FILE, path="file", old_text="a", new_text="b")


@pytest.mark.parametrize(
    ("content", "newline"), [("", "\n"), ("a\nb", "\n"), ("a\r\nb\r\n\n", "\r\n"), ("a\rb\r", "\r"), ("a\r\nb\n", "\n")]
)
def test_newline_of(content: str, newline: str) -> None:
    assert text.newline_of(content) == newline
