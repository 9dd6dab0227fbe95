"""Redaction: removes secrets from text that is written, shown or sent.

There are two levels. Observations lose only the *values* that this process knows as secrets (keys and tokens of its
environment, and registered ones): an entity that edits files must see files as they are. Diagnostics (logs, errors,
protocol messages) and exports also lose everything that looks like a secret (`SECRET_SHAPES`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from typing import cast as typed

if TYPE_CHECKING:
    from cantrip_acp.types.styled import Styled

MASK = "[redacted]"

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH|COOKIE|PRIVATE_KEY|DSN)(?:_|$)",
    re.IGNORECASE,
)
_RUN = "[A-Za-z0-9_\\-]"
_PEM = "-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_ASSIGNED = r"[\\\"']{0,4}\s{0,8}[:=]\s{0,8}[\\\"']{0,4}"
_PREFIXED = (
    *(
        "gsk_",
        "r8_",
        "fw_",
        "tgp_v1_",
        "sbp_",
        "ntn_",
        "secret_",
        "lin_api_",
        "dop_v1_",
        "doo_v1_",
        "sntrys_",
        "sntryu_",
    ),
    *("glsa_", "glc_", "rnd_", "figd_", "pscale_tkn_", "pscale_pw_", "PMAK-", "NRAK-", "rubygems_", "shpat_", "shpca_"),
    *("shppa_", "shpss_", "dp.pt.", "dp.st.", "sq0atp-", "sq0csp-", "tskey-", "ATATT3x", "ATCTT3x"),
)
SECRET_SHAPES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "private-key",
        ("-----BEGIN ",),
        # Runs in linear time without a possessive group: each part stops at the next -----.
        _PEM + r'(?:[^-"]|-(?!----)){16}[^-"]*(?:-(?!----)[^-"]*)*-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----',
    ),
    # For a text that was cut: the end of the key is missing.
    (
        "private-key",
        ("-----BEGIN ",),
        _PEM + r"(?:\s|\\[nr])*[A-Za-z0-9+/=]{32,}(?:(?:\s|\\[nr])+[A-Za-z0-9+/=]{4,})*",
    ),
    ("url-password", ("://",), r'://[^\s/:@?#"\\<>]{0,256}+:(?P<secret>(?!\[redacted)[^\s/@"\\<>]{1,1024}+)@'),
    ("bearer-token", ("bearer", "Bearer", "BEARER"), r"\w{6}(?:\s|%20|\+){1,8}(?P<secret>[A-Za-z0-9._~+/\-]{16,}+=*)"),
    (
        "basic-credentials",
        ("authorization", "Authorization", "AUTHORIZATION"),
        r"\w{13}" + _ASSIGNED + r"[Bb](?:asic|ASIC)\s{1,8}(?P<secret>[A-Za-z0-9+/]{8,}+=*)",
    ),
    (
        "aws-secret-key",
        (
            "aws_secret",
            "AWS_SECRET",
            "awsSecret",
            "AwsSecret",
            "secretAccessKey",
            "SecretAccessKey",
            "secret_access_key",
        ),
        r"[A-Za-z_]{12,24}" + _ASSIGNED + r"(?P<secret>[A-Za-z0-9/+=]{40}+)(?![A-Za-z0-9/+=])",
    ),
    ("azure-key", ("AccountKey=", "SharedAccessKey="), r"[A-Za-z]+=(?P<secret>[A-Za-z0-9+/]{40,}+=*)"),
    ("slack-webhook", ("hooks.slack.com/",), r"[a-z.]+/[a-z]{1,20}/(?P<secret>[A-Za-z0-9/_\-]{16,}+)"),
    ("discord-webhook", ("/api/webhooks/",), rf"/api/webhooks/[0-9]{{5,25}}/(?P<secret>{_RUN}{{20,}}+)"),
    # No dot may follow a long run. So that the search stays linear, the run must not contain another beginning.
    ("jwt", ("eyJ",), rf"(?<![_\-])eyJ{_RUN}{{10,}}+\.{_RUN}{{10,}}+(?:\.{_RUN}*+)?"),
    ("anthropic-key", ("sk-ant-",), rf"sk-ant-{_RUN}{{8,}}+"),
    ("openrouter-key", ("sk-or-",), rf"sk-or-{_RUN}{{8,}}+"),
    ("api-key", ("sk-",), rf"sk-(?:{_RUN}{{16,}}+|(?=[A-Za-z_\-]{{0,16}}[0-9]){_RUN}{{10,}}+)"),
    (
        "api-key",
        ("pk-", "rk-", "or-", "gsk-", "xai-", "pplx-", "nvapi-", "csk-", "tvly-"),
        rf"[a-z]{{2,5}}-(?=[A-Za-z_\-]{{0,32}}[0-9]){_RUN}{{16,}}+",
    ),
    ("api-key", _PREFIXED, rf"(?:[A-Za-z0-9]{{2,8}}[_.\-]){{0,2}}[A-Za-z0-9]{{24,}}+{_RUN}*+"),
    ("mailgun-key", ("key-",), r"key-[0-9a-f]{32}(?![A-Za-z0-9])"),
    ("stripe-key", ("sk_", "pk_", "rk_", "whsec_"), r"(?:[spr]k_(?:live|test)|whsec)_[A-Za-z0-9+/]{10,}+"),
    ("google-key", ("AIza", "ya29.", "GOCSPX-"), rf"(?:AIza{_RUN}{{30,}}+|ya29\.{_RUN}{{20,}}+|GOCSPX-{_RUN}{{20,}}+)"),
    ("aws-access-key", ("AKIA", "ASIA", "ABIA", "ACCA"), r"[A-Z]{4}[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("github-token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"gh[a-z]_[A-Za-z0-9]{20,}+"),
    ("github-token", ("github_pat_",), r"github_pat_[A-Za-z0-9_]{20,}+"),
    ("gitlab-token", ("gl",), r"gl(?:pat|oas|dt|rt|cbt|ptt|ft|imt|agent|soat|ffct)-[A-Za-z0-9_\-.]{16,}+"),
    ("slack-token", ("xox", "xapp-"), r"(?:xox[a-z]|xapp)[\-.][A-Za-z0-9\-.]{10,}+"),
    ("huggingface-token", ("hf_", "api_org_"), r"(?:hf|api_org)_[A-Za-z0-9]{20,}+"),
    ("package-token", ("npm_", "pypi-", "dckr_"), rf"(?:npm_[A-Za-z0-9]{{30,}}+|(?:pypi-|dckr_[op]at_){_RUN}{{20,}}+)"),
    ("sendgrid-key", ("SG.",), rf"SG\.{_RUN}{{16,}}+\.{_RUN}{{16,}}+"),
    ("vault-token", ("hvs.", "hvb.", "hvr."), rf"hv[a-z]\.{_RUN}{{20,}}+"),
    ("databricks-token", ("dapi",), r"dapi[0-9a-f]{32}(?![A-Za-z0-9])"),
    ("twilio-key", ("SK",), r"SK[0-9a-f]{32}(?![A-Za-z0-9])"),
    ("telegram-token", (":AA",), rf"(?<=[0-9]{{8}}):(?P<secret>AA{_RUN}{{32,}}+)"),
    ("age-key", ("AGE-SECRET-KEY-1",), r"AGE-SECRET-KEY-1[A-Z0-9]{50,}+"),
)
"""Patterns of secrets: the kind, the texts that it can begin with, and its regular expression. If the expression also
matches text around the secret, its group ``secret`` is the secret itself. If two match at one place, the first
counts.

