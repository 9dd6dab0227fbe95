"""The page of a result: one HTML file without scripts. Each cell of its table opens the threads of its samples.

The pages of the looms are in a folder beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from cantrip_acp.evaluation.run import PAGE, Record, Result, differing
from cantrip_acp.evaluation.statistics import Cell, Comparison, Difference, Interval
from cantrip_acp.loom.output_file import output_file
from cantrip_acp.tuplespace.monitoring.batch_page import write_loom_page
from cantrip_acp.types.errors import LoomError

_TEXT = 2_000
"""The most characters of an answer."""
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid #8884; padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.passed { color: light-dark(#176b2c, #6fd08c); }
.failed { color: light-dark(#a3231b, #ff8d80); }
.error { color: light-dark(#8a5a00, #f0b54a); }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; max-width: 40rem; max-height: 12rem; overflow: auto; }
"""


def percent(rate: float | None, interval: Interval | None = None) -> str:
    """A rate in per cent, with its interval in brackets."""
    if rate is None:
        return ""
    return f"{rate:.0%}" + (f" [{interval[0]:.0%}, {interval[1]:.0%}]" if interval else "")


def mean(value: float | None, interval: Interval | None = None) -> str:
    """A mean, with its interval in brackets."""
    if value is None:
        return ""
    return f"{value:.3g}" + (f" [{interval[0]:.3g}, {interval[1]:.3g}]" if interval else "")


def cost(found: Cell) -> str:
    """US dollars. ? if none is known, and +? if some are missing: an unknown cost is not zero. Empty if no query cost anything."""
    if found.cost is None:
        return "?" if found.unknown_cost else ""
    return f"${found.cost:.4f}" + ("+?" if found.unknown_cost else "")


def tokens(count: int | None, found: Cell) -> str:
    """Tokens, marked like `cost`."""
    if count is None:
        return "?" if found.unknown_tokens else ""
    return f"{count:,}" + ("+?" if found.unknown_tokens else "")


HEAD = (
    "crystal",
    "passed",
    "pass rate [95 %]",
    "score [95 %]",
    "pass@k",
    "errors",
    "turns",
    "tokens in",
    "out",
    "cost",
    "time",
)
"""The columns of `summary`."""


def summary(name: str, found: Cell) -> tuple[str, ...]:
    """The row of a crystal. Turns and time are means of a sample; tokens and cost are sums."""
    return (
        name,
        f"{found.passed}/{found.samples - found.errors}",
        percent(found.rate, found.interval),
        "" if found.score == found.rate else mean(found.score, found.score_interval),
        "" if found.k < 2 or found.pass_at is None else f"@{found.k} {found.pass_at:.0%}",
        str(found.errors or ""),
        mean(found.turns),
        tokens(found.tokens_in, found),
        tokens(found.tokens_out, found),
        cost(found),
        "" if found.seconds is None else f"{found.seconds:.1f} s",
    )


def sentence(each: Comparison) -> str:
    """Describe a comparison with the baseline in a sentence."""
    change = f"{each.what} {each.before:.3g} → {each.after:.3g}"
    verdict = "REGRESSION" if each.regression else "worse, not significant" if each.after < each.before else "not worse"
    at = each.crystal if each.task is None else f"{each.crystal}, {each.task}"
    other = "" if each.crystal == each.baseline else f" (baseline: {each.baseline})"
    return f"{at}{other}: {change}, p = {each.p:.3g}: {verdict}"


def difference_sentence(each: Difference) -> str:
    """Describe the difference of two crystals in a sentence."""
    scale, unit = (100, " points") if each.what == "pass rate" else (1, "")
    low, high = (scale * end for end in each.interval or (0.0, 0.0))
    interval = f" (95 % CI {low:+.3g} to {high:+.3g})" if each.interval is not None else ""
    better = each.second if each.difference > 0 else each.first
    verdict = f"{better} is better" if each.counts else "not significant"
    tasks = f"{each.tasks} task{'' if each.tasks == 1 else 's'}"
    return (
        f"{each.second} against {each.first}: {each.what} {each.before:.3g} → {each.after:.3g}, difference "
        f"{scale * each.difference:+.3g}{unit}{interval}, p = {each.p:.3g}, {tasks}: {verdict}"
    )


