"""The command: `python -m bench [NAME...]`.

python -m bench --list         the names and their questions
python -m bench turns append   these two
python -m bench --peers turns  other people's frameworks too, in an environment of their own (fetched from PyPI)
python -m bench --write bash   and its table into bench/README.md, in the old one's place
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import time
from pathlib import Path

from bench.measure import Table
from bench.options import Options

NAMES = (
    "turns",
    "memory",
    "start",
    "size",
    "first",
    "prompt",
    "updates",
    "chat",
    "cancel",
    "soak",
    "bash",
    "sessions",
    "defences",
    "workloads",
    "suites",
    "gate",
    "code",
    "fork",
    "children",
    "longtext",
    "undo",
    "append",
    "opening",
    "stores",
    "catalog",
    "tuples",
    "receipts",
    "batch_files",
    "fan_out",
    "tuple_status",
    "substrate",
    "recording",
    "crystal",
    "embedded",
    "training",
    "lsp",
)
README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def question(name: str) -> str:
    """The first line of the script's docstring."""
    return (importlib.import_module(f"bench.{name}").__doc__ or "").strip().splitlines()[0].rstrip(".")


def machine() -> str:
    """What the figures were had on."""
    try:
        model = next(
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        )
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{os.cpu_count()} x {model}, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def write(tables: list[Table]) -> None:
    """Put the tables where README.md keeps them: in the place of those of the same names, the others stay."""
    text = README.read_text()
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    kept = {part.split(":", 1)[0]: part.rstrip() for part in old.split("### ")[1:]}
    taken = f"Taken on {time.strftime('%Y-%m-%d')} on {machine()}; load {os.getloadavg()[0]:.1f} at the end."
    for table in tables:
        head, *lines = table.markdown()
        kept[table.name] = "\n".join([head.removeprefix("### "), "", taken, *lines]).rstrip()
    parts = [f"### {kept[name]}\n" for name in NAMES if name in kept]
    README.write_text(before + "\n".join([BEGIN, "", *parts, END]) + after)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which questions; all where none is named")
    parser.add_argument("--list", action="store_true", help="print the names and their questions")
    parser.add_argument(
        "--peers", action="store_true", help="measure other frameworks too (turns, memory, tuples, training); minutes"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a look, not a measurement")
    parser.add_argument("--only", default="", metavar="GROUP", help="workloads: this group of them, or one row")
    parser.add_argument("--write", action="store_true", help="write the tables into bench/README.md")
    chosen = parser.parse_args()
    if chosen.list:
        for name in NAMES:
            print(f"{name:<8} {question(name)}")
        return 0
    unknown = [name for name in chosen.names if name not in NAMES]
    if unknown:
        parser.error(f"no question is named {', '.join(unknown)}; there are: {', '.join(NAMES)}")
    tables = []
    print(machine(), flush=True)
    for name in chosen.names or NAMES:
        answer: Table = importlib.import_module(f"bench.{name}").run(Options(chosen.peers, chosen.quick, chosen.only))
        tables.append(answer)
        print("\n" + "\n".join(answer.lines()), flush=True)
    if chosen.write:
        write(tables)
        print(f"\nwritten to {README}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
