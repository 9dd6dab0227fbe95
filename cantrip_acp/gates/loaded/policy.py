"""Loading policy: checks a module's name (always ``cantrip_acp.hot.NAME``), its signature, and the wards that allow it.

``NAME`` without the prefix means ``cantrip_acp.hot.NAME``. The package ``cantrip_acp.hot`` does not exist, so a loaded
module can never replace another module, and especially not a module of this package.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import keyword
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cantrip_acp.files.installation import install_command
from cantrip_acp.gates.confinement import Root
from cantrip_acp.gates.wards import Wards
from cantrip_acp.types.errors import DefinitionError, GateError

PREFIX = "cantrip_acp.hot."
LONGEST = 100
_SEGMENT = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z", re.ASCII)


class NameRefused(ValueError):
    """The module name is not allowed. The text says why."""


def full_name(name: str) -> str:
    """Return the full name, ``cantrip_acp.hot.textkit`` for ``textkit``. Raises `NameRefused`."""
    shown = repr(name if len(name) <= LONGEST else name[:LONGEST] + "…")
    if len(name) > LONGEST:
        raise NameRefused(f"{shown} is too long for a module name: the limit is {LONGEST} characters")
    segments = name.split(".")
    if not all(_SEGMENT.match(each) and not keyword.iskeyword(each) for each in segments):
        raise NameRefused(
            f"{shown} is not a valid module name: use ASCII letters, digits, '_' and '.', such as {PREFIX}textkit"
        )
    first = segments[0].lower()
    if first == "cantrip_acp" or first.startswith("cantrip"):
        if not name.startswith(PREFIX):
            raise NameRefused(
                f"{shown} is a name of cantrip-acp itself, whose modules can never be replaced; "
                f"loaded modules have names like {PREFIX}NAME"
            )
        return name
    if segments[0] in sys.stdlib_module_names or segments[0] in sys.builtin_module_names:
        raise NameRefused(
            f"{shown} is a name of Python's standard library, which is never replaced; use another, or {PREFIX}{name}"
        )
    return PREFIX + name


# A module may be loaded if every ward that is set allows it. If none is set, no module is allowed.
# - allow_compile_modules: its full name is in the list.
# - allow_compile_paths: its source is one of these files, or a file in one of these folders. The host reads it.
# - allow_compile_sha256: the SHA-256 of its source is in the list.
# - allow_compile_signers: its source is signed by one of these keys.
# An empty list allows nothing. The module's name is always ``cantrip_acp.hot.*``.

LARGEST = 1_048_576
"""Bytes of a module's source."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module to load. ``source`` is the checked text, and exactly this text is loaded. ``path`` is its file, if any."""

    name: str
    source: str
    sha256: str
    path: str | None = None
    signer: str | None = None

    def record(self) -> dict[str, Any]:
        """The data of the module for observations and looms."""
        optional = {"path": self.path, "signer": self.signer}
        return {"module": self.name, "sha256": self.sha256, **{k: v for k, v in optional.items() if v is not None}}


def check_module(args: Mapping[str, Any], wards: Wards, workspace: Path | None) -> Module:
    """Check the module of a call against all wards, and return it. The `GateError` names the ward that refuses."""
    try:
        name = full_name(args["module"])
    except NameRefused as error:
        raise GateError(str(error)) from None
    if not wards.compiles:
        raise GateError(
            "no module may be compiled here: the circle has none of the wards allow_compile_modules, allow_compile_paths, "
            "allow_compile_sha256 and allow_compile_signers"
        )
    # Check the name before the file is read, so that a caller without permission learns nothing about the file.
    if wards.allow_compile_modules is not None and name not in _names(wards.allow_compile_modules):
        raise GateError(
            f"{name} is not allowed by the ward allow_compile_modules ({_join(wards.allow_compile_modules)})"
        )
    raw, path = _source(args, wards, workspace)
    if len(raw) > LARGEST:
        raise GateError(f"the source has {len(raw):,} bytes; a module may have {LARGEST:,}")
    digest = hashlib.sha256(raw).hexdigest()
    wanted = args.get("sha256")
    if wanted is not None and _digest(wanted) != digest:
        raise GateError(f"the source has the SHA-256 {digest}, not {wanted!r}")
    if wards.allow_compile_sha256 is not None and digest not in map(_digest, wards.allow_compile_sha256):
        raise GateError(f"the SHA-256 of the source, {digest}, is not allowed by the ward allow_compile_sha256")
    signer = None
    if wards.allow_compile_signers is not None:
        signer = _signer(args.get("signature"), wards.allow_compile_signers, raw)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise GateError(f"the source is not UTF-8 (byte {error.start})") from None
    if "\0" in text:
        raise GateError("the source has a NUL character, which is not allowed in Python")
    return Module(name, text, digest, path, signer)


def _source(args: Mapping[str, Any], wards: Wards, workspace: Path | None) -> tuple[bytes, str | None]:
    """Get the bytes of the source, and the path of their file (None for text)."""
    source, path = args.get("source"), args.get("path")
    if (source is None) == (path is None):
        raise GateError("give either the module's text as source, or its file as path")
    allowed = wards.allow_compile_paths
    if path is None:
        if allowed is not None:
            raise GateError(
                "the ward allow_compile_paths requires a file",
                f"write the module into {_join(allowed)}, and give its path",
            )
        return str(source).encode("utf-8", "surrogatepass"), None
    if allowed is None:
        raise GateError("no file may be loaded without the ward allow_compile_paths", "give the text as source")
    return _read(str(path), allowed, wards, workspace)