Each search takes linear time: beginnings are plain texts, what follows is matched possessively, and a match that can
fail late cannot contain its own beginning. No secret contains a quote or half an escape, so JSON in a text stays
valid.
"""

_ANYWHERE = frozenset(
    {"private-key", "url-password", "telegram-token", "discord-webhook", "slack-webhook", "aws-secret-key"}
)
"""Kinds that may begin in the middle of a word."""
_BEHIND_ESCAPE = re.compile(
    r"(?:\\[nrtbfv]|\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2}|(?:\x1b|\\u001[bB]|\\x1[bB]|\\033)\[[0-9;]{0,9}m)\Z"
)


@cache
def _shapes() -> tuple[tuple[str, str, bool, Callable[[str, int], re.Match[str] | None]], ...]:
    """Each beginning with its expression. Compiled on first use, because that is too slow for the program's start."""
    return tuple(
        (begin, kind, kind not in _ANYWHERE, re.compile(shape).match)
        for kind, begins, shape in SECRET_SHAPES
        for begin in begins
    )


def _begins_word(text: str, at: int) -> bool:
    """Whether a key can begin here: not in the middle of a word, but after an escape of JSON, a URL or a terminal."""
    before = text[at - 1 : at]
    return not (before.isascii() and before.isalnum()) or bool(_BEHIND_ESCAPE.search(text[max(0, at - 18) : at]))


