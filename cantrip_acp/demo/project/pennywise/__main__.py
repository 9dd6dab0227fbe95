"""python3 -m pennywise AMOUNT NAME…"""

import sys

from pennywise.money import parse, show
from pennywise.split import evenly


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print("usage: python3 -m pennywise AMOUNT NAME…", file=sys.stderr)
        return 2
    amount, *names = arguments
    try:
        shares = evenly(parse(amount), len(names))
    except ValueError as problem:
        print(f"pennywise: {problem}", file=sys.stderr)
        return 2
    width = max(len(name) for name in names)
    for name, share in zip(names, shares, strict=True):
        print(f"{name:<{width}}  {show(share)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
