"""What has the shape of a secret: each kind is found wherever it stands, ordinary text is not, and no text takes long."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.text.redaction import SECRET_SHAPES, ShapeMask

BODY = "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789aBcDeFgHiJkL"
HEX = "0123456789abcdef" * 4
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7x\nabc/+=\n-----END RSA PRIVATE KEY-----"

SECRETS = {
    f"sk-proj-{BODY}": "api-key",
    "sk-abcdefghijklmnopqrst": "api-key",
    "sk-live-0123456789": "api-key",
    f"sk-ant-api03-{BODY}": "anthropic-key",
    f"sk-or-v1-{HEX}": "openrouter-key",
    f"gsk_{BODY}": "api-key",
    f"xai-{BODY}": "api-key",
    f"hf_{BODY}": "huggingface-token",
    "AIzaSyA" + BODY[:32]: "google-key",
    "AKIAIOSFODNN7EXAMPLE": "aws-access-key",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a": "github-token",
    f"github_pat_{BODY}": "github-token",
    f"glpat-{BODY[:20]}": "gitlab-token",
    "xoxb-123456789012-abcdefghij": "slack-token",
    f"npm_{BODY[:36]}": "package-token",
    f"pypi-{BODY}": "package-token",
    f"sk_live_{BODY[:24]}": "stripe-key",
    f"SG.{BODY[:22]}.{BODY[:40]}": "sendgrid-key",
    f"dapi{HEX[:32]}": "databricks-token",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N": "jwt",
    PEM: "private-key",
    "-----BEGIN PRIVATE KEY-----\n" + "A" * 40 + "\nabcdef": "private-key",
}

ORDINARY = [
    "task-list-of-things-to-do-now",
    "either-or-something-quite-long-indeed",
    "https://example.com:8080/a@b",
    "see -----BEGIN PRIVATE KEY----- in the documents",
    "secret_rotation_schedule_default_value",
    "the bearer of this letter is welcome",
    "def key_of(token): return token_ids[0]",
    "AKIA is a prefix, and eyJ another",
    "a" * 100,
    "data:image/png;base64," + "AKIAIOSFODNN7EXAM+LE/" * 4,
    "",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "around", ["%s", "KEY=%s ", '"%s"', "\x1b[31m%s\x1b[0m", "a\n%s\nb", "https://h/?k%%3D%s&x", "(%s)"]
)
def test_a_secret_is_found_where_it_stands(secret: str, around: str) -> None:
    text = around % secret
    shapes = ShapeMask()
    assert shapes.text(text) == around % f"[redacted-{SECRETS[secret]}-1]"
    # The same in JSON that is itself a text, as a call's arguments are: it stays JSON.
    told = json.loads(shapes.text(json.dumps({"text": text})))
    assert told == {"text": around % f"[redacted-{SECRETS[secret]}-{1 + (json.dumps(secret)[1:-1] != secret)}]"}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgres://me:hunter2@db/x", "postgres://me:[redacted-url-password-1]@db/x"),
        ("Authorization: Bearer abcdefghijklmnop1234", "Authorization: Bearer [redacted-bearer-token-1]"),
        ('"Authorization": "Basic dXNlcjpwYXNzd29yZA=="', '"Authorization": "Basic [redacted-basic-credentials-1]"'),
        (
            "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "aws_secret_access_key = [redacted-aws-secret-key-1]",
        ),
        (
            "https://hooks.slack.com/services/T0/B0/" + BODY,
            "https://hooks.slack.com/services/[redacted-slack-webhook-1]",
        ),
    ],
)
def test_what_stands_around_a_secret_stays(text: str, masked: str) -> None:
    assert ShapeMask().text(text) == masked
    assert ShapeMask().text(masked) == masked


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays(text: str) -> None:
    assert ShapeMask().text(text) == text


def test_one_secret_has_one_mask_and_another_has_another() -> None:
    one, two = f"ghp_{BODY[:30]}", f"ghp_{BODY[5:35]}"
    shapes = ShapeMask()
    told = shapes.data({"say": f"{one} {two}", one: [one, 3, None, two]})
    first, second = "[redacted-github-token-1]", "[redacted-github-token-2]"
    assert told == {"say": f"{first} {second}", first: [first, 3, None, second]}
    assert shapes.found == 5
    assert one not in repr(shapes)


@pytest.mark.parametrize("begin", sorted({begins[0] for _, begins, _ in SECRET_SHAPES}))
def test_no_text_takes_long(begin: str) -> None:
    """Quadratic time would take minutes for each of these and more."""
    run = "A0a" * 30_000
    for text in (
        begin * (90_000 // len(begin)),
        begin + run,
        f"-{begin}" * (90_000 // len(begin)),
        f"{begin} " * 15_000,
    ):
        started = time.process_time()
        ShapeMask().text(text)
        assert time.process_time() - started < 10


@given(st.text(), st.sampled_from(sorted(SECRETS)), st.text())
def test_a_secret_never_survives(before: str, secret: str, after: str) -> None:
    text = f"{before} {secret} {after}"
    assert secret not in ShapeMask().text(text)