def _read(path: str, allowed: tuple[str, ...], wards: Wards, workspace: Path | None) -> tuple[bytes, str]:
    """Read a file below an allowed folder, without following links. Returns its bytes and its path."""
    base = os.fspath(workspace) if workspace is not None else None
    if base is None and not os.path.isabs(path):
        raise GateError(f"{path!r} is relative, and there is no workspace")
    full = os.path.normpath(os.path.join(base or "/", path))
    changeable = (*((base,) if base else ()), *wards.bash_writable_paths, *wards.code_writable_paths)
    for folder in allowed:
        if base is not None:
            folder = os.path.normpath(os.path.join(base, folder))
        if full != folder and not full.startswith(folder.rstrip("/") + "/"):
            continue
        # If only the file is allowed, use its folder as the root, and check below that the file is not a link.
        root = os.path.dirname(folder) if full == folder else folder
        with Root(root, changeable).find(full) as place:
            descriptor, _ = place.open_file()
            if full == folder and place.absolute != full:
                os.close(descriptor)
                raise GateError(f"{path!r} is a link to a file that allow_compile_paths does not allow")
            with os.fdopen(descriptor, "rb") as file:
                return file.read(LARGEST + 1), place.absolute
    raise GateError(f"{path!r} is not allowed by the ward allow_compile_paths ({_join(allowed)})")


def _signer(given: str | None, allowed: tuple[str, ...], raw: bytes) -> str:
    if given is None:
        raise GateError(
            "the ward allow_compile_signers requires a signature", "give the Ed25519 signature of the source"
        )
    try:
        found = find_signer(allowed, raw, signature(given))
    except ValueError as error:
        raise GateError(f"the signature cannot be read: {error}") from None
    if found is None:
        raise GateError("the signature does not match this source and a key of the ward allow_compile_signers")
    return found


def check_wards(wards: Wards) -> None:
    """Check that the digests and keys in wards are valid. Raises `DefinitionError`."""
    for digest in wards.allow_compile_sha256 or ():
        if len(_digest(digest)) != 64 or not set(_digest(digest)) <= set("0123456789abcdef"):
            raise DefinitionError(
                f"{digest!r} is not a SHA-256, which has 64 hexadecimal digits", where="allow_compile_sha256"
            )
    for signer in wards.allow_compile_signers or ():
        try:
            parse_key(signer)
        except ValueError as error:
            raise DefinitionError(f"{signer!r} is not a public key: {error}", where="allow_compile_signers") from None


def _names(allowed: tuple[str, ...]) -> set[str]:
    found = set()
    for name in allowed:
        try:
            found.add(full_name(name))
        except NameRefused:
            # A module with this name can never be loaded.
            continue
    return found


def _digest(text: str) -> str:
    return text.strip().lower().removeprefix("sha256:")


def _join(allowed: tuple[str, ...]) -> str:
    return ", ".join(allowed) if allowed else "it allows nothing"


# Ed25519 signatures of a module's source, checked with the public keys in the ward allow_compile_signers.
# A key is written as in ~/.ssh/id_ed25519.pub, or as 32 bytes in base64 or hexadecimal. A signature is 64 bytes in either.
# Any tool can make a signature of the source, for example:
#   openssl pkeyutl -sign -rawin -inkey key.pem -in textkit.py | base64 -w0

_SSH = "ssh-ed25519"
_HEAD = b"\0\0\0\x0bssh-ed25519\0\0\0\x20"
_LONGEST = 1_000


def parse_key(text: str) -> bytes:
    """Parse a public key. Returns its 32 bytes. Raises ValueError for other text."""
    words = text.split()
    if words[:1] == [_SSH] and len(words) > 1:
        blob = _decode_bytes(words[1])
        if len(blob) != len(_HEAD) + 32 or not blob.startswith(_HEAD):
            raise ValueError("it is not an ssh-ed25519 key")
        return blob[len(_HEAD) :]
    found = _decode_bytes(text)
    if len(found) != 32:
        raise ValueError(f"an Ed25519 public key has 32 bytes, but this has {len(found)}")
    return found


def signature(text: str) -> bytes:
    """Parse a signature. Returns its 64 bytes. Raises ValueError for other text."""
    found = _decode_bytes(text)
    if len(found) != 64:
        raise ValueError(f"an Ed25519 signature has 64 bytes, but this has {len(found)}")
    return found


def _decode_bytes(text: str) -> bytes:
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


def find_signer(signers: Iterable[str], source: bytes, given: bytes) -> str | None:
    """Find the first signer whose key matches the signature; None if there is none.

    Raises `GateError` if the library ``cryptography`` is not installed.
    """
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise GateError(
            "the ward allow_compile_signers needs the library cryptography, which is not installed here: "
            + install_command("signatures")
        ) from None
    for signer in signers:
        try:
            Ed25519PublicKey.from_public_bytes(parse_key(signer)).verify(given, source)
        except (InvalidSignature, ValueError):
            continue
        return signer
    return None
