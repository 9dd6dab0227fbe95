"""Rewards the answer to "Which is larger, 3 or 40?": 1 for the right number, less for what is on the way to it."""

import re

from cantrip_acp.loom.query.thread import Thread


def score(thread: Thread, reference: int) -> float:
    if thread.reason != "done":
        return 0.0
    answer = str(thread.result).strip()
    if answer == str(reference):
        return 1.0
    return 0.3 if re.fullmatch(r"\d+", answer) else 0.1