def write_page(result: Result, folder: Path, comparisons: Sequence[Comparison], left_out: Sequence[str]) -> Path:
    """Write the report and the pages of its looms. Returns its path. The records have no secrets (`Evaluation.run`)."""
    target = folder / PAGE
    pages: dict[str, str] = {}
    for number, loom in enumerate(sorted({r["loom"] for r in result.records})):
        try:
            pages[loom] = write_loom_page(str(folder / loom), number, target)
        except LoomError:
            # The folder was copied without its looms; the table is worth having.
            continue
    lines = _lines(result, pages, comparisons, left_out)
    with output_file(target, mode=0o600) as file:
        file.write("\n".join(lines).encode())
    return target


def _lines(
    result: Result, pages: dict[str, str], comparisons: Sequence[Comparison], left_out: Sequence[str]
) -> Iterator[str]:
    title = escape(f"Evaluation of {result.suite}")
    yield (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; style-src 'unsafe-inline'\"><title>{title}</title><style>{_STYLE}</style>"
    )
    yield f"<h1>{title}</h1>"
    if len(result.records) < result.planned:
        yield f"<p><b>Not complete: {len(result.records)} of {result.planned} samples have ended.</b></p>"
    yield _table(HEAD, [[escape(text) for text in summary(c, result.cell(c))] for c in result.crystals])
    if differences := differing(result):
        yield "<h2>Differences</h2><ul>"
        yield from (f"<li>{escape(difference_sentence(each))}</li>" for each in differences)
        yield "</ul>"
    if comparisons or left_out:
        yield "<h2>Against the baseline</h2><ul>"
        for each in comparisons:
            yield f'<li class="{"failed" if each.regression else ""}">{escape(sentence(each))}</li>'
        yield from (f"<li>not compared: {escape(text)}</li>" for text in left_out)
        yield "</ul>"
    yield "<h2>Tasks</h2>"
    rows = []
    for t, task in enumerate(result.tasks):
        rows.append(
            [escape(task), *(_cell(result, t, task, c, crystal, pages) for c, crystal in enumerate(result.crystals))]
        )
    yield _table(("task", *map(escape, result.crystals)), rows)
    yield "<h2>Samples</h2>"
    for t, task in enumerate(result.tasks):
        for c, crystal in enumerate(result.crystals):
            found = result.of(crystal, task)
            if found:
                yield f'<h3 id="c{t}-{c}">{escape(task)}, {escape(crystal)}</h3>'
                yield _table(
                    ("sample", "outcome", "score", "answer", "turns", "tokens", "cost", "time"),
                    [_sample(each, pages) for each in found],
                )


def _cell(result: Result, t: int, task: str, c: int, crystal: str, pages: dict[str, str]) -> str:
    found = result.cell(crystal, task)
    if not found.samples:
        return ""
    judged = found.samples - found.errors
    text = f"{found.passed}/{judged} {percent(found.rate, found.interval)}" if judged else "error"
    kind = "error" if not judged else "passed" if found.passed == judged else "failed"
    records = result.of(crystal, task)
    link = f"#c{t}-{c}" if len(records) > 1 else _thread(records[0], pages) or f"#c{t}-{c}"
    return f'<a class="{kind}" href="{escape(link)}">{escape(text)}</a>'


def _thread(record: Record, pages: dict[str, str]) -> str | None:
    page = pages.get(record["loom"])
    return f"{page}#turn={record['turn']}" if page and record["turn"] else None


def _sample(record: Record, pages: dict[str, str]) -> list[str]:
    usage: dict[str, Any] = record["usage"]
    counts = [usage["prompt_tokens"], usage["completion_tokens"]]
    link = _thread(record, pages)
    outcome = escape(record["outcome"] + (f" ({record['reason']})" if record["reason"] else ""))
    wrong = "".join(
        f"<br>{escape(text)}" for text in [*record["wrong"], *([record["error"]] if record["error"] else [])]
    )
    answer = record["answer"] if len(record["answer"]) <= _TEXT else record["answer"][:_TEXT] + "…"
    number = f"{record['sample'] + 1}"
    return [
        f'<a href="{escape(link)}">{number}</a>' if link else number,
        f'<span class="{escape(record["outcome"])}">{outcome}</span>{wrong}',
        "" if record["outcome"] == "error" else f"{record['score']:.3g}",
        f"<pre>{escape(answer)}</pre>",
        str(record["turns"]),
        " + ".join("?" if n is None else f"{n:,}" for n in counts),
        f"${usage['cost']:.4f}" if usage["cost"] is not None else "?" if usage["queries_without_cost"] else "",
        f"{record['seconds']:.1f} s",
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{each}</td>" for each in row) + "</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{each}</th>' for each in head)}</tr>{body}</table>"
