"""Ed25519 signatures of a module's bytes, checked against the public keys in the ward ``allow_compile_signers``.

A key is written as in ``~/.ssh/id_ed25519.pub``, or as its 32 bytes in base64 or hexadecimal; so is a signature's 64
bytes. The source itself is signed, so that any tool can sign:

    openssl pkeyutl -sign -rawin -inkey key.pem -in textkit.py | base64 -w0
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from cantrip_acp.core.errors import GateError

INSTALL = "pip install 'cantrip-acp[signatures]'"
_SSH = "ssh-ed25519"
_HEAD = b"\0\0\0\x0bssh-ed25519\0\0\0\x20"
_LONGEST = 1_000


def key(text: str) -> bytes:
    """The 32 bytes of a public key. Raises ValueError for anything else."""
    words = text.split()
    if words[:1] == [_SSH] and len(words) > 1:
        blob = _bytes(words[1])
        if len(blob) != len(_HEAD) + 32 or not blob.startswith(_HEAD):
            raise ValueError("it is no ssh-ed25519 key")
        return blob[len(_HEAD) :]
    found = _bytes(text)
    if len(found) != 32:
        raise ValueError(f"an Ed25519 public key has 32 bytes, this is {len(found)}")
    return found


def signature(text: str) -> bytes:
    """The 64 bytes of a signature. Raises ValueError for anything else."""
    found = _bytes(text)
    if len(found) != 64:
        raise ValueError(f"an Ed25519 signature has 64 bytes, this is {len(found)}")
    return found


def _bytes(text: str) -> bytes:
    text = "".join(text.split())
    if len(text) > _LONGEST:
        raise ValueError("it is too long")
    try:
        if len(text) in (64, 128):
            return binascii.unhexlify(text)
    except binascii.Error:
        # Not hexadecimal, so it may be base64.
        pass
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("it is neither base64 nor hexadecimal digits") from None


def signed_by(signers: Iterable[str], source: bytes, given: bytes) -> str | None:
    """The first signer whose signature this is; None where there is none.

    Raises `GateError` where the library that checks signatures is missing.
    """
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise GateError(
            f"the ward allow_compile_signers needs the library cryptography, which is not installed here: {INSTALL}"
        ) from None
    for signer in signers:
        try:
            Ed25519PublicKey.from_public_bytes(key(signer)).verify(given, source)
        except (InvalidSignature, ValueError):
            continue
        return signer
    return None
