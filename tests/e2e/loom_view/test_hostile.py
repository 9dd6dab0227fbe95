"""What an entity wrote is shown and never run: every place of a turn, every trick, served and in one file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Loom
from cantrip_acp.loom.view import assets, serve, write_html
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.records import (
    CastRecord,
    ContextRecord,
    FilesRecord,
    ForkRecord,
    GateRecord,
    Observation,
    Output,
    RewardRecord,
    Turn,
    TurnMetadata,
    Utterance,
)
from tests.support.browser import Watch
from tests.support.view_looms import stamp

pytestmark = pytest.mark.timeout(400)

TRICKS = {
    "script": "<script>window.pwned = 'script'; alert(1)</script>",
    "closing": "</script></style></title></textarea><script>window.pwned = 'closing'; alert(1)</script>",
    "comment": "<!--<script>--><img src=x onerror=\"window.pwned='comment'\"><!-- ]]> -->",
    "handler": "<img src=x onerror=\"window.pwned='handler';alert(1)\"><body onload=alert(1)><details open ontoggle=alert(1)>",
    "svg": "<svg onload=\"window.pwned='svg'\"><script>window.pwned='svg'</script><animate onbegin=alert(1) attributeName=x></svg>",
    "frame": "<iframe srcdoc=\"<script>parent.pwned='frame'</script>\"></iframe><object data=http://elsewhere.example/></object>",
    "link": "[click](javascript:window.pwned='link') <a href=\"javascript:window.pwned='a'\">x</a> javascript:alert(1)",
    "remote": "<img src=http://elsewhere.example/b.png> <link rel=stylesheet href=//elsewhere.example>",
    "style": '<style>body{display:none;background:url(http://elsewhere.example/c)}</style><p style="position:fixed">',
    "template": "{{constructor.constructor('window.pwned=1')()}} ${window.pwned='template'} <%= 1 %> `${alert(1)}`",
    "form": "<form action=http://elsewhere.example><button></form><base href=//elsewhere.example>",
    "meta": '<meta http-equiv=refresh content="0;url=http://elsewhere.example">',
    "fence": "```html\n<script>window.pwned='fence'</script>\n```\n# <img src=x onerror=alert(1)>\n- **<img src=x>** `<b>`",
    "bidi": "a\u202egpj.exe\u202c \u2066x\u2069 \u200bz\u00ad \ufeff \U000e0041 \u2028 \u2029 end",
    "terminal": "\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07 \x1b]0;owned\x07"
    " \x1b]52;c;cHdu\x07 \x1b[2J\x1b[31mred \x9b31m\x1bP+q\x1b\\",
    "prototype": '{"__proto__": {"pwned": 1}, "constructor": {"prototype": {"pwned": 1}}, "diff": "<img src=x onerror=alert(1)>"}',
    "diff": "--- a/<img src=x onerror=alert(1)>\n+++ b/x\n@@ -1 +1 @@\n-<script>window.pwned='diff'</script>\n+\u202egpj\n",
}

BAD_IMAGE = "data:image/svg+xml,<svg onload=alert(1)>"


def harmful(path: Path) -> Path:
    """Every trick in every place of a loom that holds text."""
    with Loom.open(path) as loom:
        every = "\n".join(TRICKS.values())
        root = loom.begin("c<b>", {"system_prompt": every, TRICKS["handler"]: every}, {"gates": [every]}, "e")
        parent = root
        for n, (name, trick) in enumerate(TRICKS.items()):
            cast = f"r_{name}<b>"
            loom.append(CastRecord(cast, "start", f"e_{n}", "c<b>", trick, stamp(n), trick))
            loom.append(ContextRecord(f"x_{n}", f"e_{n}", cast, trick, trick, trick, trick, stamp(n)))
            loom.append(
                ContextRecord(
                    f"y_{n}",
                    f"e_{n}",
                    cast,
                    "s",
                    trick,
                    "",
                    None,
                    stamp(n),
                    "image/svg+xml",
                    "PHN2ZyBvbmxvYWQ9YWxlcnQoMSk+",
                )
            )
            loom.append(ContextRecord(f"z_{n}", f"e_{n}", cast, "s", trick, "", None, stamp(n), "image/png", BAD_IMAGE))
            results = (
                GateRecord(trick, trick, trick, False, "k1", {trick: trick}),
                GateRecord("write_file", {"path": trick, "content": trick}, {"diff": trick, "x": trick}, True, "k2"),
                GateRecord(
                    "edit_file",
                    {"path": trick, "old_text": trick, "new_text": trick + "\n" + trick},
                    [trick],
                    False,
                    "k3",
                ),
                GateRecord("image", {}, {"data": trick, "mime": trick, "title": trick}, False, "k4"),
            )
            said = Utterance(trick, trick, (ToolCall(trick, trick, trick), ToolCall("k1", "bash", trick)), trick)
            output = Output(
                stdout=trick,
                stderr=trick,
                value={trick: trick},
                error=trick,
                exit_code=1,
                stdout_styles=((0, trick), (1, "31")),
            )
            told = TurnMetadata(1, 1, 0, 0.1, 5.0, trick, trick, trick, trick)
            turn = Turn(f"t_{n}'\"><img src=x onerror=alert(1)>", parent, "c<b>", f"e_{n}", cast, "crystal", n, trick, said,
                        Observation(results, output), (trick, "write_file"), told, None, False, True, trick)  # fmt: skip
            loom.append(turn)
            loom.append(ForkRecord(f"k_{n}", turn.id, f"f_{n}", trick, (trick,), stamp(n)))
            loom.append(RewardRecord(turn.id, 1.0, trick, trick, trick))
            loom.append(
                CastRecord(
                    cast,
                    "end",
                    f"e_{n}",
                    "c<b>",
                    None,
                    stamp(n),
                    result=trick,
                    summary=trick,
                    reason=trick,
                    error=trick,
                )
            )
            files = FilesRecord(
                f"w_{n}", turn.id, f"e_{n}", trick, trick, trick, trick, trick, (trick,), None if n % 2 else trick
            )
            loom.append(files)
            parent = turn.id
    return path


def harmless(watch: Watch) -> None:
    """Fails where anything of a trick took effect."""
    page = watch.page
    assert page.evaluate("typeof window.pwned") == "undefined"
    assert page.evaluate("({}).pwned") is None
    odd = page.evaluate(
        """() => [...document.querySelectorAll('*')].filter((e) =>
            (/^(IFRAME|OBJECT|EMBED|BASE|A|ANIMATE|LINK|STYLE)$/i.test(e.tagName) && !e.closest('head'))
            || (e.tagName === 'SCRIPT' && e.type !== 'module' && e.type !== 'application/json')
            || (e.tagName === 'IMG' && !e.src.startsWith('data:image/png;base64,'))
            || [...e.attributes].some((a) => a.name.startsWith('on'))
            || (e.tagName === 'FORM' && e.className !== 'reward')).map((e) => e.outerHTML.slice(0, 200))"""
    )
    assert odd == []
    assert page.evaluate("getComputedStyle(document.body).display") != "none"
    hidden = "[\\u202a-\\u202e\\u2066-\\u2069\\u200b\\u001b\\u009b\\u0007]"
    assert page.evaluate(f"/{hidden}/.test(document.querySelector('main').innerText)") is False


def walk(watch: Watch) -> None:
    """Look at everything that there is."""
    page = watch.page
    page.wait_for_selector(".row.selected")
    assert page.locator(".row").count() > 10
    for _ in range(len(TRICKS) * 2 + 2):
        page.keyboard.press("j")
        page.wait_for_timeout(130)
        page.evaluate(
            "document.querySelectorAll('.details summary').forEach((s) => { if (!s.parentElement.open) s.click(); })"
        )
        page.evaluate("document.querySelectorAll('.details .more:is(button)').forEach((b) => b.click())")
    harmless(watch)
    page.keyboard.press("/")
    page.keyboard.type("pwned")
    page.wait_for_selector(".found:has-text('found')")
    page.wait_for_timeout(300)
    assert page.locator(".row mark").count() > 5
    harmless(watch)
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    page.wait_for_selector(".pair")
    page.wait_for_timeout(300)
    harmless(watch)
    page.keyboard.press("Escape")


def test_served(watch: Watch, tmp_path: Path) -> None:
    with serve(harmful(tmp_path / "x.loom.jsonl")) as view:
        watch.open(view.url)
        walk(watch)
        watch.shot("hostile")
    watch.clean()


def test_in_one_file(watch: Watch, tmp_path: Path) -> None:
    target = tmp_path / "x.html"
    write_html(harmful(tmp_path / "x.loom.jsonl"), target)
    watch.origin = target.as_uri()
    watch.page.goto(target.as_uri())
    walk(watch)
    assert [url for url in watch.foreign if not url.startswith(target.as_uri())] == []
    assert watch.dialogs == []
    assert watch.errors == []


@pytest.mark.parametrize("name", ["script", "closing", "handler", "svg", "frame"])
def test_the_detector_fires(watch: Watch, name: str) -> None:
    """A page that makes markup of the same text is caught: otherwise the tests above would prove nothing."""
    watch.page.goto("about:blank")
    watch.page.set_content(f"<main></main><p>{TRICKS[name]}</p>")
    watch.page.wait_for_timeout(400)
    with pytest.raises(AssertionError):
        harmless(watch)


def test_the_detector_sees_requests_to_elsewhere(watch: Watch) -> None:
    watch.page.goto("about:blank")
    watch.page.set_content(TRICKS["remote"])
    watch.page.wait_for_timeout(400)
    with pytest.raises(AssertionError):
        watch.clean()


@pytest.mark.parametrize("where", ["served", "file"])
def test_the_page_itself_cannot_be_made_to_run_text(
    watched: Callable[..., Watch], sample: Path, tmp_path: Path, where: str
) -> None:
    """Were there a hole in the page's own code, the policy would still stand."""
    watch = watched()
    page = watch.page

    def tries() -> dict[str, Any]:
        return dict(
            page.evaluate(
                """async () => {
                    const tell = {};
                    const attempt = (name, act) => {
                        try { act(); tell[name] = 'done'; } catch (error) { tell[name] = error.name; }
                    };
                    const bad = '<img src=x onerror="window.pwned=1">';
                    attempt('innerHTML', () => { document.querySelector('.details').innerHTML = bad; });
                    attempt('handler', () => document.body.setAttribute('onclick', 'window.pwned=1'));
                    const script = document.createElement('script');
                    attempt('script', () => { script.textContent = 'window.pwned=1'; });
                    document.head.append(script);
                    await fetch('http://127.0.0.1:1/').then(() => { tell.fetch = 'done'; }, (e) => { tell.fetch = e.name; });
                    // What a test itself evaluates may do this; what the page does later may not.
                    await new Promise((go) => setTimeout(() => { attempt('eval', () => (0, eval)('window.pwned=1')); go(); }, 50));
                    document.body.click();
                    tell.pwned = typeof window.pwned;
                    return tell;
                }"""
            )
        )

    if where == "served":
        with serve(sample) as view:
            watch.open(view.url)
            told = tries()
    else:
        target = tmp_path / "x.html"
        write_html(sample, target)
        page.goto(target.as_uri())
        page.wait_for_selector(".row.selected")
        told = tries()
    assert told == {
        "pwned": "undefined",
        "innerHTML": "TypeError",
        "eval": "EvalError",
        "handler": "TypeError",
        "script": "TypeError",
        "fetch": "TypeError",
    }


def test_the_file_holds_its_data_safely(tmp_path: Path) -> None:
    target = tmp_path / "x.html"
    write_html(harmful(tmp_path / "x.loom.jsonl"), target)
    text = target.read_text()
    data = "".join(part.partition("</script>")[0] for part in text.split('<script type="application/json"')[1:])
    assert "pwned" in data
    assert not set(data.replace("\n", "")) & set("<&\u2028\u2029")
    assert text.count("<script") == text.count("</script>")
    assert text.lower().count("<!--") == 0
    assert "http://elsewhere" not in text.replace(data, "").split('<script type="application/json"')[0]


MAKERS = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "new Function",
    "createContextualFragment",
    "setHTML",
    "srcdoc",
    "DOMParser",
    "javascript:",
    "import(",
)
"""What makes markup or script of text."""


def test_the_pages_code_makes_no_markup_of_text() -> None:
    for name in sorted(assets.names()):
        source = assets.text(name)
        for word in MAKERS:
            assert word not in source, f"{name}: {word}"
        assert "http://" not in source.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in source
