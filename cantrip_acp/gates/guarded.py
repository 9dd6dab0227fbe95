"""What a gate never writes, and what it never shows, however the path to it is spelled.

**Protected**: version control, editor and agent configuration, shell start-up files. Whoever writes them has code run later,
outside of every sandbox. **Hidden**: environment files, keys and credentials. The sandbox guards the same names from
commands (`cantrip_acp.sandbox.guarded`, which this module may not import); a test holds the two lists together.
"""

from __future__ import annotations

import stat
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

PROTECTED = frozenset(
    {
        ".git", ".hg", ".svn", ".jj", ".gitconfig", ".husky", ".githooks",
        ".vscode", ".idea", ".zed", ".cantrip", ".mcp.json", ".claude", ".cursor", ".codex",
        ".envrc", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile",
        ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".inputrc",
        ".exrc", ".vimrc", ".nvimrc", ".nvim.lua", ".fleet",
        ".gemini", ".windsurf", ".kiro", ".continue", ".opencode", ".roo", ".aider.conf.yml",
    }
)  # fmt: skip
"""Names that no gate writes, at any depth, and nothing below them."""

HIDDEN_FILES = frozenset(
    {
        ".netrc", "_netrc", ".npmrc", ".yarnrc", ".pypirc", ".git-credentials", ".pgpass", ".my.cnf", ".s3cfg", ".boto",
        ".dockercfg", ".vault-token", ".terraformrc", "credentials.toml", ".envrc",
        "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk",
    }
)  # fmt: skip
HIDDEN_FOLDERS = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store"})
HIDDEN_SUFFIXES = (".p12", ".pfx", ".ppk", ".kdbx", ".keytab")
KEY_SUFFIXES = (".pem", ".key")
"""Hidden where only their owner may read them, as every tool makes a private key; a test's fixture is readable to all."""

EXAMPLES = frozenset({".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults"})
"""Environment files that are written to be read."""


@lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """A name as file systems that do not tell spellings apart see it.

    Case (macOS, Windows drives), invisible characters (HFS+), dots and spaces at the end and ``git~1`` (Windows drives)
    all lead to the same ``.git`` somewhere.
    """
    if name.isascii():
        folded = name.lower()
    else:
        kept = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
        folded = kept.casefold()
    folded = folded.rstrip(". ") or folded
    return ".git" if folded == "git~1" else folded.partition(":")[0] if ":" in folded else folded


def why_protected(parts: Sequence[str]) -> str | None:
    """Why nothing may be written there, to stand after the path; None where it may. ``parts``: names below the root."""
    for part in parts:
        if plain(part) in PROTECTED:
            return (
                f"is protected: what is in {part!r} can make programs run outside the sandbox, so only a person changes it. "
                "Say in your answer what should be changed there"
            )
    return None


def why_hidden(parts: Sequence[str], mode: int | None = None) -> str | None:
    """Why this may not be read, to stand after the path; None where it may.

    ``mode`` is that of the file: a folder is not an environment file, and a key is told by who may read it.
    """
    if not parts:
        return None
    name = plain(parts[-1])
    folder = next((part for part in parts if plain(part) in HIDDEN_FOLDERS), None)
    if folder is None and ((mode is not None and stat.S_ISDIR(mode)) or not _secret_file(name, mode)):
        return None
    what = f"what is in {folder!r} holds" if folder is not None else f"{parts[-1]!r} and files of its kind hold"
    hint = "Names without values may stand in .env.example" if name.startswith(".env") else "Work without it"
    return f"is hidden: {what} keys or credentials. {hint}"


def _secret_file(name: str, mode: int | None) -> bool:
    if name.startswith(".env"):
        return name not in EXAMPLES and (len(name) == 4 or name[4] in ".-_" or name == ".envrc")
    if name in HIDDEN_FILES or name.endswith(HIDDEN_SUFFIXES):
        return True
    return name.endswith(KEY_SUFFIXES) and mode is not None and not stat.S_IMODE(mode) & 0o077
