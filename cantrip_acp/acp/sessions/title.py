"""Session title: derived from the user's first request by rules, without a query to a model.

Greetings, courtesies, markup, terminal codes and the long parts of URLs are removed. If there is no request in words,
the title is the error of a traceback, the first line of code, or the name of a link. A greeting is a title only until a
request comes.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote

from cantrip_acp.text.redaction import beginning
from cantrip_acp.text.sanitize import without_links

MAX_TITLE = 60
MAX_CHOSEN = 200
"""Characters of the longest title that a user can choose."""
_MAX_READ = 6_000
"""Characters of an intent that are read: this many from its start, and from its end to find the error of a traceback."""
_MAX_LINE = 400
"""Characters of one line that are read."""

_TERMINAL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|\Z)|\x1b[ -/]*[0-~]", re.DOTALL
)
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n?(.*?)(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[@?([^\]\n]*)\]\([^)\n]*\)")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_PAIR = re.compile(r"<([A-Za-z][\w-]*)(?:\s[^<>\n]*)?>([^<\n]*)</\1>")
_BLOCK = re.compile(r"^<([A-Za-z][\w-]*)(?:\s[^<>\n]*)?>[ \t]*\n.*?^</\1>[ \t]*$", re.DOTALL | re.MULTILINE)
_TAG_LINE = re.compile(r"^\s*</?[A-Za-z][^<>\n]{0,200}>\s*$", re.MULTILINE)
_BULLET = re.compile(r"(?:\s*(?:#{1,6}(?=\s)|[*+•-](?=\s)|\d{1,3}[.)](?=\s)|\[[ xX]\](?=\s)))*\s*")
_EMPHASIS = re.compile(
    r"(?<![\w*])(\*{1,3})(?=[^\s*])(.+?)(?<=[^\s*])\1(?![\w*])|(?<!\w)(_{1,2})(?=[^\s_])(.+?)(?<=[^\s_])\3(?![\w.(])"
)
_ADDRESS = re.compile(
    r"\b(?:https?|ftp|wss?)://(?:[^\s/@]*@)?(?:www\.)?([^\s<>\"'?#]+)(?:[?#][^\s<>\"']*)?", re.IGNORECASE
)
_GREETING = (
    r"(?:hi|hiya|hello|hey|greetings|good (?:morning|afternoon|evening)|dear|hallo|guten (?:tag|morgen|abend)|moin|servus|"
    r"bonjour|bonsoir|salut|hola|buenos días|buenas|ciao|salve|olá|привет|здравствуйте|你好|您好|こんにちは|안녕하세요)"
    r"(?: (?:there|all|again|everyone|everybody|folks|team|friend|my friend|agent|assistant|claude|cantrip|familiar))*"
)
_PAUSE = r"[ \t]*[,!.:;，。！、…—–-]+\s*"
_ASKS = (
    r"(?:please|kindly|(?:can|could|would|will) (?:you|u|we)\b(?: please| kindly)?|"
    r"i(?:'d|’d| would) (?:like|love|want)(?: you)? to|"
    r"i (?:want|need)(?: you)? to|let(?:'s|’s| us)|help me(?: to)?(?! (?:with|on|in|out|about|understand)\b)|"
    r"bitte|kannst du(?: bitte)?|könntest du(?: bitte)?|können sie(?: bitte)?|por favor|s['’]il (?:te|vous) pla[iî]t|peux-tu|"
    r"pourrais-tu|pouvez-vous|puedes|podrías)\b"
)
_COURTESY = re.compile(
    rf"(?:(?:{_GREETING}|ok|okay|so|now|well|thanks|thank you|alright|right|sure|great)"
    rf"(?:{_PAUSE}|\s+(?=(?:(?:so|now|well|then) )?{_ASKS}))"
    rf"|{_ASKS}[\s,]*)+",
    re.IGNORECASE,
)
_HI = re.compile(r"(?:hi|hey)\s+(?=(?:\S+\s+){2})", re.IGNORECASE)
_SMALL_TALK = re.compile(
    rf"(?:{_GREETING}|thanks|thank you|ok|okay|yes|no|test(?:ing)?|ping|see what is attached|[^\w]*)[\s,!.]*",
    re.IGNORECASE,
)
_ERROR = re.compile(
    r"^(?:Uncaught |Exception in thread \S+ |E\s+)?("
    r"(?:[\w$]{1,80}[.:]{1,2}){0,12}\w{0,80}(?:Error|Exception|Warning|Interrupt|Exit)\b"
    r"(?::.*)?|panic: .*|thread '[^']*' panicked at .*|fatal(?: error)?: .*|error(?:\[\w+\])?: .*)$",
    re.MULTILINE,
)
_TRACE = re.compile(
    r"^Traceback \(most recent call last\)|^\s+at .+\(.+\)$|^\s*File \".+\", line \d+|^goroutine \d+ \[", re.MULTILINE
)
_SENTENCE = re.compile(r"(?<=[^\s.]{2})[.!?]+(?=\s+[^a-z\s]|\s*\Z)")
_FULL_STOP = re.compile(r"[。！？]")
_SKIPPED = re.compile(
    r"\s*(?:#!|//|/\*|\*|#|--|;|import\b|from\b|using\b|package\b|use\b|#include|require\b|<\?|[{}()\[\];]+\s*$|\s*$)"
)


def title_of(intent: str) -> str | None:
    """The first request in an intent, in at most `MAX_TITLE` characters. None if there is no readable text.

    >>> title_of("Hi! Could you please fix the failing test in `tests/test_app.py`? It broke today.")
    'Fix the failing test in tests/test_app.py'
    """
    text = _TERMINAL.sub("", intent[:_MAX_READ].replace("\r\n", "\n").replace("\r", "\n"))
    code = "\n".join(match[2] for match in _FENCE.finditer(text))
    prose = _PAIR.sub(r"\2", _COMMENT.sub(" ", _FENCE.sub("\n", text)))
    # Editors add blocks in tags to a prompt. Such a block is not the request, unless there is no other text.
    prose = _TAG_LINE.sub("", rest if (rest := _BLOCK.sub("\n", prose)).strip() else prose)
    lines = [line for line in map(_line, _without_quotes(prose)) if line]
    request = next((line for line in lines if not _SMALL_TALK.fullmatch(line)), None)
    error = _error(f"{text}\n{intent[len(text) :][-_MAX_READ:]}") if _TRACE.search(text) or request is None else None
    if request is not None and (_TRACE.match(request) or (error is not None and request.endswith(error))):
        request = None
    if request is not None and request.endswith(":") and len(request) < MAX_TITLE // 2:
        detail = error or next(iter(lines[lines.index(request) + 1 :]), None) or _first_of(code)
        request = f"{request} {_line(detail)}" if detail else request
    if request:
        return _format_title(request, words=True)
    other = (_line(error) if error else None) or _first_of(code)
    return _format_title(other) if other else _format_title(" ".join(lines), words=True)


def better_title(title: str | None, intent: str) -> str | None:
    """A better title for a session after this intent. None if the present title should stay."""
    if title is not None and not _SMALL_TALK.fullmatch(title):
        return None
    found = title_of(intent)
    return found if found != title and (title is None or (found and not _SMALL_TALK.fullmatch(found))) else None


def chosen_title(text: str) -> str:
    """A title that the user chose, on one line and in at most `MAX_CHOSEN` characters. Empty if nothing readable is left."""
    line = " ".join("".join(c if _is_visible(c) else " " for c in beginning(text, 4 * MAX_CHOSEN)).split())
    return line if len(line) <= MAX_CHOSEN else beginning(line, MAX_CHOSEN - 1).rstrip() + "…"


def _without_quotes(prose: str) -> list[str]:
    """The lines that are not quotations. If all lines are quotations, these lines without their marks."""
    lines = [line for line in prose.split("\n") if line.strip()]
    own = [line for line in lines if not line.lstrip().startswith(">")]
    return own or [line.lstrip("> \t") for line in lines]


def _line(line: str) -> str:
    """A line without markup and greeting. Empty if nothing readable is left."""
    line = line[_match_end(_BULLET, line) :][:_MAX_LINE]
    pieces = line.split("`")
    line = "".join(piece if n % 2 else _strip_markup(piece) for n, piece in enumerate(pieces))
    line = " ".join("".join(c if _is_visible(c) else " " for c in line).split())
    rest = line[_match_end(_COURTESY, line) :]
    rest = rest[_match_end(_HI, rest) :]
    line = rest if " " in rest or "/" in rest or (rest and not rest.isascii()) else line
    return line if any(c.isalnum() or ord(c) > 0x2000 for c in line) else ""


def _strip_markup(text: str) -> str:
    text = _LINK.sub(lambda match: match[1], without_links(text))
    text = _ADDRESS.sub(lambda match: unquote(match[1]).rstrip("/"), text)
    return _EMPHASIS.sub(lambda match: match[2] or match[4], text)


def _match_end(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.match(text)
    return match.end() if match is not None else 0


def _is_visible(character: str) -> bool:
    # Joiners combine characters in emoji and in some scripts. Other invisible characters could hide text.
    return character.isprintable() or character in "\u200c\u200d"


def _error(text: str) -> str | None:
    """The error message of a traceback."""
    found = [match[1] for match in _ERROR.finditer(text)]
    if not found:
        return None
    # Python prints the error last. Other languages print it first.
    return found[-1] if "Traceback (most recent call last)" in text else found[0]


def _first_of(code: str) -> str | None:
    """The first line of code that is characteristic of the program."""
    lines = [line.strip() for line in code.split("\n") if line.strip()]
    first = next((line for line in lines if not _SKIPPED.match(line)), lines[0] if lines else None)
    return first.rstrip("{: ") if first else None


def _format_title(text: str, *, words: bool = False) -> str | None:
    """Shorten a text to `MAX_TITLE` characters. With ``words`` its first letter becomes a capital; code stays as it is."""
    text = " ".join("".join(c if _is_visible(c) else " " for c in text[: 4 * _MAX_LINE]).split())
    end = _SENTENCE.search(text, 8) or _FULL_STOP.search(text, 3)
    if end is not None:
        text = text[: end.start()]
    text = text.lstrip(" ,;:!?–—").rstrip(" .,;:!?–—-")
    first = text.split(" ", 1)[0]
    if len(text) > MAX_TITLE:
        text = _shorten(text)
    if words and first.isalpha() and first.islower() and len(text[0].upper()) == 1:
        text = text[0].upper() + text[1:]
    return text or None


def _shorten(text: str) -> str:
    """Cut a text between words if possible, and never inside a character that consists of several code points."""
    first = text.split(" ", 1)[0]
    if len(first) >= MAX_TITLE and first.count("/") > 1:
        # The end of a path is its most useful part.
        tail = first[-(MAX_TITLE - 2) :]
        return "…" + tail[max(tail.find("/"), 0) :]
    end = MAX_TITLE - 1
    while end > 1 and (_joins_previous(text[end]) or text[end - 1] == "\u200d" or _splits_flag(text, end)):
        end -= 1
    head, space, _ = text[:end].rpartition(" ")
    return (head if space and len(head) > MAX_TITLE // 2 else text[:end]).rstrip(" ,;:-–—") + "…"


def _joins_previous(character: str) -> bool:
    return (
        character == "\u200d"
        or unicodedata.category(character) in ("Mn", "Me", "Mc")
        or "\U0001f3fb" <= character <= "\U0001f3ff"
    )


def _splits_flag(text: str, end: int) -> bool:
    """Whether a cut at ``end`` would separate the two letters of a flag emoji."""
    letters = 0
    while letters < end and "\U0001f1e6" <= text[end - 1 - letters] <= "\U0001f1ff":
        letters += 1
    return letters % 2 == 1 and "\U0001f1e6" <= text[end] <= "\U0001f1ff"