def _found_shapes(text: str) -> list[tuple[int, int, str]]:
    """Start, end and kind of everything that looks like a secret, in order and without overlaps."""
    found: list[tuple[int, int, int, str]] = []
    for place, (begin, kind, word, match) in enumerate(_shapes()):
        at = text.find(begin)
        while at >= 0:
            shaped = match(text, at) if not word or _begins_word(text, at) else None
            if shaped is None:
                at = text.find(begin, at + 1)
                continue
            start, end = shaped.span("secret" if "secret" in shaped.re.groupindex else 0)
            found.append((start, place, end, kind))
            at = text.find(begin, shaped.end())
    found.sort()
    kept: list[tuple[int, int, str]] = []
    for start, _, end, kind in found:
        if not kept or start >= kept[-1][1]:
            kept.append((start, end, kind))
        elif end > kept[-1][1]:
            # Two matches overlap: mask both as one.
            kept[-1] = (kept[-1][0], end, kept[-1][2])
    return kept


_SAFE = re.compile(r"[A-Za-z0-9_.~-]+")
"""The characters that JSON and URLs write unchanged."""
_SHORTEST = 8
"""Shorter values are not treated as secrets: they would be found in ordinary text."""


def looks_secret(name: str) -> bool:
    """Whether a variable with that name probably holds a secret: ``OPENAI_API_KEY``, ``DB_PASSWORD``, ``GH_TOKEN``."""
    return bool(_SECRET_NAME.search(name))


def without_shapes(text: str, mask: Callable[[str, str], str]) -> str:
    """The text with everything that looks like a secret replaced by ``mask(kind, secret)``."""
    found = _found_shapes(text)
    if not found:
        return text
    out: list[str] = []
    last = 0
    for start, end, kind in found:
        out += text[last:start], mask(kind, text[start:end])
        last = end
    return "".join([*out, text[last:]])


def _without_shapes(value: Any, mask: Callable[[str, str], str]) -> Any:
    """JSON data with what looks like a secret replaced in every text, keys included; the same object if there is none."""
    if isinstance(value, str):
        # Base64 data contain every pattern by chance, and an image must stay intact.
        return value if len(value) < _SHORTEST or _DATA_URL.fullmatch(value) else without_shapes(value, mask)
    if isinstance(value, Mapping):
        found: Any = {_without_shapes(k, mask): _without_shapes(v, mask) for k, v in value.items()}
    elif isinstance(value, list | tuple):
        kind: Any = type(value)
        found = getattr(kind, "_make", kind)(_without_shapes(each, mask) for each in value)
    elif names := _fields(typed("Any", type(value))):
        found = _replaced(value, {name: _without_shapes(getattr(value, name), mask) for name in names})
    else:
        return value
    return value if found == value else found


def _plain_mask(kind: str, secret: str) -> str:
    return MASK


_DATA_URL = re.compile(r"data:[\w/+.\-]{0,100};base64,[A-Za-z0-9+/=\s]*")


class ShapeMask:
    """Replaces known secrets and everything that looks like one in JSON data, for data that leave this machine.

    While this object exists, one secret always has the same replacement (``[redacted-github-token-1]``), so that a
    text that is quoted later stays the same text. ``found`` counts the replacements.
    """

    def __init__(self, *, raw: bool = False) -> None:
        """``raw``: do not replace text that only looks like a secret."""
        self.raw = raw
        self.found = 0
        self._masks: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"ShapeMask({len(self._masks)} secrets)"

    def text(self, text: str) -> str:
        """The text with everything that looks like a secret replaced."""
        found: str = _without_shapes(text, self._mask)
        return found

    def data(self, value: Any) -> Any:
        """JSON data with known secrets, and everything that looks like one, replaced in every text, keys included."""
        known = shared().masked(value)
        return known if self.raw else _without_shapes(known, self._mask)

    def _mask(self, kind: str, secret: str) -> str:
        self.found += 1
        mask = self._masks.get(secret)
        if mask is None:
            self._numbers[kind] += 1
            mask = self._masks[secret] = f"[redacted-{kind}-{self._numbers[kind]}]"
        return mask

    def __reduce__(self) -> Any:
        raise TypeError("a ShapeMask contains secrets and cannot be pickled")


_V = TypeVar("_V")


# msgspec is imported where something other than a text is masked: the command line has a redactor before that.
@cache
def _no_text() -> frozenset[Any]:
    from msgspec import UnsetType

    return frozenset({int, float, bool, bytes, type(None), UnsetType})


@cache
def _encoder() -> Callable[[Any], bytes]:
    from msgspec.json import Encoder

    return Encoder(enc_hook=str).encode


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    """The fields of a Struct or a dataclass that may hold words; none of another class."""
    names = getattr(kind, "__struct_fields__", None) or tuple(getattr(kind, "__dataclass_fields__", ()))
    try:
        hints = typing.get_type_hints(kind)
    except NameError:
        return names
    return tuple(name for name in names if _may_hold_words(hints.get(name)))


