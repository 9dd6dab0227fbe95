"""The evaluator of sandbox-exec profiles, on cases whose answer is known from Apple's documents and other projects."""

from __future__ import annotations

import pytest

from tests.support.sandbox_profile import Disk, Profile, ProfileError, Request, parse

HEAD = "(version 1)(deny default)"


@pytest.mark.parametrize(
    ("rules", "request_", "allowed"),
    [
        ("", Request("file-read-data", "/a"), False),
        ("(allow default)", Request("mach-lookup", name="x"), True),
        ("(allow file-read*)", Request("file-read-metadata", "/a"), True),
        ("(allow file-read*)", Request("file-write-data", "/a"), False),
        ('(allow file-read* (literal "/a"))', Request("file-read-data", "/a/b"), False),
        ('(allow file-read* (subpath "/a"))', Request("file-read-data", "/a/b"), True),
        ('(allow file-read* (subpath "/a"))', Request("file-read-data", "/a"), True),
        ('(allow file-read* (subpath "/a"))', Request("file-read-data", "/ab"), False),
        # The last match wins, whichever of the two it is, and however exact the other is.
        ('(allow file* (subpath "/a"))(deny file-write* (subpath "/a/b"))', Request("file-write-data", "/a/b/c"), False),
        ('(deny file-write* (subpath "/a/b"))(allow file* (subpath "/a"))', Request("file-write-data", "/a/b/c"), True),
        ('(allow file* (subpath "/a"))(deny file-write* (subpath "/a/b"))', Request("file-read-data", "/a/b/c"), True),
        ('(allow file-read* (literal "/x") (literal "/y"))', Request("file-read-data", "/y"), True),
        (
            '(allow file-read* (require-all (subpath "/a") (require-not (literal "/a/b"))))',
            Request("file-read-data", "/a/b"),
            False,
        ),
        ('(allow file-read* (require-any (literal "/x") (regex #"^/[ab]/")))', Request("file-read-data", "/b/c"), True),
        ('(allow mach-lookup (global-name "a.b"))', Request("mach-lookup", name="a.b"), True),
        ('(allow mach-lookup (global-name "a.b"))', Request("mach-lookup", name="a.bc"), False),
        ('(allow network-outbound (remote ip "localhost:80"))', Request("network-outbound", remote="tcp localhost:80"), True),
        ('(allow network-outbound (remote ip "localhost:80"))', Request("network-outbound", remote="tcp localhost:81"), False),
        ('(allow network-outbound (remote tcp "*:80"))', Request("network-outbound", remote="udp example.org:80"), False),
        ("(allow signal (target same-sandbox))", Request("signal", same_sandbox=True), True),
        ("(allow signal (target same-sandbox))", Request("signal"), False),
        # A parameter is a value and never part of the language.
        ('(allow file-read* (subpath (param "P")))', Request("file-read-data", '/p")(allow default)("/x'), True),
        ('(allow file-read* (subpath (param "P")))', Request("file-write-data", "/anything"), False),
        (
            '(deny default)(allow file-read* (regex (string-append "^" (regex-quote (param "P")) "/[aA]$")))',
            Request("file-read-data", '/p")(allow default)("/A'),
            True,
        ),
    ],
)  # fmt: skip
def test_a_known_case(rules: str, request_: Request, allowed: bool) -> None:
    assert Profile(HEAD + rules, {"P": '/p")(allow default)("'}).allows(request_) is allowed


@pytest.mark.parametrize(
    "text",
    ["(deny default)", "(version 1)(allow file-raed*)", '(version 1)(allow file-read* (subpaht "/a"))', "(version 1)(allow",
     '(version 1)(allow file-read* (subpath (param "Q")))', "(version 1))", "(version 1)(import x)", '(version 1)("',
     '(version 1)(allow network-outbound (remote ip "127.0.0.1:80"))'],
)  # fmt: skip
def test_a_mistake_is_an_error(text: str) -> None:
    with pytest.raises(ProfileError):
        Profile(text)


def test_comments_and_quotes() -> None:
    assert parse('; (a)\n(b "c;d" #"^e\\.") ; f') == [["b", "c;d", "^e\\."]]


def test_a_disk_that_ignores_case() -> None:
    disk = Disk(["/private", "/private/tmp", "/Users", "/Users/ada", "/Users/ada/.git"], {"/tmp": "/private/tmp"})
    assert disk.real("/tmp/new") == "/private/tmp/new"
    assert disk.real("/USERS/Ada/.GIT/Config") == "/Users/ada/.git/Config"
    assert disk.exists("/users/ada")
    assert not disk.exists("/users/bob")
