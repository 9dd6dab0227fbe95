"""Line matcher: a separate process that matches a Python regular expression, so that an endless match can be killed.

It runs from this text alone and imports none of our code. Its input is frames: eight bytes of length and that many
bytes. The first frame is the pattern; each other one is a part of a file that ends at a line's end. It answers each
frame with one line: the pattern with ``ok`` or an error's text, each part with ``line:column`` words (line from 0,
column in bytes from 0).
"""

import re
import sys
import warnings


def main() -> None:
    wants, answers = sys.stdin.buffer, sys.stdout.buffer

    def frame() -> bytes:
        size = int.from_bytes(wants.read(8), "big")
        return wants.read(size)

    def answer(text: str) -> None:
        answers.write(text.encode("utf-8", "replace") + b"\n")
        answers.flush()

    most = int(sys.argv[2])
    # Other engines read nested classes differently. An error is better than a different meaning.
    warnings.simplefilter("error", FutureWarning)
    try:
        source = frame().decode("utf-8", "surrogateescape")
        pattern = re.compile(source, re.IGNORECASE if sys.argv[1] == "i" else 0)
    except (re.error, OverflowError, RecursionError, FutureWarning) as error:
        answer(" ".join(str(error).split()))
        return
    answer("ok")
    while True:
        piece = frame()
        if not piece:
            return
        found = []
        lines = piece.decode("utf-8", "surrogateescape").split("\n")
        if not lines[-1]:
            lines.pop()
        for number, line in enumerate(lines):
            match = pattern.search(line[:-1] if line.endswith("\r") else line)
            if match is not None:
                column = len(line[: match.start()].encode("utf-8", "surrogateescape"))
                found.append(f"{number}:{column}")
                if len(found) == most:
                    break
        answer(" ".join(found))


if __name__ == "__main__":
    main()