def _may_hold_words(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(map(_may_hold_words, typing.get_args(hint)))
    return hint not in _no_text() and typing.get_origin(hint) is not typing.Literal


def _replaced(record: _V, changes: dict[str, Any]) -> _V:
    change: Any = dataclasses.replace
    if not dataclasses.is_dataclass(record):
        from msgspec.structs import replace as change

    return typed("_V", change(record, **changes))


class Redactor:
    """Replaces known secret values in text and in whatever holds text. Its repr shows none of them.

    The doors use `masked`: what is written, sent or shown passes one of them, and nothing behind a door masks.
    """

    __slots__ = ("_encoded", "_firsts", "_longest", "_pattern", "_values", "active")

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._firsts: re.Pattern[str] | None = None
        self._encoded: tuple[bytes, ...] = ()
        """The secrets as they are in a text of JSON."""
        self._longest = 0
        self.active = False
        """Whether any secret is registered."""
        self.add(*values)

    @classmethod
    def from_environment(cls) -> Redactor:
        """A redactor with the values of environment variables that have secret-looking names."""
        return cls(v for k, v in os.environ.items() if looks_secret(k) and not os.path.isabs(v))

    def add(self, *values: str) -> None:
        """Register more secret values, also as JSON and URLs write them. Values under 8 characters are ignored."""
        more = {v.strip() for v in values if len(v.strip()) >= _SHORTEST}
        more |= {form for value in more if not _SAFE.fullmatch(value) for form in _written(value)}
        if more - self._values:
            self._values = self._values | more
            longest_first = sorted(self._values, key=len, reverse=True)
            self._pattern = re.compile("|".join(re.escape(v) for v in longest_first))
            self._firsts = re.compile("[" + "".join(re.escape(c) for c in sorted({v[0] for v in longest_first})) + "]")
            self._encoded = tuple(
                json.dumps(v, ensure_ascii=False).encode("utf-8", "replace")[1:-1] for v in longest_first
            )
            self._longest = len(longest_first[0])
            self.active = True

    def text(self, text: str) -> str:
        """The text with known secrets masked."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def styled(self, styled: Styled) -> Styled:
        """The text with known secrets masked. A mask has one style, so no change of style tells of what it covers."""
        from cantrip_acp.types.styled import Styled, join

        if self._pattern is None:
            return styled
        if not styled.changes:
            return Styled(self.text(styled.text))
        pieces: list[Styled] = []
        at = 0
        for found in self._pattern.finditer(styled.text):
            start, end = found.span()
            first = styled.part(start, start + 1)
            pieces += styled.part(at, start), Styled(MASK, first.changes)
            at = end
        return join([*pieces, styled.part(at, len(styled.text))]) if pieces else styled

    def settled(self, text: str) -> int:
        """How many characters of a text can be masked now, whatever follows: a secret may begin at its end."""
        if self._pattern is None or self._firsts is None:
            return len(text)
        end = len(text)
        for begun in self._firsts.finditer(text, max(0, end - self._longest + 1)):
            rest = text[begun.start() :]
            if any(v.startswith(rest) for v in self._values):
                end = begun.start()
                break
        if end < len(text):
            for whole in self._pattern.finditer(text):
                if whole.start() < end < whole.end():
                    end = whole.end()
        return end

    def whole(self, text: str, end: int) -> int:
        """The last place up to ``end`` at which a cut divides no known secret."""
        if self._pattern is not None:
            for found in self._pattern.finditer(text, max(0, end - self._longest)):
                if found.end() > end:
                    return min(end, found.start())
        return end

    def masked(
        self,
        value: _V,
        encoded: bytes | bytearray | None = None,
        start: int = 0,
        *,
        shapes: bool | Collection[str] = False,
    ) -> _V:
        """The value with known secrets masked in every text in it: a text, JSON data with its keys, a tuple, a `Styled`, a
        dataclass or a Struct. The same object if it holds none; what cannot hold text stays as it is. ``encoded`` is its JSON,
        from ``start`` on, if there is one. With ``shapes``, what looks like a secret is masked too: everywhere, or below these
        keys of a mapping.

        A class says of its fields what no type tells, in attributes of the class:

        - ``diagnostics``: texts that also lose what looks like a secret, such as the error of a provider.
        - ``styled_fields``: fields with a text, each with the field that has its changes of style.
        - ``sealed``: fields that are no use if they are changed (signed by a provider), with what takes the place of one that
          holds a secret.
        - ``untouched``: fields with data that are no words, such as an image.
        """
        if self.active and (self.holds(value) if encoded is None else self.holds_encoded(encoded, start)):
            value = self._walked(value)
        if shapes is True:
            value = _without_shapes(value, _plain_mask)
        elif shapes and isinstance(value, dict):
            said = {key: _without_shapes(value[key], _plain_mask) for key in shapes if key in value}
            value = typed("_V", {**value, **said})
        for name in getattr(value, "diagnostics", ()):
            told = getattr(value, name)
            if told and (clean := _without_shapes(told, _plain_mask)) is not told:
                value = _replaced(value, {name: clean})
        return value

    def holds(self, value: Any) -> bool:
        """Whether a value contains a known secret. It looks at the JSON once, so an escape may be taken for a secret."""
        if self._pattern is None:
            return False
        if isinstance(value, str):
            return self._pattern.search(value) is not None
        try:
            return self.holds_encoded(_encoder()(value))
        except (TypeError, ValueError, RecursionError):
            # Half of a surrogate pair, or keys that JSON does not have.
            return True

    def holds_encoded(self, data: bytes | bytearray, start: int = 0) -> bool:
        """Whether a known secret is in a text of JSON, from ``start`` on."""
        # A loop, because it is faster than `any` and than one regular expression for all.
        for each in self._encoded:  # noqa: SIM110
            if data.find(each, start) >= 0:
                return True
        return False

    def _walked(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return self.text(value)
        if isinstance(value, Mapping):
            found = {self._walked(key): self._walked(each) for key, each in value.items()}
            return kind(found) if isinstance(value, dict) else found
        if isinstance(value, tuple):
            if hasattr(value, "changes"):
                return self.styled(typed("Styled", value))
            return (getattr(kind, "_make", kind))(map(self._walked, value))
        if isinstance(value, list | set | frozenset):
            return kind(map(self._walked, value))
        changes: dict[str, Any] = {}
        for name, styles in getattr(kind, "styled_fields", {}).items():
            text, styling = getattr(value, name), getattr(value, styles)
            if styling and text:
                from msgspec import UNSET

                from cantrip_acp.types.styled import Styled

                clean = self.styled(Styled(text, styling))
                changes |= {name: clean.text, styles: self._walked(clean.changes) or UNSET}
        untouched, sealed, no_text = getattr(kind, "untouched", ()), getattr(kind, "sealed", {}), _no_text()
        for name in _fields(typed("Any", kind)):
            old = getattr(value, name)
            if name in changes or name in untouched or type(old) in no_text:
                continue
            new = self._walked(old)
            if new is not old and new != old:
                changes[name] = sealed.get(name, new)
        return _replaced(value, changes) if changes else value

    def diagnostic(self, text: str) -> str:
        """The text with known secrets masked, and everything that looks like one. For logs and errors."""
        return without_shapes(self.text(text), _plain_mask)

    def __repr__(self) -> str:
        return f"Redactor({len(self._values)} values)"

    def __reduce__(self) -> Any:
        raise TypeError("a Redactor contains secrets and cannot be pickled")


def beginning(text: str, most: int) -> str:
    """The first characters of a text, fewer if the end would divide a known secret: no door recognizes half of one."""
    return text if len(text) <= most else text[: shared().whole(text, most)]


def ending(text: str, most: int) -> str:
    """The last characters of a text, and some before them if the cut would divide a known secret."""
    return text if len(text) <= most else text[shared().whole(text, len(text) - most) :]


def holds_shape(value: Any) -> bool:
    """Whether a text that looks like a secret is in JSON data."""
    mask = ShapeMask()
    mask.data(value)
    return mask.found > 0


class Pieces:
    """Cuts a text that comes in pieces so that no known secret is divided: each piece can be masked alone.

    Text that may begin a secret is held back.
    """

    __slots__ = ("_pending", "_redactor")

    def __init__(self, redactor: Redactor | None = None) -> None:
        self._redactor = redactor or shared()
        self._pending = ""

    def feed(self, piece: str) -> str:
        """The text that can be shown now; often all of it."""
        text = self._pending + piece
        end = self._redactor.settled(text)
        self._pending = text[end:]
        return text[:end]

    def end(self) -> str:
        """The text that was held back. Call it after the last piece."""
        text, self._pending = self._pending, ""
        return text


def _written(value: str) -> Iterator[str]:
    """The forms of a value in a text of JSON, and in a URL: a model writes the arguments of a call as JSON, for example."""
    from urllib.parse import quote

    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield quote(value, safe="", errors="replace")


@cache
def shared() -> Redactor:
    """The process's redactor, made from its environment on first use."""
    return Redactor.from_environment()
